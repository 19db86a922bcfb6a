"""What became of the sessions: the counts that a server reports while it runs and when it ends.

Every seeded session is counted once more when it ends: verified, masked, reclaimed or closed. So
`seeded == verified + masked + reclaimed + closed + open` holds at every moment.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

from agent_env.errors import FailureKind

Json = Any
log = logging.getLogger("agent_env.serve")

WINDOW = 100
ALARM = 10
"""Masked rollouts among the last WINDOW above which an ERROR line is due."""
_MOST_TASKS = 10_000


class Tally:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.seeded = 0
        self.verified = 0
        self.reclaimed = 0
        self.closed = 0
        self.refused = 0
        self.abandoned = 0
        self.unknown = 0
        self.longest_wait = 0.0
        self.masked: Counter[FailureKind] = Counter()
        self.masked_tasks: Counter[str] = Counter()
        self.masked_tools: Counter[str] = Counter()
        self._last: deque[FailureKind | None] = deque(maxlen=WINDOW)
        self._since_alarm = WINDOW
        self._ends: deque[float] = deque(maxlen=WINDOW)

    def waited(self, seconds: float) -> None:
        self.longest_wait = max(self.longest_wait, seconds)

    def measured(self) -> None:
        self.verified += 1
        self._verdict(None)

    def mask(self, kind: FailureKind, task: str, tool: str | None) -> None:
        self.masked[kind] += 1
        if task in self.masked_tasks or len(self.masked_tasks) < _MOST_TASKS:
            self.masked_tasks[task] += 1
        if tool is not None:
            self.masked_tools[tool] += 1
        self._verdict(kind)

    def ended(self) -> None:
        """An episode gave its place back."""
        self._ends.append(self._clock())

    def retry_after(self, ahead: int) -> int:
        """Whole seconds until a place is likely, `ahead` sessions waiting for one: from the ends seen of late."""
        if len(self._ends) < 2:
            return 5
        pace = (self._clock() - self._ends[0]) / len(self._ends)
        return min(max(round(pace * (ahead + 1)), 1), 120)

    def summary(self, open_sessions: int) -> str:
        kinds = ", ".join(f"{kind.value} {count}" for kind, count in self.masked.most_common())
        masked = f"{self.masked.total()} ({kinds})" if kinds else "0"
        odd = [f", {count} {what}" for count, what in self._oddities() if count]
        return (
            f"seeded {self.seeded}, verified {self.verified}, masked {masked}, "
            f"reclaimed {self.reclaimed}, closed {self.closed}, refused {self.refused}, "
            f"open at the end {open_sessions}, longest wait {self.longest_wait:.1f} s" + "".join(odd)
        )

    def _oddities(self) -> list[tuple[int, str]]:
        return [(self.abandoned, "left before their seed's answer"), (self.unknown, "verified without a session")]

    def report(self) -> dict[str, Json]:
        return {
            "seeded": self.seeded,
            "verified": self.verified,
            "masked": {kind.value: count for kind, count in self.masked.items()},
            "masked_tasks": dict(self.masked_tasks.most_common(50)),
            "masked_tools": dict(self.masked_tools.most_common(50)),
            "reclaimed": self.reclaimed,
            "closed": self.closed,
            "refused": self.refused,
            "abandoned_seeds": self.abandoned,
            "unknown_sessions": self.unknown,
            "longest_wait_s": round(self.longest_wait, 3),
        }

    def _verdict(self, kind: FailureKind | None) -> None:
        self._last.append(kind)
        self._since_alarm += 1
        if kind is None:
            return
        kinds = Counter(seen for seen in self._last if seen is not None)
        if kinds.total() > ALARM and self._since_alarm >= WINDOW:
            self._since_alarm = 0
            leading, count = kinds.most_common(1)[0]
            log.error(
                "masked %d of the last %d rollouts, most often %s (%d): %s",
                kinds.total(),
                len(self._last),
                leading.value,
                count,
                leading.remedy,
            )
