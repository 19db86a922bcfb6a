"""One env server that is a fork of a fork server."""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.base import ExecResult, SandboxState
from agent_env.sandbox.fork_ground import Slot
from agent_env.sandbox.fork_host import ForkCommand, ForkHost
from agent_env.sandbox.layout import storage_failure
from agent_env.sandbox.process import state_of
from agent_env.sandbox.relay import Relay
from agent_env.sandbox.running import run_kept
from agent_env.sandbox.supervision import Kept
from agent_env.sandbox.variables import redact


class ForkSandbox:
    """Made by `ForkProvider.start`. `forget` is called once, when it is stopped.

    As in a process sandbox, an absolute path of `put`, `get` and `exec` is meant from a root of the fork's own.
    """

    def __init__(
        self,
        host: ForkHost,
        slot: Slot,
        kept: Kept,
        command: ForkCommand,
        secrets: Sequence[str],
        forget: Callable[[ForkSandbox], None],
    ) -> None:
        self.id = slot.id
        self.host = host
        self.slot = slot
        self._kept = kept
        self._command = command
        self._secrets = secrets
        self._forget = forget
        self._reach = host.ground.reach(host, slot, kept.keeper_pid)
        self._relay: Relay | None = None
        self._execs: set[asyncio.Task[ExecResult]] = set()
        self._stopping: asyncio.Task[None] | None = None
        self._asked = False
        self._end: SandboxState | None = None

    @property
    def authority(self) -> str:
        return f"127.0.0.1:{self.slot.port}"

    @property
    def url(self) -> str:
        if self._reach.direct:
            return f"http://{self.authority}"
        if self._stopping is not None:
            raise EpisodeFailure(FailureKind.SANDBOX_LOST, f"sandbox {self.id} is stopped")
        self._relay = self._relay or Relay(self.connect)
        return f"http://127.0.0.1:{self._relay.port}"

    async def connect(self) -> socket.socket:
        """Only ever to a socket that a process of this fork listens on."""
        if self._kept.exited.done() or self._stopping is not None:
            raise ConnectionRefusedError("the env's process has ended")
        return await self._reach.connect()

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        input: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        output_limit: int = 1 << 20,
    ) -> ExecResult:
        """Run a command beside the env, as its user. What it leaves running when it ends is killed."""
        if self._kept.exited.done() or self._stopping is not None:
            raise EpisodeFailure(FailureKind.SANDBOX_LOST, f"sandbox {self.id} has ended: {list(argv)} can't run in it")
        command = replace(
            self._command,
            argv=argv,
            env={**self._command.env, **(env or {})},
            cwd=cwd or ".",
            timeout=timeout,
            log=None,
            remove=(),
            serve=False,
        )
        task = asyncio.create_task(run_kept(self.host.keepers, command, input=input, output_limit=output_limit))
        self._execs.add(task)
        task.add_done_callback(self._execs.discard)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._stopping is None or (caller is not None and caller.cancelling()):
                raise
            raise EpisodeFailure(FailureKind.SANDBOX_LOST, f"{argv[0]}: the sandbox was stopped meanwhile") from None

    def path(self, path: str) -> str:
        """The path under which processes of this fork see what `put(path)` wrote."""
        root = self.slot.root
        if path == root or path.startswith(root + "/"):
            return posixpath.normpath(path)
        return posixpath.normpath(root + path if path.startswith("/") else f"{root}/app/{path}")

    async def put(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        fd = await self._open(path, mode)
        try:
            await asyncio.to_thread(_write, fd, data)
        except OSError as error:
            raise storage_failure(error, f"writing {path!r}", FailureKind.LOAD_FAILED) from error

    async def get(self, path: str, *, limit: int = 64 << 20) -> bytes:
        fd = await self._open(path, None)
        try:
            data = await asyncio.to_thread(_read, fd, limit + 1)
        except OSError as error:
            raise storage_failure(error, f"reading {path!r}", FailureKind.LOAD_FAILED) from error
        if len(data) > limit:
            raise EpisodeFailure(FailureKind.LOAD_FAILED, f"reading {path!r}: it is larger than {limit} bytes")
        return data

    async def logs(self, limit: int = 65_536) -> str:
        return redact(await asyncio.to_thread(self.host.logs(self.slot).log_tail, limit), self._secrets)

    async def state(self) -> SandboxState:
        if self._end is None and self._kept.exited.done():
            self._end = await self._how_it_ended()
        if self._end is None:
            return SandboxState(running=True, stopped_by_us=self._stopping is not None)
        return self._end

    async def stop(self, grace: float = 2.0) -> None:
        if self._stopping is None:
            self._asked = not self._kept.exited.done()
            self._stopping = asyncio.create_task(self._stop(grace), name=f"stop sandbox {self.id}")
        await asyncio.shield(self._stopping)

    async def _stop(self, grace: float) -> None:
        for task in self._execs:
            task.cancel()
        if self._execs:
            await asyncio.wait(self._execs)
        if self._relay is not None:
            await self._relay.aclose()
        try:
            await self._kept.end(grace)
            await self.state()
            if self._kept.exited.result().keeper_lost:
                # Nobody watches over what the fork may have started: it goes when its siblings have.
                self.host.retire("a keeper of its was killed")
            await asyncio.to_thread(shutil.rmtree, self.host.logs(self.slot).folder, ignore_errors=True)
        finally:
            self._forget(self)

    async def _how_it_ended(self) -> SandboxState:
        end = self._kept.exited.result()
        state = state_of(end, asked=self._asked)
        if not end.keeper_lost or state.stopped_by_us:
            return state
        oom_killed, detail = await self.host.end_of()
        return replace(state, oom_killed=oom_killed, lost=not oom_killed, detail=detail or state.detail)

    async def _open(self, path: str, mode: int | None) -> int:
        doing = f"{'reading' if mode is None else 'writing'} {path!r}"
        try:
            answer, fd = await self.host.ask(b"f", {"slot": self.slot.told(), "path": path, "mode": mode})
            if fd is None:
                raise OSError(answer["error"], _reason(answer["error"]))
        except OSError as error:
            raise storage_failure(error, doing, FailureKind.LOAD_FAILED) from error
        return fd


def _reason(number: int) -> str:
    return "it leads out of the sandbox" if number == errno.EXDEV else os.strerror(number)


def _write(fd: int, data: bytes) -> None:
    with os.fdopen(fd, "wb") as file:
        file.write(data)


def _read(fd: int, most: int) -> bytes:
    with os.fdopen(fd, "rb") as file:
        return file.read(most)
