from __future__ import annotations

import hashlib
import platform
import sys
from collections import Counter
from collections.abc import Sequence
from datetime import date
from statistics import fmean, median

import numpy as np
import pytest

from agent_env.examples.gridsim.battery import ENERGY, HOURS, POWER, cents, greedy_schedule, offline_score, optimum
from agent_env.examples.gridsim.prices import HUBS, LOWEST_OPTIMUM, Day, synthetic_days, synthetic_prices

TABLE = "5033beb1882ee5e494c9aef7daa233e49d678aa5de0fffaf0e756f213cbd201d"


def split(days: Sequence[Day], name: str) -> list[Day]:
    return [day for day in days if day.split == name]


def price_blind_schedule(days: Sequence[Day]) -> list[int]:
    """The one schedule that earns the highest mean share of the optimum.

    Exact before clipping: the mean is linear in the hours' moves, so it is a dynamic programme over the days' mean of
    price / optimum. Pairs of hours are then changed as long as the mean of the clipped scores rises.
    """
    values = np.array([[cents(price) for price in day.prices] for day in days], dtype=float)
    best = np.array([optimum(day.prices)[0] for day in days], dtype=float)
    schedule = _most_earned((values / best[:, None]).mean(axis=0))

    def mean_scores(candidates: np.ndarray) -> np.ndarray:
        money = np.where(candidates > 0, -10, -9) * candidates @ values.T
        return np.asarray(np.clip(0.2 + 0.8 * money / best, 0, 1).mean(axis=1))

    now = mean_scores(np.array([schedule]))[0]
    while True:
        candidates = _with_two_hours_changed(schedule)
        scores = mean_scores(candidates)
        if scores.max() <= now + 1e-12:
            return schedule
        now, schedule = scores.max(), [int(move) for move in candidates[scores.argmax()]]


def _most_earned(weights: np.ndarray) -> list[int]:
    found: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for weight in weights:
        now: dict[int, tuple[float, list[int]]] = {}
        for soc, (have, moves) in found.items():
            for move in range(-min(POWER, soc), min(POWER, ENERGY - soc) + 1):
                total = have - (10 if move > 0 else 9) * weight * move
                if soc + move not in now or total > now[soc + move][0]:
                    now[soc + move] = (total, [*moves, move])
        found = now
    return max(found.values())[1]


def _with_two_hours_changed(schedule: Sequence[int]) -> np.ndarray:
    grid = [(i, j, a, b) for i in range(HOURS) for j in range(i) for a in (-10, 0, 10) for b in (-10, 0, 10)]
    candidates = np.tile(schedule, (len(grid), 1))
    for row, (i, j, a, b) in zip(candidates, grid, strict=True):
        row[i], row[j] = a, b
    states = candidates.cumsum(axis=1)
    return np.asarray(candidates[((states >= 0) & (states <= ENERGY)).all(axis=1)])


def test_there_are_2000_train_days_of_2019_to_2024_and_200_eval_days_of_2025(days: tuple[Day, ...]) -> None:
    train, evals = split(days, "train"), split(days, "eval")
    assert (len(train), len(evals)) == (2000, 200)
    assert {day.date[:4] for day in train} == {"2019", "2020", "2021", "2022", "2023", "2024"}
    assert {day.date[:4] for day in evals} == {"2025"}
    assert len({day.date for day in days}) == 2200
    assert set(Counter(day.hub for day in days)) == set(HUBS)


def test_prices_are_cents_within_the_market_s_limits(days: tuple[Day, ...]) -> None:
    for day in days:
        assert len(day.prices) == HOURS
        assert all(price == round(price, 2) and -60 <= price <= 5000 for price in day.prices)
        assert optimum(day.prices)[0] >= LOWEST_OPTIMUM


def test_regenerating_gives_the_same_days(days: tuple[Day, ...]) -> None:
    assert synthetic_days() == days


@pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64"), reason="the table is pinned on Linux x86-64"
)
def test_the_price_table_is_the_pinned_one(days: tuple[Day, ...]) -> None:
    rows = (f"{day.split},{day.date},{day.hub},{','.join(map(str, day.prices))}\n" for day in days)
    assert hashlib.sha256("".join(rows).encode()).hexdigest() == TABLE


def test_a_day_does_not_depend_on_the_days_made_before_it() -> None:
    day = date(2024, 3, 7)
    assert synthetic_prices(day, "HB_WEST") == synthetic_prices(day, "HB_WEST") != synthetic_prices(day, "HB_PAN")


@pytest.mark.parametrize("name", ["train", "eval"])
def test_a_simple_rule_leaves_money_on_the_table(days: tuple[Day, ...], name: str) -> None:
    assert 0.70 <= fmean(offline_score(d.prices, greedy_schedule(d.prices)) for d in split(days, name)) <= 0.85


def test_no_one_schedule_does_well_on_most_days(days: tuple[Day, ...]) -> None:
    schedule = price_blind_schedule(split(days, "train"))
    for name in ("train", "eval"):
        assert fmean(offline_score(day.prices, schedule) for day in split(days, name)) <= 0.65


def test_any_prefix_of_the_tasks_is_a_fair_sample_of_the_seasons(days: tuple[Day, ...]) -> None:
    months = Counter(day.date[5:7] for day in split(days, "train")[:240])
    assert len(months) == 12
    assert max(months.values()) <= 40


def test_days_differ_as_the_market_s_do(days: tuple[Day, ...]) -> None:
    assert 0.15 <= fmean(min(day.prices) < 0 for day in days) <= 0.35
    assert 700_000 <= median(optimum(day.prices)[0] for day in days) <= 1_300_000
