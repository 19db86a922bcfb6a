"""The trainer without a GPU: its family, its learner, and two steps of it through both servers."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agent_env.examples.gridsim.battery import greedy_schedule, refusal, score
from agent_env.examples.gridsim.prices import Day, synthetic_days

SCRIPT = Path(__file__).parents[2] / "examples" / "grpo_cpu.py"
FLAT = [20.0] * 24
VALLEY = [30.0] * 10 + [10.0] * 2 + [30.0] * 5 + [50.0] * 2 + [30.0] * 5


@pytest.fixture(scope="module")
def grpo() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("grpo_cpu", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["grpo_cpu"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules["grpo_cpu"]


@pytest.fixture(scope="module")
def days() -> dict[str, list[Day]]:
    every = synthetic_days()
    return {split: [day for day in every if day.split == split] for split in ("train", "eval")}


def rule(grpo: ModuleType, **values: Any) -> Any:
    return grpo.Rule(
        **{"look_ahead": 6, "buy_share": 0.1, "sell_share": 0.1, "profit_test": True, "power": 10} | values
    )


def test_a_rule_buys_in_the_valley_and_sells_at_the_peak(grpo: ModuleType) -> None:
    schedule = rule(grpo, look_ahead=9).schedule(VALLEY)
    assert schedule[10:12] == [10, 10]
    assert schedule[17:19] == [-10, -10]


def test_the_profit_test_keeps_a_rule_from_trading_for_nothing(grpo: ModuleType) -> None:
    slowly_rising = [20.0 + 0.05 * hour for hour in range(24)]
    assert rule(grpo, buy_share=0.7, sell_share=0.7).schedule(slowly_rising) == [0] * 24
    assert any(rule(grpo, buy_share=0.7, sell_share=0.7, profit_test=False).schedule(slowly_rising))


def test_the_last_hour_only_sells(grpo: ModuleType) -> None:
    falling = [100.0 - hour for hour in range(23)]
    kept = rule(grpo, buy_share=0.7, profit_test=False, look_ahead=18).schedule([*falling, 200.0])
    assert kept[-1] <= 0


def test_where_both_hold_the_smaller_share_decides_and_a_tie_sells(grpo: ModuleType) -> None:
    middle = rule(grpo, look_ahead=4, buy_share=0.7, sell_share=0.7, profit_test=False, power=4)
    cheap_ahead = [20.0, 10.0, 10.0, 10.0, 30.0, *FLAT[5:]]
    dear_ahead = [20.0, 10.0, 30.0, 30.0, 30.0, *FLAT[5:]]
    assert middle.schedule(dear_ahead)[0] == 4
    assert middle.schedule(cheap_ahead)[0] == 0, "it would sell, and holds nothing"


def test_every_member_makes_feasible_schedules_that_battery_scores(
    grpo: ModuleType, days: dict[str, list[Day]]
) -> None:
    sizes = [len(values) for values in grpo.KNOBS.values()]
    members = [tuple(number // 7**head % size for head, size in enumerate(sizes)) for number in range(400)]
    for number, member in enumerate(members):
        prices = days["train"][number].prices
        schedule = grpo.Rule.of(member).schedule(prices)
        assert refusal(schedule) is None
        assert max(map(abs, schedule)) <= grpo.Rule.of(member).power


def test_advantages_are_normalised_over_the_measured_part_of_a_group(grpo: ModuleType) -> None:
    assert grpo.advantages_of([0.0, 1.0]) == [-1.0, 1.0]
    assert grpo.advantages_of([0.0, None, 1.0]) == [-1.0, None, 1.0]
    assert grpo.advantages_of([0.5, 0.5, 0.5]) == [None] * 3
    assert grpo.advantages_of([0.5, None]) == [None, None]


def test_learning_moves_probability_to_what_had_the_better_reward(grpo: ModuleType) -> None:
    policy = grpo.Softmaxes()
    policy.learn([(0, 0, 0, 0, 0), (1, 1, 1, 1, 1)], [-1.0, 1.0], 1.0)
    for chances in policy.probabilities():
        assert chances.sum() == pytest.approx(1)
        assert chances[1] == max(chances)
        assert chances[0] == min(chances)
    assert [len(chances) for chances in policy.probabilities()] == [6, 5, 5, 2, 6]


def test_no_measured_group_leaves_the_policy_as_it_was(grpo: ModuleType) -> None:
    policy = grpo.Softmaxes()
    policy.learn([], [], 3.0)
    assert all(len(set(chances)) == 1 for chances in policy.probabilities())


def test_the_best_member_is_better_than_greedy_and_not_the_optimum(
    grpo: ModuleType, days: dict[str, list[Day]]
) -> None:
    some = [day.prices for day in days["eval"][:6]]
    best, mean = grpo.best_member(some)
    assert sum(score(prices, greedy_schedule(prices)) for prices in some) / 6 < mean < 0.97
    assert mean == pytest.approx(sum(score(prices, best.schedule(prices)) for prices in some) / 6)


class Offline:
    """Scores what a policy submits by the rules of the battery, without a server."""

    def __init__(self, days: Sequence[Day]) -> None:
        self.days = days

    async def rewards(self, rows: Sequence[int], policies: Sequence[Any]) -> list[float]:
        return [await self.reward(self.days[row], policy) for row, policy in zip(rows, policies, strict=True)]

    async def reward(self, day: Day, policy: Any) -> float:
        submitted: list[Any] = []

        class Play:
            async def call(self, name: str, arguments: dict[str, Any]) -> str:
                if name == "submit_schedule":
                    submitted.append(arguments["schedule"])
                return json.dumps({"prices": day.prices})

            def say(self, text: str) -> None: ...

        await policy(Play())
        return score(day.prices, submitted[-1])


def test_forty_steps_lead_from_below_a_half_to_above_greedy(grpo: ModuleType, days: dict[str, list[Day]]) -> None:
    every = [*days["train"], *days["eval"]]
    train, held_out = range(2000), range(2000, 2200)
    options = Namespace(steps=40, rate=3.0)
    run = asyncio.run(grpo.train(Offline(every), train, held_out, 0, options))
    greedily = [score(day.prices, greedy_schedule(day.prices)) for day in days["eval"]]
    summary = grpo.summary_of([run], greedily, (run.favourite, 0.9))
    assert summary["eval_before"][0] < 0.5
    assert summary["z"] > 2
    assert all(summary["met"].values())
    assert len(run.curve) == 40
    assert run.curve[-1] > run.curve[0]


def test_days_that_one_seed_lost_are_no_part_of_the_comparison(grpo: ModuleType) -> None:
    runs = [
        grpo.Run(0, before=[0.1] * 3, after=[0.9, None, 0.8]),
        grpo.Run(1, before=[0.1] * 3, after=[0.7, 0.9, 0.9]),
    ]
    summary = grpo.summary_of(runs, [0.5, 0.5, None], (rule(grpo), 0.9))
    assert summary["ahead_of_greedy"] == pytest.approx(0.3)
    assert summary["z"] is None


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_two_steps_through_both_servers(tmp_path: Path) -> None:
    flags = ["--steps=2", "--seeds=1", "--eval-days=2", "--concurrency=8"]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *flags, f"--out={tmp_path}"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=os.environ | {"AGENT_ENV_STATE": str(tmp_path / "state")},
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["rollouts"] == 2 + 2 + 64 + 2
    assert summary["lost"] == 0
    assert len(summary["curves"][0]) == 2
    assert all(0 < reward < 1 for reward in summary["curves"][0])
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
    assert "z = " in done.stdout
