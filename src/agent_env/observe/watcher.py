"""Counts what is told of sessions and episodes, for `/metrics` and `/status`. Nothing that is counted here goes down.

A session that was reclaimed or closed and is verified all the same is counted once more, under its verdict; `recounted`
says how many there were. So the numbers of the summary line are `counted[fate] - recounted[fate]`.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Iterable

from agent_env.errors import FailureKind
from agent_env.observe.record import Error, Fate, Record
from agent_env.observe.redact import Redactor
from agent_env.observe.times import OTHER, Times
from agent_env.observe.troubles import Failure, Troubles

MOST_NAMES = 10_000
"""tasks, and tools, that are counted by name"""
_FOLD = 1000
"""sessions and calls after which the times that were taken down are sorted into their buckets"""
_MASKED = (Fate.MASKED, Fate.FAILED)
_MEASURED = (Fate.VERIFIED, Fate.SCORED)
_NOBODYS = (
    *(FailureKind.CANCELLED, FailureKind.CLIENT_GONE, FailureKind.SERVER_SHUTDOWN),
    FailureKind.SESSION_EXPIRED,
)
"""kinds that are no trouble of an env: the client or the operator ended the rollout"""
_OF_THE_VERDICT = (FailureKind.NO_SCORE, FailureKind.SCORE_NOT_FINITE, FailureKind.SESSION_EXPIRED)
"""kinds that a session gets at a late verify; every other was told of when the session was first counted"""
_NO_CALLS = (Error.TOOL_NOT_FOUND, Error.INVALID_ARGS, Error.NOT_MADE)
"""errors of calls that reached no tool; their names are whatever the model wrote"""


class Watcher:
    """An observer of a server's sessions or episodes. `times` has the phases that the server can know."""

    full = False

    def __init__(self, times: Times, log: logging.Logger, secrets: Iterable[str] = ()) -> None:
        """`secrets` are shown to nobody, should a reason hold one."""
        self._redactor = Redactor(secrets)
        self.times = times
        self.troubles = Troubles(log, time.time)
        self._wait, self._start, self._verify = map(times.taker, ("wait", "start", "verify"))
        self._of_timing = {name: histogram.observe for name, histogram in times.of_timing.items()}
        self._unfolded = 0
        self.counted_as: Counter[Fate] = Counter(dict.fromkeys(Fate, 0))
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
        self._unfolded += 1

    def counted(self, record: Record) -> None:
        fate, before = record.fate, record.before
        self.counted_as[fate] += 1
        if before is None:
            if record.wait_s is not None:
                self._wait(record.wait_s)
            if record.start_s is not None:
                self._start(record.start_s)
        if record.verify_s is not None:
            self._verify(record.verify_s)
        of_timing = self._of_timing
        for name, seconds in record.timings.items():
            if name in of_timing:
                of_timing[name](seconds)
        self._unfolded += 1
        if self._unfolded >= _FOLD:
            self._unfolded = 0
            self.times.fold()
        if before is not None:
            self.recounted[before] += 1
        if fate in _MEASURED:
            self.troubles.succeeded(record.task)
        elif record.kind is not None:
            self._failed(record, record.kind, again=before is not None)

    def _failed(self, record: Record, kind: FailureKind, *, again: bool) -> None:
        if record.fate in _MASKED:
            self._masked(record, kind)
        if kind in _OF_THE_VERDICT if again else kind not in _NOBODYS:
            self.troubles.failed(
                Failure(
                    at=time.time(),
                    task=record.task,
                    kind=kind,
                    reason=self._redactor.text(record.reason or ""),
                    tool=record.failed_tool,
                    who=record.session or record.episode,
                )
            )

    def _masked(self, record: Record, kind: FailureKind) -> None:
        self.kinds[kind] += 1
        _add(self.tasks, record.task)
        _add(self.tools, record.failed_tool)


def _add(counter: Counter[str], name: str | None) -> None:
    if name is not None:
        counter[name if name in counter or len(counter) < MOST_NAMES else OTHER] += 1
