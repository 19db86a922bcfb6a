"""Our side of `worker.py`: one grader process, kept by a keeper, that runs one `verify` at a time."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
import signal
import socket
import stat
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_env.sandbox.keeper import descendants
from agent_env.sandbox.supervision import Keepers, Kept, KeptCommand
from agent_env.sandbox.temporary import make_folder, remove_folder

START_TIMEOUT = 30.0
GRACE = 1.0
"""seconds past a verify's deadline before its process is killed; a grader that only awaits is stopped in time"""
ANSWER_LIMIT = 8 << 20
"""bytes of rows that a grader may return"""
DATA_LIMIT = 4 << 30
"""bytes of private memory of each process of a grader"""
FILE_LIMIT = 1024
LOG_LIMIT = 1 << 20
MOST_USES = 1000
MOST_MODULES = 64
"""after so many verifies or graders a process is replaced: what they leave in memory is bounded"""

_SCRIPT = Path(__file__).with_name("worker.py")
_PASSED = ("PATH", "LANG", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE")


@dataclass(frozen=True, slots=True)
class Source:
    """A grader's file."""

    name: str
    digest: str
    encoded: str
    """base64 of its bytes"""


class GraderProcess:
    """A running worker. When a call of it raises, cancellation included, it must be ended."""

    def __init__(self, kept: Kept, folder: Path, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._kept = kept
        self._folder = folder
        self._reader = reader
        self._writer = writer
        self._modules: set[str] = set()
        self._uses = 0
        self._spoilt = False

    @classmethod
    async def start(cls, keepers: Keepers, python: Path, uid: int, env: Mapping[str, str]) -> GraderProcess:
        """Raises OSError when it can't run; nothing of it is left then."""
        folder = await asyncio.to_thread(_make_folder, uid)
        kept: Kept | None = None
        try:
            with socket.socket(socket.AF_UNIX) as listener:
                listener.setblocking(False)
                listener.bind(str(folder / "channel"))
                listener.listen(1)
                kept = await keepers.keep(_command(python, folder, uid, env))
                async with asyncio.timeout(START_TIMEOUT):
                    channel = await _accept(listener, kept)
                    reader, writer = await asyncio.open_connection(sock=channel)
                    process = cls(kept, folder, reader, writer)
                    if "failed" in (hello := await process._receive()):
                        raise OSError(hello["failed"])
        except BaseException as error:
            if kept is not None:
                await kept.end(0)
            await asyncio.to_thread(remove_folder, folder)
            if isinstance(error, TimeoutError | EOFError):
                raise OSError(f"it was not ready within {START_TIMEOUT:g} s, or ended before") from error
            raise
        return process

    @property
    def spent(self) -> bool:
        """It should run no further verify."""
        return self._spoilt or self._uses >= MOST_USES or len(self._modules) >= MOST_MODULES

    def has(self, source: Source) -> bool:
        """The grader's module is loaded already."""
        return source.digest in self._modules

    async def grade(self, source: Source, mcp_url: str, run: Any, timeout: float) -> dict[str, Any]:
        """The worker's answer; `{"timeout"}` also when the process had to be given up, `{"error"}` when it died."""
        self._uses += 1
        request = {"number": self._uses, "id": source.digest, "name": source.name, "timeout": timeout}
        request |= {"mcp_url": mcp_url, "run": run}
        if not self.has(source):
            request["source"] = source.encoded
        try:
            async with asyncio.timeout(timeout + GRACE):
                await self._send(request)
                answer = await self._receive()
            if answer.get("number") != self._uses:
                raise ValueError("it answered out of turn")
        except TimeoutError:
            self._spoilt = True
            return {"timeout": _blocked_at(self.printed(self._uses), source.name)}
        except (OSError, EOFError, ValueError) as error:
            self._spoilt = True
            return {"error": await self._ending(error), "where": "", "printed": self.printed(self._uses)}
        self._modules.add(source.digest)
        if answer.get("spoilt") or set(descendants(self._kept.keeper_pid)) - {self._kept.pid}:
            self._spoilt = True
        if "rows" not in answer:
            answer["printed"] = self.printed(self._uses)
        return answer

    def printed(self, number: int | None = None, limit: int = 4096) -> str:
        """The last of what was printed, by that verify alone when it is named."""
        data = b"".join(path.read_bytes() for path in _log_files(self._folder))
        if number is not None:
            mark = b"\x1e%d\n" % number
            _, found, after = data.rpartition(mark)
            # A mark that is not there was cut off with the log's head, or has not been written yet.
            data = after if found or len(data) >= LOG_LIMIT // 4 else b""
        return data[-limit:].decode("utf-8", "replace")

    async def end(self) -> None:
        """Kill it and everything it started, and remove its folder."""
        self._writer.transport.abort()
        await self._kept.end(0)
        await self._kept.settled()
        # The keeper removes it too; this is for a keeper that somebody killed.
        await asyncio.to_thread(remove_folder, self._folder)

    async def _send(self, message: dict[str, Any]) -> None:
        data = json.dumps(message).encode()
        self._writer.write(struct.pack(">I", len(data)) + data)
        await self._writer.drain()

    async def _receive(self) -> dict[str, Any]:
        (length,) = struct.unpack(">I", await self._reader.readexactly(4))
        if length > ANSWER_LIMIT + 4096:
            raise ValueError(f"it sent an answer of {length} bytes")
        answer = json.loads(await self._reader.readexactly(length))
        if not isinstance(answer, dict):
            raise ValueError("it sent an answer of its own making")
        return answer

    async def _ending(self, error: Exception) -> str:
        """What became of a process whose channel broke."""
        if isinstance(error, ValueError):
            return str(error)
        await asyncio.wait({self._kept.exited}, timeout=GRACE)
        code = self._kept.exited.result().code if self._kept.exited.done() else None
        if code is None:
            return "its process closed its channel"
        if code < 0:
            return f"its process was killed by {signal.Signals(-code).name}"
        return f"its process ended itself with exit code {code}"


def read_source(path: Path) -> Source:
    """Raises OSError."""
    data = path.read_bytes()
    digest = hashlib.sha256(path.name.encode() + b"\0" + data).hexdigest()
    return Source(path.name, digest, base64.b64encode(data).decode())


def _command(python: Path, folder: Path, uid: int, env: Mapping[str, str]) -> KeptCommand:
    home = str(folder / "home")
    passed = {name: os.environ[name] for name in _PASSED if name in os.environ}
    return KeptCommand(
        argv=[str(python), "-I", str(_SCRIPT), str(folder / "channel"), str(uid), str(ANSWER_LIMIT)],
        env={"PATH": os.defpath, "LANG": "C.UTF-8"} | passed | dict(env) | {"HOME": home, "TMPDIR": home},
        cwd=home,
        data_limit=DATA_LIMIT,
        file_limit=FILE_LIMIT,
        log=str(folder / "log"),
        log_limit=LOG_LIMIT,
        remove=[str(folder)],
    )


async def _accept(listener: socket.socket, kept: Kept) -> socket.socket:
    """The worker's connection. Raises OSError when the worker ended first."""
    accept = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(listener))
    try:
        both: list[asyncio.Future[Any]] = [accept, kept.exited]
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        if not accept.done():
            raise OSError(f"it ended at once, with exit code {kept.exited.result().code}")
        return accept.result()[0]
    finally:
        accept.cancel()


def _make_folder(uid: int) -> Path:
    """A folder that the worker's user can reach and in which only `home` is its own."""
    parents = [Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")]
    parent = next((path for path in parents if uid < 0 or _reachable(path)), parents[0])
    folder = make_folder(parent, "agent-env-grader-")
    folder.chmod(0o711)
    home = folder / "home"
    home.mkdir(mode=0o700)
    if uid >= 0:
        os.chown(home, uid, uid)
    return folder


def _reachable(path: Path) -> bool:
    """Every user may pass through it and the folders above."""
    return all(stat.S_IMODE(part.stat().st_mode) & stat.S_IXOTH for part in (path, *path.parents))


def _log_files(folder: Path) -> list[Path]:
    """The log's files, the oldest first: each is named by the offset of its first byte; see `sandbox.keeper.Log`."""
    return sorted(folder.glob("log.*"), key=lambda path: int(path.suffix[1:]))


def _blocked_at(printed: str, name: str) -> str:
    """Where faulthandler saw the grader."""
    found = re.search(rf'File "{re.escape(name)}", line (\d+)', printed)
    return f"{name}, line {found[1]}" if found else ""
