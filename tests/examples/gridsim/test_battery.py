from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp

import agent_env.examples.gridsim as gridsim
from agent_env.examples.gridsim.battery import (
    ENERGY,
    HOURS,
    POWER,
    cents,
    greedy_schedule,
    offline_score,
    optimum,
    profit,
    refusal,
    score,
    states_of_charge,
)
from agent_env.examples.gridsim.policies import random_schedule
from agent_env.examples.gridsim.prices import Day

IDLE = [0] * HOURS
prices_of_a_day = st.lists(st.integers(-6000, 500_000).map(lambda n: n / 100), min_size=HOURS, max_size=HOURS)
schedules = st.integers(0, 2**32).map(lambda seed: random_schedule(Random(seed)))


def full_optimum(prices: Sequence[float], energy: int = ENERGY, power: int = POWER) -> int:
    """The plain dynamic programme: every state of charge, every move."""
    money: dict[int, int] = {0: 0}
    for price in prices:
        now: dict[int, int] = {}
        for soc, have in money.items():
            for move in range(-min(power, soc), min(power, energy - soc) + 1):
                total = have - (10 if move > 0 else 9) * cents(price) * move
                if total > now.get(soc + move, total - 1):
                    now[soc + move] = total
        money = now
    return max(money.values())


def brute_force(prices: Sequence[float], energy: int, power: int) -> int:
    """Every feasible schedule, one by one."""
    best = 0
    for moves in product(range(-power, power + 1), repeat=len(prices)):
        if all(0 <= soc <= energy for soc in states_of_charge(moves)):
            best = max(best, profit(prices, moves))
    return best


def linear_optimum(prices: Sequence[float]) -> float:
    """Charge and draw as separate whole numbers with a switch an hour, solved by scipy's milp; dollars."""
    values = np.array([cents(price) for price in prices]) / 100
    nothing, one, below = np.zeros((HOURS, HOURS)), np.eye(HOURS), np.tri(HOURS)
    limits = [
        LinearConstraint(np.hstack([below, -below, nothing]), 0, ENERGY),
        LinearConstraint(np.hstack([one, nothing, -POWER * one]), -np.inf, 0),
        LinearConstraint(np.hstack([nothing, one, POWER * one]), -np.inf, POWER),
    ]
    upper = np.repeat([POWER, POWER, 1], HOURS)
    worth = np.concatenate([values, -0.9 * values, np.zeros(HOURS)])
    found = milp(worth, integrality=np.ones(3 * HOURS), bounds=Bounds(0, upper), constraints=limits)
    assert found.success
    return -float(found.fun)


@pytest.mark.parametrize(("energy", "power"), [(4, 2), (3, 2), (2, 1), (3, 3), (5, 2)])
def test_the_optimum_is_what_trying_every_schedule_finds(energy: int, power: int) -> None:
    rng = Random(energy * 10 + power)
    hours = 4 if power == 3 else 5
    for _ in range(6):
        prices = [rng.choice([-1, 1, 1]) * rng.randint(0, 9000) / 100 for _ in range(hours)]
        best, schedule = optimum(prices, energy, power)
        assert best == brute_force(prices, energy, power)
        assert profit(prices, schedule) == best


def test_the_optimum_is_that_of_the_full_dynamic_programme_on_real_sizes(days: tuple[Day, ...]) -> None:
    for day in Random(1).sample(days, 40):
        assert optimum(day.prices)[0] == full_optimum(day.prices), day


@settings(max_examples=25, deadline=None)
@given(prices_of_a_day)
def test_the_optimum_is_that_of_the_full_dynamic_programme_on_any_prices(prices: list[float]) -> None:
    assert optimum(prices)[0] == full_optimum(prices)


def test_the_optimum_agrees_with_a_mixed_integer_solver_on_200_days(days: tuple[Day, ...]) -> None:
    for day in Random(2).sample(days, 200):
        assert linear_optimum(day.prices) == pytest.approx(optimum(day.prices)[0] / 1000, abs=0.01), day


@given(prices_of_a_day, schedules)
def test_no_feasible_schedule_beats_the_optimum(prices: list[float], schedule: list[int]) -> None:
    best, found = optimum(prices)
    assert refusal(found) is None
    assert profit(prices, found) == best
    assert refusal(schedule) is None
    assert profit(prices, schedule) <= best


@given(prices_of_a_day)
def test_greedy_is_feasible_and_trades_whole_pairs(prices: list[float]) -> None:
    schedule = greedy_schedule(prices)
    assert refusal(schedule) is None
    assert sum(schedule) == 0
    assert profit(prices, schedule) >= 0


def test_greedy_pairs_cheapest_with_dearest_and_drops_pairs_that_do_not_pay() -> None:
    prices = [20.0] * HOURS
    prices[3], prices[5], prices[9], prices[15] = 10.0, 12.0, 19.0, 19.5
    prices[16], prices[20], prices[23], prices[18] = 11.0, 40.0, 21.0, 21.2
    expected = [0] * HOURS
    expected[3], expected[5], expected[20], expected[18] = 10, 10, -10, -10
    assert greedy_schedule(prices) == expected  # 21.0 x 0.9 < 19.0, 20.0 x 0.9 < 19.5


def test_greedy_breaks_ties_to_the_earlier_hour() -> None:
    schedule = greedy_schedule([1.0] * 16 + [50.0] * 8)
    assert schedule == [10] * 4 + [0] * 12 + [-10] * 4 + [0] * 4


def test_greedy_drops_a_pair_that_just_breaks_even() -> None:
    assert greedy_schedule([9.0] * 16 + [10.0] * 8) == IDLE


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        (None, "list of 24 integers"),
        ("[0]", "list of 24 integers"),
        ([0] * 23, "this one has 23"),
        ([0] * 25, "this one has 25"),
        ([], "this one has 0"),
        ([*IDLE[:7], "1", *IDLE[8:]], "hour 7: '1' is not an integer"),
        ([*IDLE[:7], 1.0, *IDLE[8:]], "hour 7: 1.0 is not an integer"),
        ([*IDLE[:7], True, *IDLE[8:]], "hour 7: True is not an integer"),
        ([*IDLE[:7], None, *IDLE[8:]], "hour 7: None is not an integer"),
        ([11, *IDLE[1:]], "hour 0: 11 MWh is outside [-10, 10]"),
        ([*IDLE[:23], -11], "hour 23: -11 MWh is outside [-10, 10]"),
        ([-1, *IDLE[1:]], "hour 0: the state of charge would be -1 MWh, outside [0, 40]"),
        ([10, 10, 10, 10, 1, *IDLE[5:]], "hour 4: the state of charge would be 41 MWh, outside [0, 40]"),
        ([*IDLE[:22], 5, -6], "hour 23: the state of charge would be -1 MWh, outside [0, 40]"),
    ],
)
def test_a_refusal_names_the_hour_and_the_rule(schedule: object, said: str) -> None:
    assert said in (refusal(schedule) or "")
    assert score([20.0] * HOURS, schedule) == 0.0


@pytest.mark.parametrize("schedule", [IDLE, [*IDLE[:23], 10], [10, 10, 10, 10, *IDLE[4:]], [10, -10] * 12, tuple(IDLE)])
def test_what_the_battery_can_do_is_accepted(schedule: Sequence[int]) -> None:
    assert refusal(schedule) is None


def test_money_is_whole_tenths_of_a_cent() -> None:
    assert cents(0.29) == 29
    assert int(0.29 * 100) == 28, "the trap that cents() avoids"
    assert profit([0.29] * HOURS, [10, -10, *IDLE[2:]]) == -10 * 29 * 10 + 9 * 29 * 10
    assert all(cents(n / 100) == n for n in range(-6000, 500_001, 7))


def test_charging_at_a_negative_price_earns_and_selling_costs() -> None:
    prices = [-5.0, *[0.0] * 22, -5.0]
    assert profit(prices, [10, *IDLE[1:]]) == 50_000
    assert profit(prices, [10, *IDLE[1:23], -10]) == 50_000 - 45_000
    assert optimum(prices)[0] == 100_000  # charges in both hours and keeps what it holds


def test_what_is_left_at_the_end_is_worth_nothing() -> None:
    assert profit([20.0] * HOURS, [*IDLE[:23], 10]) == -200_000
    assert optimum([20.0] * HOURS)[0] == 0


def test_the_score_is_clipped_and_has_fixed_points() -> None:
    prices = [10.0] * 12 + [100.0] * 12
    best, schedule = optimum(prices)
    assert offline_score(prices, None) == 0.0
    assert offline_score(prices, IDLE) == 0.2
    assert offline_score(prices, schedule) == 1.0
    assert offline_score(prices, [*IDLE[:20], 10, 10, 10, 10]) == 0.0
    half = [10, 10, *IDLE[2:22], -10, -10]
    assert profit(prices, half) * 2 == best
    assert offline_score(prices, half) == pytest.approx(0.6)


def test_a_day_without_money_scores_an_idle_schedule_0_2() -> None:
    assert offline_score([20.0] * HOURS, IDLE) == 0.2
    assert offline_score([20.0] * HOURS, [*IDLE[:23], 1]) == 0.0


@pytest.mark.parametrize(
    ("copy", "parts"),
    [("envs/gridsim/server.py", ["rules"]), ("artifacts/verify/verify.py", ["rules", "optimum"])],
)
def test_the_copies_of_the_rules_are_verbatim(copy: str, parts: list[str]) -> None:
    folder = Path(gridsim.__file__).parent
    source, text = (folder / "battery.py").read_text(), (folder / copy).read_text()
    for part in parts:
        wanted = _between(source, part)
        assert "def " in wanted
        assert _between(text, part) == wanted


def _between(text: str, part: str) -> str:
    found = re.findall(rf"^# --- {part}: begin ---$(.+?)^# --- {part}: end ---$", text, re.DOTALL | re.MULTILINE)
    assert len(found) == 1
    return str(found[0])
