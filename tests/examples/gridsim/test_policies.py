from __future__ import annotations

import inspect
import json
from random import Random
from typing import Any

import pytest

from agent_env.examples.gridsim import policies
from agent_env.examples.gridsim.battery import HOURS, greedy_schedule, offline_score, refusal
from agent_env.examples.gridsim.policies import POLICIES, schedule_for
from agent_env.examples.gridsim.prices import Day

pytestmark = pytest.mark.anyio


class ScriptedPlay:
    """A rollout whose env answers with one day and notes what it is asked."""

    def __init__(self, prices: list[float], answer: str | None = None) -> None:
        self.rng = Random(7)
        self.calls: list[tuple[str, dict[str, Any] | str]] = []
        self.said: list[str] = []
        self.answer = answer or json.dumps({"date": "2024-03-07", "hub": "HB_NORTH", "prices": prices})

    async def call(self, name: str, arguments: dict[str, Any] | str) -> str:
        self.calls.append((name, arguments))
        return self.answer

    def say(self, text: str) -> None:
        self.said.append(text)


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_is_a_coroutine_function_of_that_name(name: str) -> None:
    assert inspect.iscoroutinefunction(getattr(policies, name))


@pytest.mark.parametrize("name", ["idle", "greedy", "optimal", "random"])
async def test_a_policy_submits_its_offline_schedule(name: str, days: tuple[Day, ...]) -> None:
    prices = list(days[0].prices)
    play = ScriptedPlay(prices)
    await getattr(policies, name)(play)
    assert play.calls == [
        ("get_prices", {}),
        ("submit_schedule", {"schedule": schedule_for(name, prices, Random(7))}),
    ]
    assert len(play.said) == 1


@pytest.mark.parametrize("answer", ["the env is not ready", "[]", '{"prices": [1, 2]}', "null"])
async def test_a_policy_ends_its_turn_when_there_are_no_prices(answer: str) -> None:
    play = ScriptedPlay([], answer)
    await policies.optimal(play)
    assert play.calls == [("get_prices", {})]
    assert len(play.said) == 1


async def test_broken_submits_nothing_that_is_valid() -> None:
    play = ScriptedPlay([20.0] * HOURS)
    await policies.broken(play)
    assert "sell_everything" in {name for name, _ in play.calls}
    for name, arguments in play.calls:
        if name == "submit_schedule":
            schedule = arguments.get("schedule") if isinstance(arguments, dict) else arguments
            assert refusal(schedule) is not None
    assert any(isinstance(arguments, str) for _, arguments in play.calls)
    assert schedule_for("broken", [20.0] * HOURS, Random(0)) is None


def test_offline_scores_of_idle_and_optimal_are_exact_on_every_day(days: tuple[Day, ...]) -> None:
    rng = Random(0)
    assert {offline_score(day.prices, schedule_for("idle", day.prices, rng)) for day in days} == {0.2}
    assert {offline_score(day.prices, schedule_for("optimal", day.prices, rng)) for day in days} == {1.0}
    assert {offline_score(day.prices, schedule_for("broken", day.prices, rng)) for day in days} == {0.0}


def test_random_is_feasible_and_repeats_with_its_seed() -> None:
    for seed in range(200):
        schedule = schedule_for("random", [], Random(seed))
        assert refusal(schedule) is None
        assert schedule == schedule_for("random", [], Random(seed))


def test_greedy_s_schedule_is_the_rule_s() -> None:
    prices = [float(hour) for hour in range(HOURS)]
    assert schedule_for("greedy", prices, Random(0)) == greedy_schedule(prices)


def test_an_unknown_policy_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"'lucky'.*idle, greedy, optimal, random, broken"):
        schedule_for("lucky", [], Random(0))
