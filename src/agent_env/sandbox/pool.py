"""The warm pool: sandboxes that were started, and answered, before anybody needed them.

`take` gives an episode a spare that still answers, else one that is being started, else it starts one. A spare serves
one episode and is then removed like any other sandbox. Spares count against memory and against STARTING, not against
RUNNING: there are never more sandboxes than the places' and the ceiling's together, those being removed included.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

from agent_env.bundle.model import Env
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.base import Prepared, Sandbox, SandboxProvider, SandboxSpec
from agent_env.sandbox.capacity import Capacity
from agent_env.sandbox.demand import Demand, Warm
from agent_env.sandbox.journal import Journal
from agent_env.sandbox.limits import DEFAULT_MEMORY

log = logging.getLogger(__name__)

LONGEST_LIFE = 900.0
"""seconds after which a spare that nobody took is replaced"""
STOP_WITHIN = 120.0
"""seconds for removing a spare"""
_LONGEST_PAUSE = 60.0
"""seconds between tries to start spares of an env that fails to start"""
SPARE = "spare"
"""in place of an episode's id"""


class Opened(Protocol):
    """What was found out about a sandbox that answers, and perhaps a connection to it."""

    async def answers(self) -> bool:
        """Does it still? Takes a second at most."""
        ...

    async def aclose(self) -> None: ...


Found = TypeVar("Found", bound=Opened)
Open = Callable[[Sandbox, Env, bool], Awaitable[Found]]


@dataclass(frozen=True, slots=True)
class Ready(Generic[Found]):
    """A sandbox that answers."""

    sandbox: Sandbox
    opened: Found
    since: float = 0.0


@dataclass(eq=False, slots=True)
class _Start(Generic[Found]):
    task: asyncio.Task[Ready[Found]]
    claimed: bool = False


@dataclass(eq=False, slots=True)
class _Shelf(Generic[Found]):
    """The spares of one kind of env."""

    prepared: Prepared
    ready: deque[Ready[Found]] = field(default_factory=deque)
    starts: list[_Start[Found]] = field(default_factory=list)
    asked: int = 0
    """spares that are being asked whether they still answer: ours until they did"""
    demand: Demand = field(default_factory=Demand)
    failures: int = 0
    not_before: float = 0.0

    @property
    def unclaimed(self) -> list[_Start[Found]]:
        return [start for start in self.starts if not start.claimed]

    @property
    def kept(self) -> int:
        return len(self.ready) + len(self.unclaimed)


class WarmPool(Generic[Found]):
    """Hands out sandboxes of one provider. Without `warm` it keeps none and starts each when it is asked for.

    Args:
        open: waits until a sandbox answers, and is told whether that is ahead of need; raises `EpisodeFailure` when it
            doesn't.
    """

    def __init__(
        self, provider: SandboxProvider, capacity: Capacity, open: Open[Found], warm: Warm | None = None
    ) -> None:
        self._provider = provider
        self._capacity = capacity
        self._open = open
        self._warm = warm or Warm()
        self._shelves: dict[str, _Shelf[Found]] = {}
        self._journal = Journal()
        self._wake = asyncio.Event()
        self._tending: asyncio.Task[None] | None = None
        self._discards: set[asyncio.Task[None]] = set()

    def begin(self, kinds: Iterable[Prepared]) -> None:
        """Start keeping spares of these."""
        for prepared in kinds:
            self._shelf(prepared)
        if self._warm.most and self._tending is None:
            self._tending = asyncio.create_task(self._tend(), name="warm pool")

    @property
    def spares(self) -> int:
        """Those that could be taken now."""
        return sum(len(shelf.ready) for shelf in self._shelves.values())

    async def take(self, prepared: Prepared, episode: str, own: Callable[[Sandbox], None]) -> Ready[Found]:
        """A sandbox that answers. `own` gets it as soon as it is the episode's to stop, whatever comes then.

        Raises:
            EpisodeFailure: it could not be started, or did not answer.
        """
        shelf = self._shelf(prepared)
        shelf.demand.took(time.monotonic())
        try:
            while shelf.ready:
                spare = shelf.ready.popleft()
                if await self._is_fit(shelf, spare, own):
                    return self._handed_over(spare, episode)
            if shelf.unclaimed:
                return self._handed_over(await self._claim(shelf.unclaimed[0], own), episode)
            return await self._make(shelf, episode, own)
        finally:
            self._wake.set()

    async def aclose(self) -> None:
        """Remove every spare. Sandboxes that were taken are their episodes' business."""
        if self._tending is not None:
            self._tending.cancel()
            await asyncio.wait({self._tending})
        starts = [start.task for shelf in self._shelves.values() for start in shelf.starts]
        for task in starts:
            task.cancel()
        if starts:
            await asyncio.wait(starts)
        for shelf in self._shelves.values():
            while shelf.ready:
                self._discard(shelf.ready.popleft())
        while self._discards:
            await asyncio.wait(self._discards)
        self._journal.close()

    def _shelf(self, prepared: Prepared) -> _Shelf[Found]:
        return self._shelves.setdefault(prepared.key, _Shelf(prepared))

    async def _is_fit(self, shelf: _Shelf[Found], spare: Ready[Found], own: Callable[[Sandbox], None]) -> bool:
        shelf.asked += 1
        try:
            fit = await spare.opened.answers()
        except BaseException:
            own(spare.sandbox)
            await spare.opened.aclose()
            raise
        finally:
            shelf.asked -= 1
        if fit:
            own(spare.sandbox)
        else:
            log.warning("sandbox %s: a spare that does not answer any more, removing it", spare.sandbox.id)
            self._discard(spare)
        return fit

    async def _claim(self, start: _Start[Found], own: Callable[[Sandbox], None]) -> Ready[Found]:
        start.claimed = True
        self._wake.set()
        try:
            await asyncio.wait({start.task})
        except asyncio.CancelledError:
            start.task.cancel()
            await _to_end(start.task)
            if not start.task.cancelled() and start.task.exception() is None:
                own(start.task.result().sandbox)
                await start.task.result().opened.aclose()
            raise
        if start.task.cancelled():
            raise EpisodeFailure(FailureKind.SERVER_SHUTDOWN, "the server was stopped")
        spare = start.task.result()
        own(spare.sandbox)
        return spare

    def _handed_over(self, spare: Ready[Found], episode: str) -> Ready[Found]:
        log.info("sandbox %s: a spare, now for episode %s", spare.sandbox.id, episode)
        try:
            self._journal.hand_over(spare.sandbox.id, episode)
        except OSError as error:
            log.warning("the journal can't be written: %s", error)
        return spare

    async def _make(self, shelf: _Shelf[Found], episode: str, own: Callable[[Sandbox], None]) -> Ready[Found]:
        async with self._capacity.starting():
            began = time.monotonic()
            sandbox = await self._provider.start(SandboxSpec(prepared=shelf.prepared, episode=episode))
            own(sandbox)
            opened = await self._open(sandbox, shelf.prepared.env, episode == SPARE)
        now = time.monotonic()
        shelf.demand.started(now - began)
        return Ready(sandbox, opened, now)

    # --- keeping spares

    async def _tend(self) -> None:
        while True:
            self._wake.clear()
            until = self._put_right(time.monotonic())
            try:
                async with asyncio.timeout(max(0.0, until - time.monotonic())):
                    await self._wake.wait()
            except TimeoutError:
                continue

    def _put_right(self, now: float) -> float:
        """Start what is missing, remove what is too much or too old; the time to look again."""
        left = self._warm.in_all(len(self._shelves))
        look_again = now + _LONGEST_PAUSE
        missing: list[tuple[_Shelf[Found], int]] = []
        for shelf in sorted(self._shelves.values(), key=lambda shelf: -shelf.demand.last):
            wanted = min(max(self._warm.floor, min(shelf.demand.spares(now), self._warm.most)), left)
            left -= wanted
            while shelf.ready and (shelf.kept > wanted or shelf.ready[0].since < now - LONGEST_LIFE):
                self._discard(shelf.ready.popleft())
            missing.append((shelf, wanted - shelf.kept))
        for shelf, count in missing:
            if shelf.not_before > now:
                look_again = min(look_again, shelf.not_before)
                continue
            for _ in range(count):
                if not self._may_start(shelf):
                    break
                self._start(shelf)
        return look_again

    def _may_start(self, shelf: _Shelf[Found]) -> bool:
        held = sum(shelf.kept + shelf.asked for shelf in self._shelves.values()) + len(self._discards)
        under_way = sum(len(shelf.unclaimed) for shelf in self._shelves.values())
        return (
            held < self._warm.in_all(len(self._shelves))
            and under_way < self._capacity.starting_limit
            and _memory_allows(shelf.prepared.env)
        )

    def _start(self, shelf: _Shelf[Found]) -> None:
        name = f"spare of env {shelf.prepared.env.name}"
        start = _Start(asyncio.create_task(self._make_spare(shelf), name=name))
        shelf.starts.append(start)
        start.task.add_done_callback(lambda _: self._started(shelf, start))

    async def _make_spare(self, shelf: _Shelf[Found]) -> Ready[Found]:
        made: list[Sandbox] = []
        try:
            return await self._make(shelf, SPARE, made.append)
        except BaseException:
            for sandbox in made:
                await self._stop(sandbox)
            raise

    def _started(self, shelf: _Shelf[Found], start: _Start[Found]) -> None:
        shelf.starts.remove(start)
        self._wake.set()
        if start.task.cancelled():
            return
        error = start.task.exception()
        if error is None:
            shelf.failures = 0
            if not start.claimed:
                shelf.ready.append(start.task.result())
            return
        shelf.failures += 1
        pause = min(_LONGEST_PAUSE, 2.0**shelf.failures)
        shelf.not_before = time.monotonic() + pause
        log.warning("%s could not be started, the next try is in %g s: %s", start.task.get_name(), pause, error)

    def _discard(self, spare: Ready[Found]) -> None:
        task = asyncio.create_task(self._remove(spare), name=f"removal of spare {spare.sandbox.id}")
        self._discards.add(task)
        task.add_done_callback(self._discarded)

    def _discarded(self, task: asyncio.Task[None]) -> None:
        self._discards.discard(task)
        self._wake.set()

    async def _remove(self, spare: Ready[Found]) -> None:
        await spare.opened.aclose()
        await self._stop(spare.sandbox)

    async def _stop(self, sandbox: Sandbox) -> None:
        try:
            async with asyncio.timeout(STOP_WITHIN):
                await sandbox.stop(grace=0)
        except Exception:
            log.exception("sandbox %s: a spare that could not be removed; the reaper will", sandbox.id)


async def _to_end(task: asyncio.Task[Ready[Found]]) -> None:
    """Wait for a cancelled start, also when told again to stop: what comes of it must have an owner."""
    while not task.done():
        try:
            await asyncio.wait({task})
        except asyncio.CancelledError:
            continue


def _memory_allows(env: Env) -> bool:
    """Would a spare leave room for another sandbox of its kind? True where that can't be known."""
    try:
        with open("/proc/meminfo") as file:
            available = next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return True
    return available > min(env.settings.memory or DEFAULT_MEMORY, DEFAULT_MEMORY)
