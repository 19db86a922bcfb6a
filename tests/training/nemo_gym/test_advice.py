from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from agent_env.training.nemo_gym.advice import Level, goes_on, settings, sustained, to_hold
from agent_env.training.nemo_gym.client import RolloutResult


def level(concurrency: int, rate: float, *, fault: bool = False, deploy: float = 1.5, verify: float = 0.1) -> Level:
    """A hundred rollouts at that rate."""
    total = concurrency / rate
    result = RolloutResult(
        policy=str(concurrency),
        number=0,
        row="r",
        split="train",
        index=0,
        repeat=0,
        reward=0.0,
        masked=False,
        seconds={"seed": 0.01, "first_call": total - verify - 0.01, "verify": verify, "total": total},
        timings={"deploy_s": deploy},
    )
    broken = RolloutResult(policy="x", number=0, row="r", split=None, index=None, repeat=0, error="seed: no")
    return Level(concurrency, (*[result] * 100, *([broken] if fault else [])), 100 / rate)


def held(count: int, *, fault: bool = False) -> Level:
    return replace(level(count, 4, fault=fault), held=True)


def levels(*rates: float) -> Sequence[Level]:
    return [level(2**power, rate) for power, rate in enumerate(rates)]


@pytest.mark.parametrize(
    ("rates", "more"),
    [
        ((1,), True),
        ((1, 2), True),
        ((1, 2, 2), True),
        ((1, 2, 2, 2.1), False),
        ((1, 2, 2, 3), True),
        ((2, 1, 1), False),
    ],
)
def test_levels_go_on_until_two_in_a_row_bring_nothing(rates: tuple[float, ...], more: bool) -> None:
    assert goes_on(levels(*rates)) is more


def test_a_level_with_faults_is_the_last_and_sustains_nothing() -> None:
    tried = [level(1, 1), level(2, 2), level(4, 9, fault=True)]
    assert not goes_on(tried)
    best = sustained(tried)
    assert best is not None
    assert best.concurrency == 2


def test_the_fewest_rollouts_at_once_with_nearly_the_best_rate_are_what_is_sustained() -> None:
    best = sustained(levels(1, 2, 3.8, 4.0, 4.1))
    assert best is not None
    assert best.concurrency == 4


def test_nothing_is_advised_when_every_level_had_faults() -> None:
    faulty = [level(1, 1, fault=True)]
    assert to_hold(faulty, 30, 8, 96) is None
    assert settings(faulty, None, 30, 8, 96) is None


@pytest.mark.parametrize(
    ("places", "count"),
    [(512, 124), (96, 96), (None, 124), (4, 4)],
)
def test_as_many_are_held_as_the_rate_carries_and_places_allow(places: int | None, count: int) -> None:
    assert to_hold(levels(1, 2, 4, 4, 4), 30, 8, places) == count


def test_no_more_are_held_than_start_in_a_minute() -> None:
    assert to_hold(levels(1, 2, 4, 4, 4), 600, 8, 5000) == 240


def test_the_rate_and_the_models_time_give_the_rollouts_in_flight() -> None:
    advised = settings(levels(1, 2, 4, 4, 4), held(124), 30, 8, 512)
    assert advised is not None
    assert advised.rate == 4
    assert advised.concurrency == 4
    assert advised.max_inflight == 124
    assert advised.places == 186
    assert advised.warm == 8 + 6
    assert advised.request_timeout == 60
    assert not advised.notes


def test_more_than_was_held_at_once_is_not_advised() -> None:
    advised = settings(levels(1, 2, 4, 4, 4), held(96), 30, 8, 96)
    assert advised is not None
    assert advised.max_inflight == 96
    assert "124 rollouts could be in flight, and the servers have 96 places" in advised.notes[0]
    advised = settings(levels(1, 2, 4, 4, 4), held(96, fault=True), 30, 8, 96)
    assert advised is not None
    assert advised.max_inflight == 16
    assert "96 rollouts open at once were too many" in advised.notes[0]


def test_never_fewer_in_flight_than_one_group() -> None:
    advised = settings(levels(0.01, 0.01, 0.01), held(8), 30, 8, 512)
    assert advised is not None
    assert advised.max_inflight == 8


def test_a_client_waits_four_times_as_long_as_the_slowest_answer_took() -> None:
    advised = settings(levels(0.2, 0.2, 0.2), held(8), 30, 8, 512)
    assert advised is not None
    assert advised.request_timeout == 80


def test_quick_starts_need_no_more_spares() -> None:
    advised = settings([level(1, 10, deploy=0.03), level(64, 20, deploy=0.03)], held(64), 1, 8, 64)
    assert advised is not None
    assert advised.warm == 0
    assert any("0.030 s" in note for note in advised.notes)
    assert advised.report()["warm"] == "auto"
