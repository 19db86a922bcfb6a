"""What the environment failed of late, and the tasks that it fails again and again."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from agent_env.errors import FailureKind

IN_A_ROW = 5
"""failures of one kind after which a task is told of"""
LAST = 50
"""failures that are shown"""
RECENT = 100
"""outcomes that the health of now is judged by"""
LINES = 10
"""ERROR lines for one kind in `_MINUTE`: an outage fails many tasks at once"""
_MINUTE = 60.0
_MOST_TASKS = 10_000


@dataclass(frozen=True, slots=True)
class Failure:
    at: float
    """Unix seconds"""
    task: str | None
    """None: nobody knows, since no session came with the request"""
    kind: FailureKind
    reason: str
    tool: str | None
    who: str | None
    """the session's or the episode's id, as the log names it"""


@dataclass(slots=True)
class Streak:
    """A task's failures since it last succeeded."""

    kind: FailureKind
    """of the last ones"""
    in_a_row: int = 0
    """the last failures that are of this kind"""
    failures: int = 0
    since: float = 0.0
    """Unix seconds of the first"""
    reason: str = ""
    listed: bool = False
    """from the fifth of one kind in a row on, until a success"""


class Troubles:
    def __init__(self, log: logging.Logger, clock: Callable[[], float]) -> None:
        """`clock`: Unix seconds."""
        self.last: deque[Failure] = deque(maxlen=LAST)
        self.recent: deque[FailureKind | None] = deque(maxlen=RECENT)
        """the kinds of the last outcomes; None for a measurement"""
        self._log = log
        self._clock = clock
        self._streaks: dict[str, Streak] = {}
        self._lines: dict[FailureKind, deque[float]] = {}

    def succeeded(self, task: str | None) -> None:
        self.recent.append(None)
        streak = self._streaks.pop(task, None) if self._streaks and task is not None else None
        if streak is not None and streak.listed:
            self._log.info("task %s succeeded again, after %d failures", task, streak.failures)

    def failed(self, failure: Failure) -> None:
        self.recent.append(failure.kind)
        self.last.append(failure)
        if failure.task is None or failure.kind is FailureKind.SESSION_EXPIRED:
            return
        streak = self._streaks.get(failure.task)
        if streak is None:
            if len(self._streaks) >= _MOST_TASKS:
                self._drop_one()
            streak = self._streaks[failure.task] = Streak(failure.kind, since=failure.at)
        streak.in_a_row = streak.in_a_row + 1 if streak.kind is failure.kind else 1
        streak.failures += 1
        streak.kind, streak.reason = failure.kind, failure.reason
        if streak.in_a_row == IN_A_ROW and not streak.listed:
            streak.listed = True
            self._tell(failure)

    def listed(self) -> dict[str, Streak]:
        """The tasks that failed again and again and did not succeed since; those with the most failures first."""
        found = [(task, streak) for task, streak in self._streaks.items() if streak.listed]
        return dict(sorted(found, key=lambda pair: -pair[1].failures))

    def _tell(self, failure: Failure) -> None:
        now = self._clock()
        lines = self._lines.setdefault(failure.kind, deque(maxlen=LINES))
        if len(lines) == LINES and 0 <= now - lines[0] < _MINUTE:  # a clock that was set back counts as a new minute
            return
        lines.append(now)
        more = "; other tasks that fail for it are on /status" if len(lines) == LINES else ""
        self._log.error(
            "task %s failed %d times in a row, each time with %s: %s (last reason: %s)%s",
            failure.task,
            IN_A_ROW,
            failure.kind.value,
            failure.kind.remedy,
            failure.reason,
            more,
        )

    def _drop_one(self) -> None:
        """The oldest that nobody was told of, else the oldest."""
        oldest = next((task for task, streak in self._streaks.items() if not streak.listed), None)
        del self._streaks[oldest if oldest is not None else next(iter(self._streaks))]
