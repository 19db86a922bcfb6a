"""How the tasks of a run ended: one record each, one table in all."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agent_env.tables import align

Json = Any

SHOWN = 60
"""tasks that a table lists; of more, only those that need a look"""
_NOTE = 160


class Status(StrEnum):
    PASSED = "PASSED"
    """at least one score, and none below 1"""
    BELOW_ONE = "BELOW_ONE"
    UNSCORED = "UNSCORED"
    """it ran to its end, and no step recorded a score"""
    FAILED = "FAILED"
    """a step, the policy or the model's endpoint failed: there is no measurement"""
    CANCELLED = "CANCELLED"


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one task."""

    task: str
    split: str
    index: int
    status: Status
    scores: Mapping[str, float] = field(default_factory=dict)
    """by step id"""
    kind: str | None = None
    """of the failure: a `FailureKind`, or `unsupported` (not run here), `policy`, `model` or `error`"""
    reason: str | None = None
    failed_steps: Sequence[Mapping[str, Json]] = ()
    turns: int = 0
    calls: int = 0
    seconds: float = 0.0
    timings: Mapping[str, float] = field(default_factory=dict)
    """seconds by phase"""
    episode: str | None = None
    messages: Sequence[Mapping[str, Json]] = ()
    """what was said and called, in the form of chat completions"""

    @property
    def note(self) -> str:
        """Why it failed, on one line."""
        if self.reason is None and not self.failed_steps:
            return ""
        failed = (f"step {step['step_id']!r}: {step['error']}" for step in self.failed_steps)
        text = " ".join(f"{self.kind}: {self.reason}".split()) if self.reason is not None else "; ".join(failed)
        return text if len(text) <= _NOTE else f"{text[: _NOTE - 3]}..."


def status_of(scores: Mapping[str, float], failed_steps: Sequence[object]) -> Status:
    """The status of a task that ran to its end. A failed step counts, also one that the task went on after."""
    if failed_steps:
        return Status.FAILED
    if not scores:
        return Status.UNSCORED
    return Status.PASSED if all(score >= 1 for score in scores.values()) else Status.BELOW_ONE


class Tally:
    """Of the outcomes so far, as the progress line shows them."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.done = 0
        self.counts: Counter[Status] = Counter()
        self._sums: list[float] = []

    def add(self, outcome: Outcome) -> None:
        self.done += 1
        self.counts[outcome.status] += 1
        if outcome.scores and outcome.status is not Status.FAILED:
            self._sums.append(math.fsum(outcome.scores.values()) / len(outcome.scores))

    @property
    def mean(self) -> float | None:
        return math.fsum(self._sums) / len(self._sums) if self._sums else None

    def __str__(self) -> str:
        counts = ", ".join(f"{self.counts[status]} {status}" for status in Status if self.counts[status])
        mean = "" if self.mean is None else f", mean score {self.mean:.4f}"
        return f"{self.done}/{self.total} tasks{f': {counts}' if counts else ''}{mean}"


def table(outcomes: Sequence[Outcome]) -> str:
    """One line per task in the order given; of many tasks, only those without a score."""
    shown = list(outcomes)
    if len(shown) > SHOWN:
        shown = [o for o in outcomes if o.status not in (Status.PASSED, Status.BELOW_ONE)][:SHOWN]
    rows = [["task", "status", "score", "turns", "calls", "seconds", "note"]]
    rows += [
        [o.task, o.status, _scores(o.scores), str(o.turns), str(o.calls), f"{o.seconds:.2f}", o.note] for o in shown
    ]
    text = align(rows, left=(0, 1, 6)) if shown else ""
    hidden = len(outcomes) - len(shown)
    return "\n".join(filter(None, [text, f"({hidden} more tasks are not listed)" if hidden else ""]))


def means(outcomes: Sequence[Outcome]) -> dict[str, float]:
    """The mean of each scoring step over the tasks that have its score."""
    values: dict[str, list[float]] = {}
    for outcome in outcomes:
        for step, score in outcome.scores.items():
            values.setdefault(step, []).append(score)
    return {step: math.fsum(scores) / len(scores) for step, scores in values.items()}


def _scores(scores: Mapping[str, float]) -> str:
    if len(scores) == 1:
        return f"{next(iter(scores.values())):.4f}"
    return " ".join(f"{step}={score:.4f}" for step, score in scores.items()) or "-"
