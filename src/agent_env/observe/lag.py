"""How late the event loop is: a loop that is kept busy answers everybody late, and no env is to blame for it."""

from __future__ import annotations

import asyncio

EVERY = 0.25
"""seconds between two looks"""
WINDOW = 60.0
"""seconds that the largest lag is remembered for, at least; at most twice as long"""


class LoopLag:
    """Looks how late its own timer rings. `stop` it before the loop ends."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.last = 0.0
        self._largest = self._before = 0.0
        self._since = self._loop.time()
        self._timer = self._loop.call_later(EVERY, self._look, self._loop.time() + EVERY)

    @property
    def largest(self) -> float:
        """The most of the last minute, in seconds."""
        return max(self._largest, self._before)

    def stop(self) -> None:
        self._timer.cancel()

    def _look(self, due: float) -> None:
        now = self._loop.time()
        self.last = max(0.0, now - due)
        if now - self._since > WINDOW:
            self._since, self._before, self._largest = now, self._largest, 0.0
        self._largest = max(self._largest, self.last)
        self._timer = self._loop.call_at(now + EVERY, self._look, now + EVERY)
