"""The clock that ends an abandoned session: it runs only while no request of the session is in flight."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class IdleClock:
    """`first` seconds from the seed's answer to the first call, then `later` from each answer to the next call."""

    def __init__(self, first: float, later: float, on_idle: Callable[[float], None]) -> None:
        self._first = first
        self._later = later
        self._on_idle = on_idle
        self._loop = asyncio.get_running_loop()
        self._in_flight = 0
        self._allowed = first
        self._since = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._stopped = False

    @contextmanager
    def request(self, *, seed: bool = False) -> Iterator[None]:
        """One request, until its answer is sent."""
        self._in_flight += 1
        if not seed and self._allowed != self._later:
            self._allowed = self._later
            self._disarm()
        try:
            yield
        finally:
            self._in_flight -= 1
            self._since = self._loop.time()
            self._arm()

    def stop(self) -> None:
        """For good. Lets go of the session, which would else live on with its clock until the next full collection."""
        self._stopped = True
        self._on_idle = _nothing
        self._disarm()

    def _arm(self) -> None:
        """One timer at a time; when it rings early, since the session was used again, it is set anew."""
        if self._timer is None and self._in_flight == 0 and not self._stopped:
            self._timer = self._loop.call_at(self._since + self._allowed, self._ring)

    def _disarm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _ring(self) -> None:
        self._timer = None
        if self._in_flight or self._stopped:
            return
        if self._loop.time() < self._since + self._allowed:
            self._arm()
        else:
            self._on_idle(self._allowed)


def _nothing(idle: float) -> None:
    """What a stopped clock does."""
