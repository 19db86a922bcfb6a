"""What all episodes of a process share: the provider, the places, the graders, the deadlines."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from math import inf
from typing import TYPE_CHECKING

from agent_env.bundle import Env
from agent_env.env.opening import OpenEnv, open_env
from agent_env.errors import ConfigError, EpisodeFailure, FailureKind
from agent_env.grading.judge import Judge
from agent_env.grading.pool import GraderPool
from agent_env.grading.pools import GraderPools
from agent_env.limits import Deadlines
from agent_env.sandbox.base import Prepared, Sandbox, SandboxProvider
from agent_env.sandbox.capacity import Capacity
from agent_env.sandbox.demand import Warm
from agent_env.sandbox.fork import Isolating
from agent_env.sandbox.pool import WarmPool
from agent_env.steps.deploy import DEPLOYABLE

if TYPE_CHECKING:
    from agent_env.episode.plan import TaskPlan
    from agent_env.episode.run import Episode

log = logging.getLogger(__name__)

_CHECK_EVERY = 5.0
"""seconds that a provider's health is taken as known"""
_TRUSTED_FOR = 30.0
"""seconds after which whoever wants to know has to wait for the answer"""


class Runtime:
    """Owns everything below the episodes. Close it with `aclose()`; it waits for running teardowns."""

    def __init__(
        self,
        provider: SandboxProvider,
        *,
        capacity: Capacity | None = None,
        grader: GraderPool | None = None,
        judge: Judge | None = None,
        deadlines: Deadlines | None = None,
        prepared: Mapping[str, Prepared] | None = None,
        close_provider: bool = True,
        warm: Warm | None = None,
    ) -> None:
        """`provider`: a bare one too gives each env the isolation that its agent-env.toml says. `warm`: spares to keep
        from `keep_warm` on; none by default."""
        self.provider = provider if isinstance(provider, Isolating) else Isolating(provider)
        self.capacity = capacity or Capacity(8)
        self.pool: WarmPool[OpenEnv] = WarmPool(self.provider, self.capacity, self._open, warm)
        self.graders = GraderPools(grader)
        self.judge = judge or Judge()
        self.deadlines = deadlines or Deadlines()
        self.prepared: dict[str, Prepared] = dict(prepared or {})
        """by env digest"""
        self._episodes: set[Episode] = set()
        self._checked = -inf
        self._asking: asyncio.Task[None] | None = None
        self._close_provider = close_provider
        self._close_forks = self.provider is not provider

    @property
    def grader(self) -> GraderPool:
        """The pool of graders that need no packages of their own."""
        return self.graders.default

    async def prepare_tasks(self, plans: Iterable[TaskPlan]) -> None:
        """`prepare` for everything that these tasks need.

        Raises:
            ConfigError: a task needs a judge, and none is set; or as `prepare`.
            EpisodeFailure: as `prepare`.
        """
        plans = list(plans)
        for plan in plans:
            for step, model in plan.judged:
                if why := model.judge_problem(self.judge):
                    raise ConfigError(f"{plan.task.source}: step {step.id!r}: {why}")
        await self.prepare({env.digest: env for plan in plans for env in plan.envs}.values())

    async def prepare(self, envs: Iterable[Env]) -> None:
        """Build what the envs and the graders need.

        Raises:
            ConfigError: an env's settings are wrong.
            EpisodeFailure: the provider is away, or an env can't be built; the reason names the env.
        """
        envs = list(envs)
        await self.provider.check()
        for env in envs:
            if env.digest not in self.prepared:
                log.info("preparing env %s (%s sandbox)", env.name, self.provider.name)
                self.prepared[env.digest] = await self.provider.prepare(env)
        await self.graders.prepare(env for env in envs if env.type == DEPLOYABLE)

    def keep_warm(self) -> None:
        """Start sandboxes ahead of need, of every env that is prepared by now."""
        self.pool.begin(prepared for prepared in self.prepared.values() if prepared.env.type == DEPLOYABLE)

    async def _open(self, sandbox: Sandbox, env: Env, ahead: bool) -> OpenEnv:
        timeout = min(env.settings.start_timeout or inf, self.deadlines.deploy)
        return await open_env(sandbox, env, timeout=timeout, ahead=ahead)

    async def check_provider(self, *, soon: bool = False) -> None:
        """Raises `EpisodeFailure` when the provider can't start anything; asks it at most every few seconds.

        `soon`: nobody waits for the answer as long as the last one was good; a bad one counts from the next check on.
        """
        age = time.monotonic() - self._checked
        if age < _CHECK_EVERY:
            return
        if not soon or age >= _TRUSTED_FOR:
            await self._ask_provider()
        elif self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_provider(), name="check of the sandbox provider")
            self._asking.add_done_callback(_retrieved)

    async def _ask_provider(self) -> None:
        asked = time.monotonic()
        try:
            await self.provider.check()
        except EpisodeFailure:
            self._checked = -inf
            raise
        self._checked = asked

    def own(self, episode: Episode) -> None:
        """Take an episode as ours to wait for."""
        self._episodes.add(episode)

    def disown(self, episode: Episode) -> None:
        self._episodes.discard(episode)

    async def aclose(self) -> None:
        """Abandon what still runs, wait for every teardown, then release graders and provider."""
        episodes = list(self._episodes)
        for episode in episodes:
            episode.begin_abandon("the server was stopped", FailureKind.SERVER_SHUTDOWN)
        await asyncio.gather(*(episode.closed() for episode in episodes))
        if self._asking is not None:
            await asyncio.wait({self._asking})
        await self.pool.aclose()
        await self.graders.aclose()
        await self.judge.aclose()
        if self._close_provider:
            await self.provider.aclose()
        elif self._close_forks:
            await self.provider.end_forks()


def _retrieved(task: asyncio.Task[None]) -> None:
    """The next check asks again, and tells whoever it is for."""
    if not task.cancelled() and (error := task.exception()) is not None:
        log.warning("the sandbox provider: %s", error)


def failure_of(error: BaseException) -> EpisodeFailure | None:
    """The environment failure inside an exception or a group of them."""
    if isinstance(error, EpisodeFailure):
        return error
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := failure_of(inner))), None)
    return None
