"""Counts what is told of sessions and episodes, for `/metrics` and `/status`. Nothing that is counted here goes down.

A session that was reclaimed or closed and is verified all the same is counted once more, under its verdict; `recounted`
says how many there were. So the numbers of the summary line are `counted[fate] - recounted[fate]`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter

from agent_env.errors import FailureKind
from agent_env.observe.record import Error, Fate, Record
from agent_env.observe.times import OTHER, Times
from agent_env.observe.troubles import NOBODYS, Failure, Troubles

MOST_NAMES = 10_000
"""tasks, and tools, that are counted by name"""
_MASKED = (Fate.MASKED, Fate.FAILED)
_MEASURED = (Fate.VERIFIED, Fate.SCORED)
_OF_THE_VERDICT = (FailureKind.NO_SCORE, FailureKind.SCORE_NOT_FINITE)
"""kinds that a session gets at its verify; every other was told of when the session was first counted"""
_NO_CALLS = (Error.TOOL_NOT_FOUND, Error.INVALID_ARGS, Error.NOT_MADE)
"""errors of calls that reached no tool; their names are whatever the model wrote"""


class Watcher:
    """An observer of a server's sessions or episodes. `times` names the phases that the server can know."""

    full = False

    def __init__(self, times: Times, log: logging.Logger) -> None:
        self.times = times
        self.troubles = Troubles(log, time.time)
        self.counted_as: Counter[Fate] = Counter()
        self.recounted: Counter[Fate] = Counter()
        """by what they had been counted as"""
        self.kinds: Counter[FailureKind] = Counter()
        self.tasks: Counter[str] = Counter()
        self.tools: Counter[str] = Counter()
        """masked rollouts by kind, task, and tool that was running"""
        self.errors: Counter[str] = Counter()
        """tool calls that were answered with an error"""

    def called(self, tool: str, seconds: float, error: str | None) -> None:
        if error is not None:
            self.errors[error if error in self.errors or len(self.errors) < 20 else OTHER] += 1
            if error in _NO_CALLS:
                return
        self.times.call(tool, seconds)

    def counted(self, record: Record) -> None:
        fate, first = record.fate, record.before is None
        self.counted_as[fate] += 1
        if record.before is not None:
            self.recounted[record.before] += 1
        self._took(record, first)
        if fate in _MEASURED:
            self.troubles.succeeded(record.task)
        elif record.kind is not None:
            if fate in _MASKED:
                self._masked(record, record.kind)
            if record.kind not in NOBODYS and (first or record.kind in _OF_THE_VERDICT):
                self.troubles.failed(
                    Failure(
                        at=time.time(),
                        task=record.task,
                        kind=record.kind,
                        reason=record.reason or "",
                        tool=record.failed_tool,
                        who=record.session or record.episode,
                    )
                )

    def _took(self, record: Record, first: bool) -> None:
        phases = self.times.phases
        for phase in record.phases:
            if (first or phase.name == "verify") and (histogram := phases.get(phase.name)) is not None:
                histogram.observe(phase.seconds)
        for name, seconds in record.timings.items():
            if (histogram := phases.get(name)) is not None:
                histogram.observe(seconds)

    def _masked(self, record: Record, kind: FailureKind) -> None:
        self.kinds[kind] += 1
        _add(self.tasks, record.task)
        _add(self.tools, record.failed_tool)


def _add(counter: Counter[str], name: str | None) -> None:
    if name is not None:
        counter[name if name in counter or len(counter) < MOST_NAMES else OTHER] += 1
