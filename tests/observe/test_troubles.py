from __future__ import annotations

import logging

import pytest

from agent_env.errors import FailureKind
from agent_env.observe.troubles import LINES, Failure, Troubles


class Told:
    """Troubles on a clock of our own."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.troubles = Troubles(logging.getLogger("test.troubles"), lambda: self.now)

    def fail(self, task: str | None, kind: FailureKind = FailureKind.TOOL_TIMEOUT, times: int = 1) -> None:
        for _ in range(times):
            self.now += 1
            self.troubles.failed(Failure(self.now, task, kind, "too slow", None, "s"))


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]


def test_the_fifth_failure_in_a_row_is_one_error_line_with_the_remedy(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    told.fail("a", times=4)
    assert not errors(caplog)
    told.fail("a", times=8)
    assert errors(caplog) == [
        "task a failed 5 times in a row, each time with tool_timeout: raise --tool-timeout, or make the tool quicker "
        "(last reason: too slow)"
    ]


def test_a_task_is_listed_until_it_succeeds_once_and_may_be_told_of_again(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    told.fail("a", times=5)
    told.fail("a", FailureKind.ENV_CRASHED)
    streak = told.troubles.listed()["a"]
    assert (streak.failures, streak.in_a_row, streak.kind) == (6, 1, FailureKind.ENV_CRASHED)
    told.troubles.succeeded("a")
    assert told.troubles.listed() == {}
    told.fail("a", times=5)
    assert list(told.troubles.listed()) == ["a"]
    assert len(errors(caplog)) == 2


def test_a_success_or_another_kind_in_between_begins_anew(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    for _ in range(3):
        told.fail("a", times=4)
        told.troubles.succeeded("a")
        told.fail("b", times=4)
        told.fail("b", FailureKind.ENV_CRASHED)
    assert told.troubles.listed() == {}
    assert not errors(caplog)


def test_an_outage_that_fails_many_tasks_does_not_flood_the_log(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    for number in range(100):
        told.now = 1000.0
        told.fail(f"task-{number}", FailureKind.PROVIDER_UNAVAILABLE, times=5)
    assert len(errors(caplog)) == LINES
    assert errors(caplog)[-1].endswith("; other tasks that fail for it are on /status")
    assert len(told.troubles.listed()) == 100
    told.now = 2000.0
    told.fail("later", FailureKind.PROVIDER_UNAVAILABLE, times=5)
    assert len(errors(caplog)) == LINES + 1


def test_a_clock_that_is_set_back_does_not_silence_the_log(caplog: pytest.LogCaptureFixture) -> None:
    told = Told()
    for number in range(LINES):
        told.now = 10_000.0
        told.fail(f"task-{number}", FailureKind.PROVIDER_UNAVAILABLE, times=5)
    told.now = 1000.0
    told.fail("later", FailureKind.PROVIDER_UNAVAILABLE, times=5)
    assert len(errors(caplog)) == LINES + 1


def test_fifty_failures_are_kept_also_those_of_no_known_task() -> None:
    told = Told()
    told.fail(None, FailureKind.SESSION_LOST, times=60)
    assert len(told.troubles.last) == 50
    assert told.troubles.listed() == {}


def test_an_idle_timeout_says_nothing_of_the_task() -> None:
    told = Told()
    told.fail("a", FailureKind.SESSION_EXPIRED, times=9)
    assert told.troubles.listed() == {}


def test_the_memory_is_bounded_and_forgets_those_that_were_not_told_of_first() -> None:
    told = Told()
    told.fail("bad", times=5)
    for number in range(10_050):
        told.fail(f"task-{number}")
    assert list(told.troubles.listed()) == ["bad"]
    assert len(told.troubles._streaks) == 10_000
