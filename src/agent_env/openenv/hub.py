"""What all sessions of one OpenEnv server share: tasks, runtime, tally."""

from __future__ import annotations

import asyncio
import itertools
import logging
import time
from collections import Counter, deque
from collections.abc import Awaitable, Callable
from typing import Any

from agent_env.episode import Episode, EpisodeSpec, Runtime
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.observe.history import History
from agent_env.observe.record import Fate, Observers, Of, Record
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
        self,
        catalog: Catalog,
        make_runtime: Callable[[], Awaitable[Runtime]],
        turn_timeout: float | None,
        observers: Observers | None = None,
    ) -> None:
        self.catalog = catalog
        self.observers = observers or Observers()
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
        self._serials = itertools.count(1)
        self._histories: dict[str, History] = {}
        """by id of episodes that run"""
        self._unrewarded: dict[str, EpisodeFailure] = {}
        """by id of episodes that have scores, but no reward"""

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

    def tally(self) -> dict[str, Any]:
        """How many episodes were started, scored, failed by the environment (by kind), abandoned by their client."""
        failed = {kind.value: count for kind, count in sorted(self.failed.items()) if kind not in _LEFT}
        left = sum(self.failed[kind] for kind in _LEFT)
        return {"started": self.started, "scored": self.scored, "failed": failed, "abandoned": left}

    def summary(self) -> str:
        """The tally as a line."""
        told = self.tally()
        kinds = ", ".join(f"{count} {kind}" for kind, count in told["failed"].items())
        return (
            f"episodes: {self.started} started, {self.scored} scored, {told['abandoned']} abandoned, "
            f"{sum(told['failed'].values())} failed{f' ({kinds})' if kinds else ''}"
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
        self._histories[episode.id] = History(self.observers, time.monotonic)
        log.info("episode %s: task %s started", episode.id, entry.plan.task.name)
        end = asyncio.create_task(self._count(episode, entry))
        self._ends.add(end)
        end.add_done_callback(self._ends.discard)
        return episode

    def history(self, episode: Episode) -> History:
        """What is noted of an episode that has just been started."""
        return self._histories[episode.id]

    async def _count(self, episode: Episode, entry: Entry) -> None:
        """Counts it once nothing is left of it, so that what is counted as running is what the machine carries."""
        serial, history = next(self._serials), self._histories[episode.id]
        scores: dict[str, float] = {}
        failure: EpisodeFailure | None = None
        try:
            scores = await episode.scores()
        except EpisodeFailure as failed:
            failure = failed
        else:
            log.info("episode %s: task %s scored %s", episode.id, entry.plan.task.name, scores)
        await episode.closed()
        del self._histories[episode.id]
        failure = self._unrewarded.pop(episode.id, failure)
        if failure is not None:
            self.failed[failure.kind] += 1
        else:
            self.scored += 1
        self._recent.append(sum(seconds for phase, seconds in episode.timings.items() if phase != "wait_s"))
        if self.observers:
            record = self._record(Record(Of.EPISODE, serial, _fate(failure), history.at), history, episode, entry)
            record.scores = scores
            if failure is not None:
                record.kind, record.reason = failure.kind, failure.reason
            self.observers.counted(record)

    def _record(self, record: Record, history: History, episode: Episode, entry: Entry) -> Record:
        """With all but what it was worth."""
        record.episode, record.seconds = episode.id, history.now()
        record.phases, record.calls, record.calls_made = history.phases(), tuple(history.calls), history.calls_made
        record.characters = history.characters
        record.prompt, record.system_prompt, record.reward = history.prompt, history.system_prompt, history.reward
        record.bundle, record.timings = self.catalog.digest, episode.timings
        record.task, record.split, record.index = entry.plan.task.name, entry.split, entry.index
        record.turns_played, record.failed_tool = episode.turns_played, episode.failed_tool
        return record

    def reward(self, episode: Episode, entry: Entry, scores: dict[str, float]) -> float | None:
        """As `Catalog.reward`; an episode without one counts as failed."""
        try:
            return self.catalog.reward(entry.plan, scores)
        except EpisodeFailure as failure:
            log.warning("episode %s of task %s has no reward: %s", episode.id, entry.plan.task.name, failure)
            if not episode.finished:
                self._unrewarded[episode.id] = failure
            raise

    def call_soon(self, function: Callable[..., None], *args: Any) -> None:
        """Run on the server's loop, from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *args)

    def capacity(self) -> dict[str, Any]:
        """As `Capacity.snapshot`, with spares, and `mean_episode_s` of the last episodes, None before any."""
        mean = round(sum(self._recent) / len(self._recent), 3) if self._recent else None
        return {**self.runtime.capacity.snapshot(), "spares": self.runtime.pool.spares, "mean_episode_s": mean}

    async def health(self) -> dict[str, Any]:
        """`status` is unhealthy, with the reason, when no sandbox can start now."""
        try:
            await self.runtime.check_provider()
        except EpisodeFailure as failure:
            return {"status": "unhealthy", "sandbox": self.runtime.provider.name, "reason": str(failure)}
        return {"status": "healthy", "sandbox": self.runtime.provider.name}


def _fate(failure: EpisodeFailure | None) -> Fate:
    if failure is None:
        return Fate.SCORED
    return Fate.ABANDONED if failure.kind in _LEFT else Fate.FAILED
