"""Our side of `keeper.py`: start commands that can't outlive us, and learn how they end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

PATIENCE = 15.0
"""seconds that a keeper may need beyond the grace to kill everything and to remove its paths"""

_SCRIPT = Path(__file__).with_name("keeper.py")


@dataclass(frozen=True, slots=True)
class KeptCommand:
    """What a keeper is to run; see `keeper.Keeper`."""

    argv: Sequence[str]
    env: Mapping[str, str]
    cwd: str
    data_limit: int | None = None
    """bytes of private memory of each process"""
    file_limit: int | None = None
    timeout: float | None = None
    log: str | None = None
    log_limit: int = 1 << 20
    remove: Sequence[str] = field(default=())

    def request(self) -> bytes:
        """The line that a keeper reads."""
        return json.dumps(self.message()).encode() + b"\n"

    def message(self) -> dict[str, Any]:
        return {
            "argv": list(self.argv),
            "env": dict(self.env),
            "cwd": self.cwd,
            "limits": {"data": self.data_limit, "nofile": self.file_limit},
            "timeout": self.timeout,
            "log": self.log,
            "log_limit": self.log_limit,
            "remove": list(self.remove),
        }


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended. `code` is None when it was killed before anybody could see, else as in `subprocess`."""

    code: int | None
    timed_out: bool = False
    stopped: bool = False
    keeper_lost: bool = False
    """somebody killed the keeper; the kernel then killed the command itself, but perhaps not what it had started"""


class Kept:
    """One running command and its keeper."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self.pid = 0
        self.keeper_pid = 0
        loop = asyncio.get_running_loop()
        self.exited: asyncio.Future[Exit] = loop.create_future()
        """done once every process of the command is gone"""
        self._watch: asyncio.Task[None] | None = None

    async def begin(self, command: KeptCommand) -> None:
        """Raises OSError when the command can't be run. When cancelled, nothing of it is left."""
        try:
            self._writer.write(command.request())
            await self._writer.drain()
            message = await self._message()
        except BaseException:
            # An end of our words is the end of the owner to the keeper; its own end comes after the command's.
            with contextlib.suppress(OSError):
                self._writer.write_eof()
                await self._reader.read()
            self._writer.transport.abort()
            raise
        if message is None or "failed" in message:
            self._writer.transport.abort()
            raise OSError(f"{command.argv[0]}: {message['failed'] if message else 'its keeper ended'}")
        self.pid, self.keeper_pid = message["pid"], message["keeper"]
        self._watch = asyncio.create_task(self._follow(), name=f"keeper of {self.pid}")

    async def end(self, grace: float) -> None:
        """SIGTERM, `grace` seconds, SIGKILL for all of it; returns when that and the removal are over."""
        if self._watch is None:
            return
        self._writer.write(json.dumps({"stop": grace}).encode() + b"\n")
        await asyncio.wait({self._watch}, timeout=grace + PATIENCE)
        if not self._watch.done():
            # Stopped by somebody, or stuck with a process that no signal ends: don't wait for ever.
            log.warning("the keeper %d of process %d does not come to an end: killing it", self.keeper_pid, self.pid)
            self.give_up()
            await asyncio.wait({self._watch})

    def give_up(self) -> None:
        """Kill the keeper; the kernel then kills the command."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.keeper_pid, signal.SIGKILL)

    def let_go(self) -> None:
        """Close the connection: the keeper takes us for dead and kills the command when it can."""
        self._writer.transport.abort()

    async def settled(self) -> None:
        """Wait for the keeper's own end."""
        if self._watch is not None:
            await asyncio.wait({self._watch})

    async def _follow(self) -> None:
        try:
            while message := await self._message():
                if "exit" in message:
                    self.exited.set_result(Exit(message["exit"], message["timed_out"], message["stopped"]))
        finally:
            if not self.exited.done():
                self.exited.set_result(Exit(None, keeper_lost=True))
            self._writer.transport.abort()

    async def _message(self) -> dict[str, Any] | None:
        try:
            line = await self._reader.readline()
        except OSError:
            return None
        return json.loads(line) if line.endswith(b"\n") else None


class Keepers:
    """Starts keepers from one template process. Belongs to one event loop."""

    kept_as: type[Kept] = Kept

    def __init__(self) -> None:
        self._template: tuple[subprocess.Popen[bytes], socket.socket] | None = None
        self._starting = asyncio.Lock()

    async def keep(self, command: KeptCommand, stdio: Sequence[int] = ()) -> Kept:
        """Run a command under a keeper of its own.

        Args:
            stdio: descriptors for stdin, stdout and stderr; without them output goes to `command.log`. The caller
                still has to close its own.

        Raises:
            OSError: the command can't be run.
        """
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                await self._send([theirs.fileno(), *stdio])
            reader, writer = await asyncio.open_connection(sock=ours)
        except BaseException:
            ours.close()
            raise
        kept = self.kept_as(reader, writer)
        await kept.begin(command)
        return kept

    async def aclose(self) -> None:
        """End the template. Keepers go on until their commands end or we do."""
        if self._template is not None:
            process, control = self._template
            self._template = None
            control.close()
            await asyncio.to_thread(process.wait)

    async def _send(self, fds: list[int]) -> None:
        async with self._starting:
            for attempt in (1, 2):
                if self._template is None:
                    self._template = await asyncio.to_thread(_start_template)
                try:
                    socket.send_fds(self._template[1], [b"k"], fds)
                    return
                except OSError:
                    # Somebody killed the template: start another, once.
                    await self.aclose()
                    if attempt == 2:
                        raise


def _start_template() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_SCRIPT), str(theirs.fileno()), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
            start_new_session=True,
            cwd="/",
        )
    return process, ours
