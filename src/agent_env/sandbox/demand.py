"""How many spares are worth keeping: as many as were taken while one was being replaced."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from agent_env.errors import ConfigError

REMEMBERED = 120.0
"""seconds after which a burst is forgotten"""
AUTO_CEILING = 8
_FIRST_GUESS = 1.0
"""seconds that a start takes before any was seen"""
_WEIGHT = 0.3
"""of the newest start in the mean"""


@dataclass(frozen=True, slots=True)
class Warm:
    """Spares of each kind of env: at least `floor`, at most `most`; and `ceiling` in all (None: `most` of each)."""

    floor: int = 0
    most: int = 0
    ceiling: int | None = None

    @classmethod
    def parse(cls, warm: int | str, places: int) -> Warm:
        """`auto` follows the demand, up to 8 and never above the places; a number is that many, always.

        Raises:
            ConfigError: neither.
        """
        if warm == "auto":
            ceiling = min(places, AUTO_CEILING)
            return cls(floor=1, most=ceiling, ceiling=ceiling)
        try:
            number = int(warm)
        except ValueError:
            number = -1
        if number < 0:
            raise ConfigError(f"warm {warm!r}: must be auto, or a number of spares for each env, 0 for none")
        return cls(floor=number, most=number)

    def in_all(self, kinds: int) -> int:
        return self.most * kinds if self.ceiling is None else self.ceiling


class Demand:
    """The takes of one kind of env. Times are seconds of one monotonic clock."""

    def __init__(self) -> None:
        self.start_s = _FIRST_GUESS
        """mean length of a start"""
        self.last = float("-inf")
        self._takes: deque[float] = deque()
        self._peaks: deque[tuple[float, int]] = deque()
        """(when, how many within one horizon), each with fewer than the one before: the others can't count any more"""

    def took(self, now: float) -> None:
        self.last = now
        self._takes.append(now)
        while self._takes[0] < now - self.horizon:
            self._takes.popleft()
        while self._peaks and self._peaks[-1][1] <= len(self._takes):
            self._peaks.pop()
        self._peaks.append((now, len(self._takes)))

    def started(self, seconds: float) -> None:
        self.start_s += _WEIGHT * (seconds - self.start_s)

    @property
    def horizon(self) -> float:
        """Seconds until a spare that is taken now has been replaced, with room for others that start meanwhile."""
        return max(1.0, 2 * self.start_s)

    def spares(self, now: float) -> int:
        """The most that were taken within one horizon of late."""
        while self._peaks and self._peaks[0][0] < now - REMEMBERED:
            self._peaks.popleft()
        return self._peaks[0][1] if self._peaks else 0
