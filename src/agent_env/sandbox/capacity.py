"""How many sandboxes may run, and how many may start at once.

A *place* is held from before the deploy until the teardown is over, so what is counted is what the machine carries.
Who finds none free waits in order of arrival. *Starting* is capped apart: parallel starts don't scale past the cores.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from agent_env.errors import ConfigError, EpisodeFailure, FailureKind


class Place:
    """The right to run one episode's sandboxes. Release it when their teardown is over."""

    def __init__(self, capacity: Capacity) -> None:
        self._capacity: Capacity | None = capacity

    def release(self) -> None:
        """Give the place back. A second call does nothing."""
        capacity, self._capacity = self._capacity, None
        if capacity is not None:
            capacity._give_back()

    async def __aenter__(self) -> Place:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.release()


class Capacity:
    """Places and starts of one event loop.

    Args:
        places: sandboxes that may run at once.
        starting: starts at once; the core count by default.
        queue: who may wait for a place; one more is refused.
    """

    def __init__(self, places: int, starting: int | None = None, queue: int = 1024) -> None:
        starting = starting if starting is not None else os.cpu_count() or 1
        if places < 1 or starting < 1 or queue < 0:
            raise ConfigError(f"capacity needs places >= 1, starting >= 1, queue >= 0: {places}, {starting}, {queue}")
        self.places = places
        self.starting_limit = starting
        self.queue_limit = queue
        self._running = 0
        self._starting = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._starts = asyncio.Semaphore(starting)

    async def place(self) -> Place:
        """Wait for a place, first come first served.

        Raises:
            EpisodeFailure: CAPACITY, the queue is full.
        """
        if self._running < self.places:
            self._running += 1
            return Place(self)
        if len(self._waiting) >= self.queue_limit:
            raise EpisodeFailure(
                FailureKind.CAPACITY,
                f"all {self.places} places are taken and {len(self._waiting)} wait already (limit {self.queue_limit})",
            )
        granted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled():
                self._give_back()
            elif granted in self._waiting:
                self._waiting.remove(granted)
            raise
        return Place(self)

    @asynccontextmanager
    async def starting(self) -> AsyncIterator[None]:
        """Hold one of the starts, in order of arrival."""
        async with self._starts:
            self._starting += 1
            try:
                yield
            finally:
                self._starting -= 1

    def snapshot(self) -> dict[str, int]:
        """The numbers of now, as `/capacity` shows them."""
        return {
            "places": self.places,
            "running": self._running,
            "free": self.places - self._running,
            "queued": len(self._waiting),
            "queue_limit": self.queue_limit,
            "starting": self._starting,
            "starting_limit": self.starting_limit,
        }

    def _give_back(self) -> None:
        # The place goes straight to the longest waiting, so nobody who comes now can overtake.
        while self._waiting:
            granted = self._waiting.popleft()
            if not granted.done():
                granted.set_result(None)
                return
        self._running -= 1
