from __future__ import annotations

import logging

import pytest

from agent_env.errors import FailureKind
from agent_env.training.nemo_gym.tally import Tally


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_alarm_rings_past_a_tenth_of_a_hundred_and_not_again_for_a_hundred(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tally = Tally(Clock())
    for _ in range(9):
        for _ in range(9):
            tally.measured()
        tally.mask(FailureKind.TOOL_TIMEOUT, "t", "look")
    assert caplog.records == []
    for _ in range(4):
        tally.mask(FailureKind.ENV_CRASHED, "t", None)
    for _ in range(96):
        tally.mask(FailureKind.ENV_CRASHED, "t", None)
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    tally.mask(FailureKind.ENV_CRASHED, "t", None)
    tally.mask(FailureKind.ENV_CRASHED, "t", None)
    assert len(caplog.records) == 2
    assert "most often env_crashed (100)" in caplog.records[1].getMessage()


def test_retry_after_follows_the_pace_of_ends_and_the_length_of_the_queue() -> None:
    clock = Clock()
    tally = Tally(clock)
    assert tally.retry_after(100) == 5
    for second in range(10):
        clock.now = float(second)
        tally.ended()
    assert tally.retry_after(0) == 1
    assert tally.retry_after(20) == 19
    assert tally.retry_after(10_000) == 120


def test_the_summary_names_each_kind() -> None:
    tally = Tally(Clock())
    tally.seeded, tally.verified, tally.reclaimed = 6, 3, 1
    tally.waited(2.5)
    tally.mask(FailureKind.TOOL_TIMEOUT, "t", "look")
    tally.mask(FailureKind.CAPACITY, "t", None)
    assert tally.summary(0) == (
        "seeded 6, verified 3, masked 2 (tool_timeout 1, capacity 1), reclaimed 1, closed 0, refused 0, "
        "open at the end 0, longest wait 2.5 s"
    )
    tally.abandoned, tally.unknown = 2, 1
    assert tally.summary(0).endswith(", 2 left before their seed's answer, 1 verified without a session")
