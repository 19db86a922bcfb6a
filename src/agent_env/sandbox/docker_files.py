"""Files into and out of a container."""

from __future__ import annotations

import base64
import io
import json
import posixpath
import tarfile
import time
from collections.abc import Awaitable, Callable

from docker.errors import NotFound

from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.base import ExecResult
from agent_env.sandbox.docker_daemon import Client, streamed

Exec = Callable[..., Awaitable[ExecResult]]

_LINKS = 8
_DIRECTORY = 1 << 31
_SYMLINK = 1 << 27
"""bits of Go's os.FileMode, in which the daemon tells a file's kind"""

_PUT = "import os,sys; p=sys.argv[1]; os.makedirs(os.path.dirname(p),exist_ok=True); f=open(p,'wb'); \
f.write(sys.stdin.buffer.read()); f.close(); os.chmod(p,int(sys.argv[2],8))"
_GET = "import sys,base64; sys.stdout.buffer.write(base64.b64encode(open(sys.argv[1],'rb').read(int(sys.argv[2])+1)))"


def put(client: Client, container: str, path: str, data: bytes, mode: int) -> None:
    """Write a file, owned by root, making its folders."""
    path = _absolute(path)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo(path.lstrip("/"))
        member.size = len(data)
        member.mode = mode
        member.mtime = int(time.time())
        tar.addfile(member, io.BytesIO(data))
    client.put_archive(container, "/", packed.getvalue())


def get(client: Client, container: str, path: str, limit: int) -> bytes:
    """A file's bytes. Raises EpisodeFailure(LOAD_FAILED) when there is none to read, or it is past the limit."""
    wanted = _absolute(path)
    for _ in range(_LINKS):
        try:
            with streamed(client, f"/containers/{container}/archive", path=wanted) as answer:
                stat = json.loads(base64.b64decode(answer.headers["X-Docker-Container-Path-Stat"]))
                if stat["mode"] & _DIRECTORY:
                    raise _failure(f"reading {path!r}: is a folder")
                if not stat["mode"] & _SYMLINK:
                    if stat["size"] > limit:
                        raise _too_big(path, limit)
                    return _only_file(answer.content, path)
                wanted = posixpath.join(posixpath.dirname(wanted), stat["linkTarget"])
        except NotFound as error:
            if "no such container" in str(error).lower():
                raise
            raise _failure(f"reading {path!r}: no such file") from error
    raise _failure(f"reading {path!r}: too many links")


async def put_by_exec(run: Exec, path: str, data: bytes, mode: int) -> None:
    """As the container's user: the way into folders that the daemon does not see, such as a tmpfs."""
    argv = ["python3", "-I", "-S", "-c", _PUT, _absolute(path), oct(mode)[2:]]
    done = await run(argv, timeout=60.0, input=data)
    if done.exit_code != 0:
        raise _failure(f"writing {path!r}: {_last_line(done.stderr)}")


async def get_by_exec(run: Exec, path: str, limit: int) -> bytes:
    argv = ["python3", "-I", "-S", "-c", _GET, _absolute(path), str(limit)]
    done = await run(argv, timeout=60.0, output_limit=2 * limit + 8)
    if done.exit_code != 0:
        raise _failure(f"reading {path!r}: {_last_line(done.stderr)}")
    data = base64.b64decode(done.stdout)
    if len(data) > limit:
        raise _too_big(path, limit)
    return data


def _only_file(packed: bytes, path: str) -> bytes:
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for member in tar:
            if member.isfile() and (file := tar.extractfile(member)) is not None:
                return file.read()
    raise _failure(f"reading {path!r}: is not a regular file")


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise _failure(f"{path!r} must be an absolute path")
    return posixpath.normpath(path)


def _too_big(path: str, limit: int) -> EpisodeFailure:
    return _failure(f"reading {path!r}: it is larger than {limit} bytes")


def _failure(reason: str) -> EpisodeFailure:
    return EpisodeFailure(FailureKind.LOAD_FAILED, reason)


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no reason given"
