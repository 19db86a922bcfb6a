"""One env server in one container."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from docker.errors import APIError, NotFound

from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox import docker_files
from agent_env.sandbox.base import ExecResult, SandboxSpec, SandboxState
from agent_env.sandbox.docker_config import PORT
from agent_env.sandbox.docker_daemon import Client, Daemon, is_away, is_gone
from agent_env.sandbox.docker_exec import ExecEnded, supervised_exec
from agent_env.sandbox.docker_logs import read_logs
from agent_env.sandbox.docker_state import GONE, read_state
from agent_env.sandbox.relay import Relay
from agent_env.sandbox.variables import redact, resolve_variables

log = logging.getLogger(__name__)

T = TypeVar("T")

_SETTLE = 1
"""seconds that the daemon may need to hear of an end"""


@dataclass(slots=True)
class Reach:
    """How connections to the env's port are made. `namespace`: a descriptor to close in the end."""

    connect: Callable[[], Awaitable[socket.socket]]
    namespace: int | None = None

    def close(self) -> None:
        if self.namespace is not None:
            os.close(self.namespace)
            self.namespace = None


class DockerSandbox:
    """Made by `DockerProvider.start`. `forget` is called once, when it is stopped, with whether its removal failed."""

    def __init__(
        self,
        sandbox: str,
        spec: SandboxSpec,
        daemon: Daemon,
        container: str,
        forget: Callable[[DockerSandbox, bool], None],
    ) -> None:
        self._id = sandbox
        self.spec = spec
        self.container = container
        self.volumes: tuple[str, ...] = ()
        self.reach: Reach | None = None
        self._daemon = daemon
        self._forget = forget
        env = spec.prepared.env
        self._secrets = resolve_variables(env.settings.env, env_name=env.name)[1]
        self._relay: Relay | None = None
        self._relay_users = 0
        self._end: SandboxState | None = None
        self._stopping: asyncio.Task[None] | None = None

    @property
    def id(self) -> str:
        return self._id

    @property
    def authority(self) -> str:
        return f"127.0.0.1:{PORT}"

    @property
    def url(self) -> str:
        """Opens a relay on the loopback for the rest of the sandbox's life; `expose` opens one for a phase."""
        if self._stopping is not None:
            raise self._failure(FailureKind.SANDBOX_LOST, "it is stopped")
        self._relay = self._relay or Relay(self.connect)
        self._relay_users += 1
        return f"http://127.0.0.1:{self._relay.port}"

    @asynccontextmanager
    async def expose(self) -> AsyncIterator[str]:
        """The base URL for processes of this host, open for as long as the context."""
        url = self.url
        try:
            yield url
        finally:
            self._relay_users -= 1
            if self._relay_users == 0:
                await self._close_relay()

    async def connect(self) -> socket.socket:
        if self.reach is None:
            raise ConnectionRefusedError(f"sandbox {self._id} has no running process")
        return await self.reach.connect()

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
        try:
            return await supervised_exec(
                self._daemon,
                self.container,
                argv,
                timeout=timeout,
                input=input,
                env=env,
                cwd=cwd,
                output_limit=output_limit,
            )
        except ExecEnded as error:
            await self._raise_if_ended("exec")
            raise self._failure(FailureKind.ENV_UNREACHABLE, f"exec of {argv[0]!r} failed: {error}") from error
        except (EpisodeFailure, asyncio.CancelledError):
            raise
        except Exception as error:
            await self._raise_if_ended("exec")
            raise self._daemon.failure(error, self._about(f"exec of {argv[0]!r}")) from error

    async def put(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        if self.spec.prepared.env.settings.read_only:
            await docker_files.put_by_exec(self.exec, path, data, mode)
        else:
            await self._guarded(
                f"writing {path}",
                self._daemon.finish,
                lambda client: docker_files.put(client, self.container, path, data, mode),
            )

    async def get(self, path: str, *, limit: int = 64 << 20) -> bytes:
        if self.spec.prepared.env.settings.read_only:
            return await docker_files.get_by_exec(self.exec, path, limit)
        return await self._call(f"reading {path}", lambda client: docker_files.get(client, self.container, path, limit))

    async def logs(self, limit: int = 65_536) -> str:
        text = await self._call("reading logs", lambda client: read_logs(client, self.container, limit))
        return redact(text, self._secrets)

    async def state(self) -> SandboxState:
        if self._end is not None:
            return self._end
        state = await self._call("asking its state", lambda client: read_state(client, self.container))
        if not state.running and self._end is None:
            self._end = state
        return self._end or state

    async def stop(self, grace: float = 2.0) -> None:
        if self._stopping is None:
            self._stopping = asyncio.get_running_loop().create_task(self._stop(grace), name=f"stop {self._id}")
        await asyncio.shield(self._stopping)

    async def _stop(self, grace: float) -> None:
        left_over = False
        await self._close_relay()
        try:
            await self._daemon.finish(lambda client: self._terminate(client, grace))
        except Exception as error:
            left_over = True
            log.warning("sandbox %s: teardown failed, left to the reaper: %s", self._id, error)
        finally:
            self._end = self._end or SandboxState(running=False, stopped_by_us=True)
            if self.reach is not None:
                self.reach.close()
            self._forget(self, left_over)

    def _terminate(self, client: Client, grace: float) -> None:
        """In the pool: read how it ended if it did, else end it; then remove it."""
        if self._end is None:
            state = read_state(client, self.container)
            self._end = None if state.running else state
        if self._end is None and grace > 0:
            with suppress(APIError):  # it may have ended this moment
                client.kill(self.container, "SIGTERM")
            try:
                client.wait(self.container, timeout=grace)  # type: ignore[arg-type]
            except Exception as error:
                if not is_away(error):  # an expired wait looks like a daemon that does not answer
                    raise
            else:
                self._end = read_state(client, self.container, stopped_by_us=True)
        self._end = self._end or SandboxState(running=False, stopped_by_us=True)
        remove_container(client, self.container, self.volumes)

    async def _close_relay(self) -> None:
        relay, self._relay, self._relay_users = self._relay, None, 0
        if relay is not None:
            await relay.aclose()

    async def _call(self, doing: str, function: Callable[[Client], T]) -> T:
        return await self._guarded(doing, self._daemon.call, function)

    async def _guarded(
        self, doing: str, run: Callable[[Callable[[Client], Any]], Awaitable[Any]], function: Callable[[Client], T]
    ) -> T:
        try:
            result: T = await run(function)
        except (EpisodeFailure, asyncio.CancelledError):
            raise
        except Exception as error:
            if is_gone(error):
                self._end = self._end or GONE
                raise self._failure(FailureKind.SANDBOX_LOST, f"{doing}: {self._end.detail or 'it ended'}") from error
            raise self._daemon.failure(error, self._about(doing)) from error
        return result

    async def _raise_if_ended(self, doing: str) -> None:
        """Its stream broke: was that its end? The daemon may hear of it a moment later than we do."""
        try:
            await self._daemon.call(lambda client: client.wait(self.container, timeout=_SETTLE))
        except Exception as error:
            log.debug("sandbox %s: %s: still running after %d s: %s", self._id, doing, _SETTLE, error)
        state = await self.state()
        if not state.running:
            kind = FailureKind.SANDBOX_LOST if state.lost or state.stopped_by_us else FailureKind.ENV_CRASHED
            kind = FailureKind.PROVIDER_OOM_KILLED if state.oom_killed else kind
            raise self._failure(
                kind, f"{doing}: its container has ended (exit code {state.exit_code}) {state.detail}".strip()
            )

    def _failure(self, kind: FailureKind, reason: str) -> EpisodeFailure:
        return EpisodeFailure(kind, self._about(reason))

    def _about(self, reason: str) -> str:
        return f"env {self.spec.prepared.env.name!r}, sandbox {self._id}: {reason}"


def remove_container(client: Client, container: str, volumes: Sequence[str] = ()) -> None:
    """Remove it with its volumes, whatever state it is in; `volumes` are those it had, in case it is gone already."""
    try:
        client.remove_container(container, v=True, force=True)
        return
    except Exception as error:
        if "already in progress" in str(error):
            with suppress(NotFound):
                client.wait(container, condition="removed")
        elif not is_gone(error):
            raise
    for volume in volumes:
        with suppress(NotFound):
            client.remove_volume(volume, force=True)
