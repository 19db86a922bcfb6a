"""Commands inside a container, under a supervisor that runs there too.

Killing a `docker exec` from outside leaves its process running, and the daemon knows no deadline for it. So what is
exec'd is `exec_supervisor.py`: it ends the command and everything it started when the time is up, and also when the
stream to it ends, which happens whenever the caller is cancelled or our server dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import struct
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

from agent_env.sandbox.base import ExecResult
from agent_env.sandbox.docker_daemon import Daemon
from agent_env.sandbox.limits import EXEC_GRACE

_STDOUT = 1
_HEAD_LIMIT = 65_536


class ExecEnded(Exception):
    """The supervisor's answer did not come; the message holds what came instead."""


async def supervised_exec(
    daemon: Daemon,
    container: str,
    argv: Sequence[str],
    *,
    timeout: float,
    input: bytes = b"",
    env: Mapping[str, str] | None = None,
    cwd: str | None = None,
    output_limit: int = 1 << 20,
) -> ExecResult:
    """Run `argv` in the container, as its user. Raises ExecEnded, or what the SDK raises."""
    source = resources.files("agent_env.sandbox").joinpath("exec_supervisor.py").read_text()
    command = ["python3", "-I", "-S", "-c", source]
    made: dict[str, Any] = await daemon.call(
        lambda client: client.exec_create(container, command, stdin=True, stdout=True, stderr=True)
    )
    request = {
        "argv": list(argv),
        "env": dict(env or {}),
        "cwd": cwd,
        "timeout": timeout,
        "input": len(input),
        "limit": output_limit,
    }
    head = json.dumps(request).encode()
    reader, writer = await _start(daemon, made["Id"])
    try:
        writer.write(struct.pack(">I", len(head)) + head + input)
        async with asyncio.timeout(timeout + EXEC_GRACE):
            answer, other = await _collect(reader, writer, output_limit)
    except TimeoutError:
        raise ExecEnded(f"no answer {EXEC_GRACE:g} s after the deadline of {timeout:g} s") from None
    except ConnectionError as error:
        raise ExecEnded(f"the stream to it broke: {error}") from error
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    return _parse(answer, other)


async def _start(daemon: Daemon, exec_id: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Start the exec and turn the HTTP connection into its stream."""
    reader, writer = await daemon.open()
    body = b'{"Detach": false, "Tty": false}'
    writer.write(
        f"POST /exec/{exec_id}/start HTTP/1.1\r\nHost: docker\r\nContent-Type: application/json\r\n"
        f"Connection: Upgrade\r\nUpgrade: tcp\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        + body
    )
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.split(b" ", 2)[1] not in (b"101", b"200"):
            said = await reader.read(_HEAD_LIMIT)
            raise ExecEnded(f"{head.splitlines()[0].decode()}: {said.decode(errors='replace').strip()}")
    except BaseException as error:
        writer.close()
        if isinstance(error, asyncio.IncompleteReadError):
            raise ExecEnded("the daemon closed the connection") from error
        raise
    return reader, writer


async def _collect(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int
) -> tuple[bytearray, bytearray]:
    """The supervisor's stdout and, for when it fails, its stderr: frames of 8 bytes of head each."""
    await writer.drain()
    answer, other = bytearray(), bytearray()
    while True:
        try:
            head = await reader.readexactly(8)
            data = await reader.readexactly(struct.unpack(">I", head[4:])[0])
        except asyncio.IncompleteReadError:
            return answer, other
        kept = answer if head[0] == _STDOUT else other
        if len(kept) < 2 * limit + _HEAD_LIMIT:
            kept += data


def _parse(answer: bytearray, other: bytearray) -> ExecResult:
    try:
        size = struct.unpack(">I", answer[:4])[0]
        said = json.loads(answer[4 : 4 + size])
        body = bytes(answer[4 + size :])
        out, err = body[: said["out"]], body[said["out"] :]
        if len(err) != said["err"]:
            raise ValueError("short")
        return ExecResult(said["exit_code"], out, err, timed_out=said["timed_out"], cut=said["cut"])
    except (ValueError, KeyError, struct.error):
        text = (bytes(answer) + bytes(other)).decode(errors="replace").strip()
        raise ExecEnded(text[-2000:] or "it ended without an answer") from None
