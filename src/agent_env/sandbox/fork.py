"""Sandboxes that are forks: the env's imports are done once, in a server that several episodes' envs are forked from.

`Isolating` stands before a provider. Envs whose isolation is "fork" get a fork each of a server that runs in one
sandbox of the provider's; all others get a sandbox of the provider's, as ever. docs/isolation.md says what keeps forks
apart, and what doesn't.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import shutil
import uuid
from dataclasses import replace
from typing import Any

from agent_env.bundle.model import Env
from agent_env.errors import ConfigError, EpisodeFailure, FailureKind
from agent_env.sandbox import temporary
from agent_env.sandbox.base import BARE, Prepared, Sandbox, SandboxProvider, SandboxSpec
from agent_env.sandbox.fork_command import Launch
from agent_env.sandbox.fork_ground import DockerGround, Ground, ProcessGround, variables
from agent_env.sandbox.fork_host import ForkCommand, ForkHost, remove_folders_of_the_dead
from agent_env.sandbox.fork_sandbox import ForkSandbox
from agent_env.sandbox.journal import remove_journals_of_the_dead
from agent_env.sandbox.layout import LOG_NAME, storage_failure
from agent_env.sandbox.process import LOG_LIMIT, OPEN_FILES, ProcessProvider
from agent_env.sandbox.variables import resolve_variables

log = logging.getLogger(__name__)

EPISODES = 32
"""forks of one server that live at once"""
FORKS = 2000
"""after so many a server is replaced, so that what forks leave behind is bounded"""
_TRIES = 3
"""servers that may end just when a fork is asked of them"""
_ISOLATIONS = ("container", "fork")


class Isolating:
    """A provider that gives each env the isolation it asks for.

    Args:
        provider: starts the sandboxes.
        isolation: "container" or "fork" for every env; None: as its agent-env.toml says.
        episodes: forks of one server that live at once.
        forks: forks ever of one server.
    """

    def __init__(
        self,
        provider: SandboxProvider,
        isolation: str | None = None,
        *,
        episodes: int = EPISODES,
        forks: int = FORKS,
    ) -> None:
        if isolation not in (None, *_ISOLATIONS):
            raise ConfigError(f"isolation {isolation!r} is not known; there are: {', '.join(_ISOLATIONS)}")
        self.provider = provider
        self.name = provider.name
        self.isolation = isolation
        self.episodes = episodes
        self.forks = forks
        self._ground = _ground(provider)
        self._lanes: dict[str, Lane] = {}
        self._sandboxes: set[ForkSandbox] = set()
        self._closed = False

    @property
    def hosts(self) -> list[ForkHost]:
        """The fork servers that run now."""
        return [host for lane in self._lanes.values() for host in lane.hosts]

    @property
    def sandboxes(self) -> list[ForkSandbox]:
        """The forks that live now."""
        return list(self._sandboxes)

    async def settled(self) -> None:
        """Wait for the fork servers that are being started."""
        await asyncio.gather(*(lane.settled() for lane in self._lanes.values()))

    async def check(self) -> None:
        await self.provider.check()

    async def prepare(self, env: Env) -> Prepared:
        """Also raises `ConfigError` when the env can't be forked here."""
        if self.isolation is not None:
            env = replace(env, settings=replace(env.settings, isolation=self.isolation))
        prepared = await self.provider.prepare(env)
        if _forks(env):
            await self._on_ground(env).launch(prepared)
        key = hashlib.sha256(f"{env.settings.isolation} {prepared.key}".encode()).hexdigest()
        return replace(prepared, key=key)

    async def start(self, spec: SandboxSpec) -> Sandbox:
        if not _forks(spec.prepared.env):
            return await self.provider.start(spec)
        starting = asyncio.create_task(self._start(spec), name=f"fork for episode {spec.episode}")
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            starting.cancel()
            while not starting.done():
                try:
                    await asyncio.wait({starting})
                except asyncio.CancelledError:
                    continue  # told twice; it is at its end already
            if not starting.cancelled() and starting.exception() is None:
                await starting.result().stop(grace=0)
            raise

    async def reap(self) -> int:
        await asyncio.to_thread(remove_folders_of_the_dead)
        await asyncio.to_thread(remove_journals_of_the_dead)
        await asyncio.to_thread(temporary.remove_folders_of_the_dead)
        return await self.provider.reap()

    async def aclose(self) -> None:
        await self.end_forks()
        await self.provider.aclose()

    async def end_forks(self) -> None:
        """Close it, and leave the provider open."""
        self._closed = True
        await asyncio.gather(*(sandbox.stop(grace=0) for sandbox in list(self._sandboxes)))
        await asyncio.gather(*(lane.aclose() for lane in self._lanes.values()))

    async def _start(self, spec: SandboxSpec) -> ForkSandbox:
        lane = await self._lane(spec.prepared)
        for tries_left in reversed(range(_TRIES)):
            if self._closed:
                raise EpisodeFailure(FailureKind.SERVER_SHUTDOWN, "the provider was closed")
            host = await lane.room()
            try:
                return await self._fork(lane, host, spec)
            except ConnectionError as error:
                if not tries_left:
                    raise EpisodeFailure(
                        FailureKind.SANDBOX_LOST, f"env {spec.prepared.env.name!r}: {error}, again and again"
                    ) from error
        raise AssertionError("unreachable")

    async def _fork(self, lane: Lane, host: ForkHost, spec: SandboxSpec) -> ForkSandbox:
        """Raises ConnectionError when the server has ended."""
        env = spec.prepared.env
        own, secrets = resolve_variables(env.settings.env, env_name=env.name)
        slot = host.ground.slot(host, uuid.uuid4().hex)
        host.forks += 1
        limits = host.ground.limits(spec.prepared, separate=slot.uid is not None)
        try:
            host.logs(slot).folder.mkdir()
            command = ForkCommand(
                argv=(host.launch.interpreter, *host.launch.options, *host.launch.words),
                env={**variables(spec.prepared, slot), **own, **spec.env_vars},
                cwd=".",
                data_limit=limits["data"],
                process_limit=limits["nproc"],
                file_limit=OPEN_FILES,
                timeout=spec.max_life,
                log=f"{host.ground.control(host.folder)}/logs/{slot.id}/{LOG_NAME}",
                log_limit=LOG_LIMIT,
                remove=(slot.folder,),
                slot=slot,
                serve=True,
            )
            kept = await host.keepers.keep(command)
        except BaseException as error:
            host.ground.give_back(slot)
            lane.leave(host)
            shutil.rmtree(host.logs(slot).folder, ignore_errors=True)
            if isinstance(error, OSError) and (host.gone.done() or isinstance(error, ConnectionError)):
                host.retire("it has ended")
                raise ConnectionResetError(f"its fork server ended: {error}") from error
            if isinstance(error, OSError):
                raise storage_failure(error, f"env {env.name!r} can't be forked", FailureKind.DEPLOY_FAILED) from error
            raise

        def forget(sandbox: ForkSandbox) -> None:
            self._sandboxes.discard(sandbox)
            host.ground.give_back(slot)
            lane.leave(host)

        sandbox = ForkSandbox(host, slot, kept, command, secrets, forget)
        self._sandboxes.add(sandbox)
        log.info(
            "sandbox %s: env %s for episode %s, pid %d, fork of server %s",
            slot.id,
            env.name,
            spec.episode,
            kept.pid,
            host.id,
        )
        return sandbox

    async def _lane(self, prepared: Prepared) -> Lane:
        if prepared.key not in self._lanes:
            ground = self._on_ground(prepared.env)
            launch = await ground.launch(prepared)
            self._lanes.setdefault(prepared.key, Lane(self, ground, prepared, launch))
        return self._lanes[prepared.key]

    def _on_ground(self, env: Env) -> Ground:
        if self._ground is None:
            raise ConfigError(f'env {env.name!r}: isolation "fork" is not available in the {self.name} sandbox')
        return self._ground


class Lane:
    """The fork servers of one kind of env."""

    def __init__(self, owner: Isolating, ground: Ground, prepared: Prepared, launch: Launch) -> None:
        self._owner = owner
        self._ground = ground
        self._prepared = prepared
        self._launch = launch
        self.hosts: list[ForkHost] = []
        self._starting: asyncio.Task[None] | None = None
        self._ending: set[asyncio.Task[None]] = set()

    async def room(self) -> ForkHost:
        """A server with room for a fork, which is taken with that. Whoever takes it has to `leave` it.

        Raises:
            EpisodeFailure: none could be started.
        """
        while True:
            usable = [host for host in self.hosts if self._takes(host) and host.used < self._owner.episodes]
            if usable:
                host = max(usable, key=lambda host: host.used)  # the fuller ones, so that the others can go
                host.used += 1
                self._look_ahead()
                return host
            starting = self._start()
            await asyncio.wait({starting})
            if starting.cancelled():
                raise EpisodeFailure(FailureKind.SERVER_SHUTDOWN, "the provider was closed")
            starting.result()

    def leave(self, host: ForkHost) -> None:
        """A fork is gone."""
        host.used -= 1
        if host.used == 0 and (host.retired or self._is_spare(host)):
            self._end(host)

    async def settled(self) -> None:
        if self._starting is not None:
            await asyncio.wait({self._starting})

    async def aclose(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
        await self.settled()
        for host in list(self.hosts):
            self._end(host)
        if self._ending:
            await asyncio.wait(self._ending)

    def _takes(self, host: ForkHost) -> bool:
        return not host.retired and host.forks < self._owner.forks

    def _look_ahead(self) -> None:
        """Start the successor of a server that will soon be replaced, so that no episode waits for it."""
        soon = self._owner.forks - self._owner.episodes
        if all(host.old or host.retired or host.forks >= soon for host in self.hosts):
            self._start()
        for host in self.hosts:
            if host.forks >= self._owner.forks:
                host.retire(f"it has made {host.forks}")

    def _start(self) -> asyncio.Task[None]:
        if self._starting is None or self._starting.done():
            self._starting = asyncio.create_task(self._start_host(), name=f"fork server for {self._prepared.env.name}")
            self._starting.add_done_callback(_retrieved)
        return self._starting

    async def _start_host(self) -> None:
        host = await ForkHost.start(self._ground, self._prepared, self._launch, self._owner.episodes)
        log.info("fork server %s: ready, for env %s", host.id, self._prepared.env.name)
        for older in self.hosts:
            if older.old:
                older.retire("it is old")
        self.hosts.append(host)
        host.gone.add_done_callback(lambda _: self._end_if_empty(host))
        for older in list(self.hosts):
            self._end_if_empty(older)

    def _is_spare(self, host: ForkHost) -> bool:
        room = [self._owner.episodes - other.used for other in self.hosts if other is not host and self._takes(other)]
        return sum(room) >= self._owner.episodes

    def _end_if_empty(self, host: ForkHost) -> None:
        if host.retired and host.used == 0:
            self._end(host)

    def _end(self, host: ForkHost) -> None:
        if host not in self.hosts:
            return
        self.hosts.remove(host)
        ending = asyncio.create_task(host.stop(), name=f"stop fork server {host.id}")
        self._ending.add(ending)
        ending.add_done_callback(self._ending.discard)
        ending.add_done_callback(_retrieved)


def _forks(env: Env) -> bool:
    return env.settings.isolation == "fork" and env.type != BARE


def _ground(provider: SandboxProvider) -> Ground | None:
    if isinstance(provider, ProcessProvider):
        return ProcessGround(provider)
    if provider.name == "docker":
        made: Any = provider
        return DockerGround(made)
    return None


def _retrieved(task: asyncio.Task[None]) -> None:
    """Whoever needed it was told; nobody has to ask again."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("%s: %s", task.get_name(), error)
