"""What all sessions of one OpenEnv server share: tasks, runtime, tally."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any

from agent_env.episode import Episode, EpisodeSpec, Runtime
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.openenv.catalog import Catalog, Entry

log = logging.getLogger(__name__)

_LEFT = (FailureKind.CLIENT_GONE, FailureKind.CANCELLED)

_REAP_EVERY = 60.0
"""seconds between looks for sandboxes whose owner is gone"""

_RECENT = 50
"""episodes that the mean length is taken over"""


class Hub:
    """Starts episodes and counts how they end. `open` on the server's loop before the first session."""

    def __init__(
        self, catalog: Catalog, make_runtime: Callable[[], Awaitable[Runtime]], turn_timeout: float | None
    ) -> None:
        self.catalog = catalog
        self.started = 0
        self.scored = 0
        self.failed: Counter[FailureKind] = Counter()
        self._make_runtime = make_runtime
        self._turn_timeout = turn_timeout
        self._runtime: Runtime | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ends: set[asyncio.Task[None]] = set()
        self._reaper: asyncio.Task[None] | None = None
        self._recent: deque[float] = deque(maxlen=_RECENT)

    async def open(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._runtime = await self._make_runtime()
        await self._reap(self._runtime)
        self._runtime.keep_warm()
        self._reaper = asyncio.create_task(self._keep_reaping(self._runtime))

    async def _keep_reaping(self, runtime: Runtime) -> None:
        while True:
            await asyncio.sleep(_REAP_EVERY)
            await self._reap(runtime)

    async def _reap(self, runtime: Runtime) -> None:
        """Remove what dead owners left; a provider that is away now is asked again next time."""
        try:
            found = await runtime.provider.reap()
        except Exception as error:
            log.warning("reaping failed: %s", error)
        else:
            if found:
                log.info("reaped %d sandboxes of owners that are gone", found)

    async def aclose(self) -> None:
        """Abandon every episode, wait for the teardowns, say what happened."""
        if self._reaper is not None:
            self._reaper.cancel()
            await asyncio.wait({self._reaper})
        if self._runtime is not None:
            await self._runtime.aclose()
            if self._ends:
                await asyncio.wait(self._ends)
        log.info("%s", self.summary())

    def summary(self) -> str:
        """How many episodes were started, scored, failed by kind, and abandoned by their client."""
        kinds = ", ".join(f"{count} {kind.value}" for kind, count in sorted(self.failed.items()) if kind not in _LEFT)
        left = sum(self.failed[kind] for kind in _LEFT)
        failed = sum(self.failed.values()) - left
        return (
            f"episodes: {self.started} started, {self.scored} scored, {left} abandoned, {failed} failed"
            f"{f' ({kinds})' if kinds else ''}"
        )

    @property
    def runtime(self) -> Runtime:
        if self._runtime is None:
            raise EpisodeFailure(FailureKind.SERVER_SHUTDOWN, "the server is not running")
        return self._runtime

    async def start(self, entry: Entry) -> Episode:
        spec = EpisodeSpec(entry.plan, turn_timeout=self._turn_timeout)
        episode = await spec.start(runtime=self.runtime)
        self.started += 1
        log.info("episode %s: task %s started", episode.id, entry.plan.task.name)
        end = asyncio.create_task(self._count(episode, entry))
        self._ends.add(end)
        end.add_done_callback(self._ends.discard)
        return episode

    async def _count(self, episode: Episode, entry: Entry) -> None:
        try:
            scores = await episode.scores()
        except EpisodeFailure as failure:
            self.failed[failure.kind] += 1
        else:
            self.scored += 1
            log.info("episode %s: task %s scored %s", episode.id, entry.plan.task.name, scores)
        await episode.closed()
        self._recent.append(sum(seconds for phase, seconds in episode.timings.items() if phase != "wait_s"))

    def reward(self, entry: Entry, scores: dict[str, float]) -> float | None:
        return self.catalog.reward(entry.plan, scores)

    def call_soon(self, function: Callable[..., None], *args: Any) -> None:
        """Run on the server's loop, from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)

    def capacity(self) -> dict[str, Any]:
        """Places and queue: see `Capacity.snapshot`; `mean_episode_s` over the last episodes, None before any."""
        mean = round(sum(self._recent) / len(self._recent), 3) if self._recent else None
        return {**self.runtime.capacity.snapshot(), "mean_episode_s": mean}

    async def health(self) -> dict[str, Any]:
        """`status` is unhealthy, with the reason, when no sandbox can start now."""
        try:
            await self.runtime.check_provider()
        except EpisodeFailure as failure:
            return {"status": "unhealthy", "sandbox": self.runtime.provider.name, "reason": str(failure)}
        return {"status": "healthy", "sandbox": self.runtime.provider.name}
