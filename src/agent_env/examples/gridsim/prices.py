"""Synthetic day-ahead prices.

Real ERCOT prices can't be shipped, so the default days are made up: `random.Random` with a seed of their own for every
date and hub, so that no day depends on another. The shape is meant to teach: days differ enough that a schedule has to
be read off the prices (no one schedule does well on most days), and a simple rule leaves a fifth of the money.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, timedelta
from math import exp

from agent_env.examples.gridsim.battery import HOURS, optimum

HUBS = {"HB_HOUSTON": 1.05, "HB_NORTH": 1.0, "HB_PAN": 0.9, "HB_SOUTH": 1.03, "HB_WEST": 0.95}
"""Settlement point -> how dear it is."""

WINDY = ("HB_PAN", "HB_WEST")
SEED = "gridsim-v1"
TRAIN_DAYS, EVAL_DAYS = 2000, 200
LOWEST_OPTIMUM = 100_000
"""Tenths of a cent ($100): a day with less to earn is left out, its score would be noise."""


@dataclass(frozen=True, slots=True)
class Day:
    """One task: 24 prices in $/MWh. Its number is its place among the days of its split."""

    split: str
    """train | eval"""
    date: str
    """YYYY-MM-DD"""
    hub: str
    prices: tuple[float, ...]


def synthetic_days() -> tuple[Day, ...]:
    """The bundle's 2,000 train days (2019-2024) and 200 eval days (2025), in task order; a date is used once."""
    return (*_split("train", 2019, 2024, TRAIN_DAYS), *_split("eval", 2025, 2025, EVAL_DAYS))


def worth_a_task(prices: tuple[float, ...]) -> bool:
    return optimum(prices)[0] >= LOWEST_OPTIMUM


def _split(name: str, first_year: int, last_year: int, count: int) -> list[Day]:
    rng = random.Random(f"{SEED}/{name}")
    dates = list(_dates(first_year, last_year))
    rng.shuffle(dates)
    days: list[Day] = []
    for day in dates:
        hub = rng.choice(list(HUBS))
        prices = synthetic_prices(day, hub)
        if len(days) < count and worth_a_task(prices):
            days.append(Day(name, day.isoformat(), hub, prices))
    return days


def _dates(first_year: int, last_year: int) -> Iterator[date]:
    day = date(first_year, 1, 1)
    while day.year <= last_year:
        yield day
        day += timedelta(days=1)


def synthetic_prices(day: date, hub: str) -> tuple[float, ...]:
    """24 prices in $/MWh with cents, by hour of the day."""
    rng = random.Random(f"{SEED}/{day.isoformat()}/{hub}")
    season = day.timetuple().tm_yday
    summer = _bell(season, 210, 35)
    winter = max(_bell(season, 20, 35), _bell(season, 385, 35))
    weekend = day.weekday() >= 5
    base = (24 + 16 * summer + 8 * winter) * rng.lognormvariate(0, 0.28) * HUBS[hub] * (0.92 if weekend else 1)
    level = _load(rng, day.year, summer, winter, weekend)
    _add_wind(rng, level, 1.5 if hub in WINDY else 0.9)
    noise, prices = 0.0, []
    for value in level:
        noise = 0.6 * noise + rng.gauss(0, 0.07)
        price = base * (value + abs(value) * noise + 0.02 * noise)
        prices.append(round(min(5000.0, max(-60.0, price)), 2))
    return tuple(prices)


def _load(rng: random.Random, year: int, summer: float, winter: float, weekend: bool) -> list[float]:
    """The day's shape around 1: morning and evening peak, the sun's dip (deeper every year), now and then a spike."""
    morning = 0.5 * (0.35 + 0.9 * winter) * rng.expovariate(1) * (0.5 if weekend else 1)
    morning_at = 7 + rng.gauss(0, 1)
    evening = 0.6 * (0.55 + 0.7 * summer) * rng.gammavariate(2, 0.5)
    evening_at = 17.5 + 1.5 * summer + rng.gauss(0, 1.5)
    evening_width = rng.uniform(1.2, 2.6)
    sun = (0.1 + 0.07 * (year - 2019)) * (0.8 + 0.3 * (1 - winter)) * rng.uniform(0, 1.5)
    spike = 0.0
    if rng.random() < 0.035 * (1 + 1.5 * summer + winter):
        spike = min(100.0, 2 * rng.paretovariate(1.3))
    spike_at = 7.0 if winter > 0.5 else evening_at
    return [
        0.82
        + morning * _bell(hour, morning_at, 1.4)
        + evening * _bell(hour, evening_at, evening_width)
        - sun * _bell(hour, 12.5, 2.6)
        + spike * _bell(hour, spike_at, 1.2)
        for hour in range(HOURS)
    ]


def _add_wind(rng: random.Random, level: list[float], windiness: float) -> None:
    """Wind fronts press the price down, lulls lift it, at any hour: this is what no fixed schedule can know."""
    dips = [(rng.uniform(0, 24), rng.uniform(1.5, 4), -0.5 * rng.expovariate(1) * windiness) for _ in _few(rng)]
    bumps = [(rng.uniform(0, 24), rng.uniform(0.8, 2.2), 0.7 * rng.expovariate(1)) for _ in _few(rng)]
    for centre, width, height in dips + bumps:
        for hour in range(HOURS):
            level[hour] += height * _bell(hour, centre, width)


def _few(rng: random.Random) -> range:
    return range(rng.choice((0, 1, 1, 2)))


def _bell(x: float, middle: float, width: float) -> float:
    return exp(-((x - middle) ** 2) / (2 * width**2))
