"""The rules of GridSim's battery, its exact optimum and the score.

A schedule is 24 integers, one an hour: `s > 0` charges s MWh, `s < 0` draws |s| MWh and sells 90 % of it, `0` idles.
Money is counted in tenths of a cent, so that it stays an integer: floats in dollars miss the score 1.0 on some optimal
days, and `int(100 * price)` is wrong for 5 % of all prices.

The env's server and the grader can't import this package: each carries a verbatim copy of the parts between the marker
lines, and a test compares them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

# --- rules: begin ---
HOURS = 24
ENERGY = 40  # MWh that the battery holds
POWER = 10  # MWh that it takes or gives in one hour


def cents(price: float) -> int:
    return round(100 * price)


def refusal(schedule: object) -> str | None:
    """Why this is not a feasible schedule: one sentence that names the hour and the rule. None: it is one."""
    if not isinstance(schedule, list | tuple):
        return "the schedule must be a list of 24 integers, one an hour"
    if len(schedule) != HOURS:
        return f"the schedule must have {HOURS} integers, one an hour: this one has {len(schedule)}"
    soc = 0
    for hour, move in enumerate(schedule):
        if type(move) is not int:
            return f"hour {hour}: {move!r:.40} is not an integer"
        if not -POWER <= move <= POWER:
            return f"hour {hour}: {move} MWh is outside [-{POWER}, {POWER}], the battery's power"
        soc += move
        if not 0 <= soc <= ENERGY:
            return f"hour {hour}: the state of charge would be {soc} MWh, outside [0, {ENERGY}]"
    return None


def profit(prices: Sequence[float], schedule: Sequence[int]) -> int:
    """Tenths of a cent that the schedule earns: charging s pays 10*cents*s, drawing d earns 9*cents*d."""
    return sum(cents(price) * (-10 if move > 0 else -9) * move for price, move in zip(prices, schedule, strict=True))


# --- rules: end ---


# --- optimum: begin ---
def optimum(prices: Sequence[float], energy: int = ENERGY, power: int = POWER) -> tuple[int, list[int]]:
    """The best profit of any feasible schedule, and one that earns it: dynamic programming over (hour, charge state).

    Only multiples of gcd(energy, power) are tried, and that is exact. Fix which hours charge and which draw: money is
    then linear in the moves, and every limit bounds a sum of consecutive moves (an interval matrix, which is totally
    unimodular) by a multiple of the gcd. So some best schedule has only multiples of it.
    """
    grid = math.gcd(energy, power)
    levels = energy // grid + 1
    reach = power // grid
    money: list[int | None] = [0] + [None] * (levels - 1)  # by state of charge; None: can't be reached
    came: list[list[int]] = []
    for price in prices:
        buy, sell = 10 * cents(price) * grid, 9 * cents(price) * grid
        now: list[int | None] = [None] * levels
        step = [0] * levels
        for soc, have in enumerate(money):
            if have is None:
                continue
            for move in range(-min(reach, soc), min(reach, levels - 1 - soc) + 1):
                total = have - (buy if move > 0 else sell) * move
                best = now[soc + move]
                if best is None or total > best:
                    now[soc + move], step[soc + move] = total, move
        money = now
        came.append(step)
    most, empty = max((have, -soc) for soc, have in enumerate(money) if have is not None)
    soc, schedule = -empty, []
    for step in reversed(came):
        schedule.append(step[soc] * grid)
        soc -= step[soc]
    return most, schedule[::-1]


def score(prices: Sequence[float], schedule: object) -> float:
    """The reward: 0 without a valid schedule, 0.2 for earning nothing, 1 for the optimum, clipped to [0, 1]."""
    if not isinstance(schedule, list | tuple) or refusal(schedule) is not None:
        return 0.0
    best, _ = optimum(prices)
    return min(1.0, max(0.0, 0.2 + 0.8 * profit(prices, schedule) / max(best, 1)))


# --- optimum: end ---


def offline_score(prices: Sequence[float], schedule: Sequence[int] | None) -> float:
    """What the grader answers for this submission; `None` is a rollout that submitted nothing valid."""
    return score(prices, schedule)


def states_of_charge(schedule: Sequence[int]) -> list[int]:
    """MWh in the battery after each hour."""
    level, states = 0, []
    for move in schedule:
        level += move
        states.append(level)
    return states


def greedy_schedule(prices: Sequence[float]) -> list[int]:
    """The 4 cheapest of hours 0-15 paired with the 4 dearest of hours 16-23, cheapest with dearest, at full power.

    Ties go to the earlier hour. A pair that would not pay (0.9 x sell <= buy) is dropped.
    """
    values = [cents(price) for price in prices]
    cheapest = sorted(range(16), key=lambda hour: (values[hour], hour))[:4]
    dearest = sorted(range(16, HOURS), key=lambda hour: (-values[hour], hour))[:4]
    schedule = [0] * HOURS
    for buy, sell in zip(cheapest, dearest, strict=True):
        if 9 * values[sell] > 10 * values[buy]:
            schedule[buy], schedule[sell] = POWER, -POWER
    return schedule
