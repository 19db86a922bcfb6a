"""Run a command under a keeper to its end, with bounded output: the `exec` of process sandboxes."""

from __future__ import annotations

import asyncio
import os
import signal
from typing import IO

from agent_env.sandbox.base import ExecResult
from agent_env.sandbox.supervision import Keepers, KeptCommand

_CHUNK = 1 << 16
NOT_FOUND = 127
"""the shell's exit code for a command that can't be run"""


async def run_kept(keepers: Keepers, command: KeptCommand, *, input: bytes, output_limit: int) -> ExecResult:
    """Feed `input`, keep at most `output_limit` bytes of stdout and of stderr, wait for the end. When cancelled,
    nothing of the command is left."""
    stdin, stdout, stderr = os.pipe(), os.pipe(), os.pipe()
    theirs = [stdin[0], stdout[1], stderr[1]]
    feed, out, err = os.fdopen(stdin[1], "wb", 0), os.fdopen(stdout[0], "rb", 0), os.fdopen(stderr[0], "rb", 0)
    with feed, out, err:
        try:
            kept = await keepers.keep(command, theirs)
        except OSError as error:
            return ExecResult(exit_code=NOT_FOUND, stdout=b"", stderr=str(error).encode())
        finally:
            for fd in theirs:
                os.close(fd)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(_feed(feed, input))
                output = group.create_task(_collect(out, output_limit))
                errors = group.create_task(_collect(err, output_limit))
                end = await asyncio.shield(kept.exited)
        finally:
            await kept.end(grace=0)
    code = end.code if end.code is not None else -int(signal.SIGKILL)
    return ExecResult(
        exit_code=code if code >= 0 else 128 - code,
        stdout=output.result()[0],
        stderr=errors.result()[0],
        timed_out=end.timed_out,
        cut=output.result()[1] or errors.result()[1],
    )


async def _feed(pipe: IO[bytes], data: bytes) -> None:
    loop = asyncio.get_running_loop()
    transport, protocol = await loop.connect_write_pipe(asyncio.streams.FlowControlMixin, pipe)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    try:
        writer.write(data)
        await writer.drain()
    except OSError:
        return  # it ended, or closed its stdin, without reading all: its right
    finally:
        transport.close()


async def _collect(pipe: IO[bytes], limit: int) -> tuple[bytes, bool]:
    """Read to the end; what is beyond the limit is dropped, so that the command never stalls."""
    reader = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    kept = bytearray()
    total = 0
    try:
        while data := await reader.read(_CHUNK):
            total += len(data)
            kept += data[: limit - len(kept)]
    finally:
        transport.close()
    return bytes(kept), total > limit
