from __future__ import annotations

import logging
import time
from typing import Any

from agent_env.errors import FailureKind
from agent_env.observe.record import Error, Fate, Of, Record
from agent_env.observe.times import Times
from agent_env.observe.watcher import MOST_NAMES, Watcher


def a_watcher(*secrets: str) -> Watcher:
    times = Times("wait", "start", "verify", told={"deploy_s": "deploy"})
    return Watcher(times, logging.getLogger("test.watcher"), secrets)


def record(fate: Fate, **fields: Any) -> Record:
    return Record(Of.SESSION, 1, fate, time.time(), **{"task": "a", **fields})


def test_a_late_verify_counts_once_more_and_takes_nothing_back() -> None:
    watcher = a_watcher()
    expired = {"kind": FailureKind.SESSION_EXPIRED, "reason": "no request for 600 s"}
    watcher.counted(record(Fate.RECLAIMED, wait_s=1.0, start_s=2.0, **expired))
    assert +watcher.counted_as == {Fate.RECLAIMED: 1}
    assert not watcher.troubles.last
    watcher.counted(record(Fate.MASKED, before=Fate.RECLAIMED, wait_s=1.0, start_s=2.0, verify_s=3.0, **expired))
    assert +watcher.counted_as == {Fate.RECLAIMED: 1, Fate.MASKED: 1}
    assert +watcher.recounted == {Fate.RECLAIMED: 1}
    assert {name: histogram.count for name, histogram in watcher.times.phases.items()} == {
        "wait": 1,
        "start": 1,
        "verify": 1,
        "deploy": 0,
    }
    assert [failure.kind for failure in watcher.troubles.last] == [FailureKind.SESSION_EXPIRED]


def test_a_failure_that_was_told_of_when_its_session_was_reclaimed_is_not_told_of_again() -> None:
    watcher = a_watcher()
    crashed = {"kind": FailureKind.ENV_CRASHED, "reason": "exit code 3"}
    watcher.counted(record(Fate.RECLAIMED, **crashed))
    watcher.counted(record(Fate.MASKED, before=Fate.RECLAIMED, **crashed))
    assert len(watcher.troubles.last) == 1
    assert watcher.kinds == {FailureKind.ENV_CRASHED: 1}


def test_what_the_client_or_the_operator_ended_is_no_trouble() -> None:
    watcher = a_watcher()
    for kind in (FailureKind.CLIENT_GONE, FailureKind.CANCELLED, FailureKind.SERVER_SHUTDOWN):
        for _ in range(6):
            watcher.counted(record(Fate.ABANDONED, kind=kind))
    assert not watcher.troubles.last
    assert not watcher.troubles.listed()
    assert not watcher.kinds


def test_masked_rollouts_are_counted_by_kind_task_and_tool() -> None:
    watcher = a_watcher()
    watcher.counted(record(Fate.MASKED, kind=FailureKind.TOOL_TIMEOUT, failed_tool="look"))
    watcher.counted(record(Fate.FAILED, kind=FailureKind.NO_SCORE, task="b"))
    watcher.counted(record(Fate.REFUSED, kind=FailureKind.CAPACITY, task="c"))
    assert watcher.kinds == {FailureKind.TOOL_TIMEOUT: 1, FailureKind.NO_SCORE: 1}
    assert (watcher.tasks, watcher.tools) == ({"a": 1, "b": 1}, {"look": 1})
    assert [failure.task for failure in watcher.troubles.last] == ["a", "b", "c"]


def test_names_past_the_limit_are_counted_together() -> None:
    watcher = a_watcher()
    for number in range(MOST_NAMES + 5):
        watcher.counted(record(Fate.MASKED, kind=FailureKind.NO_SCORE, task=f"t{number}"))
    assert watcher.tasks["other"] == 5
    assert watcher.tasks.total() == MOST_NAMES + 5


def test_names_that_a_model_invents_get_no_histogram() -> None:
    watcher = a_watcher()
    watcher.called("look", 0.1, None)
    watcher.called("look", 0.1, Error.EXECUTION_ERROR)
    watcher.called("nonsense", 0.0, Error.TOOL_NOT_FOUND)
    watcher.called("look", 0.0, Error.INVALID_ARGS)
    assert {name: histogram.count for name, histogram in watcher.times.calls.items()} == {"look": 2}
    assert watcher.errors == {"execution_error": 1, "tool_not_found": 1, "invalid_args": 1}
    for number in range(100):
        watcher.called("look", 0.1, f"foreign-{number}")
    assert len(watcher.errors) <= 21


def test_no_secret_stands_in_a_reason() -> None:
    watcher = a_watcher("s3cr3t-token")
    watcher.counted(record(Fate.MASKED, kind=FailureKind.LOAD_FAILED, reason="GET /x?key=s3cr3t-token: 401"))
    assert "s3cr3t-token" not in watcher.troubles.last[0].reason
    assert watcher.troubles.last[0].reason.startswith("GET /x?key=")
