"""GridSim's grader: recomputes the profit and the day's optimum from the prices and the schedule alone.

A verbatim copy of `agent_env.examples.gridsim.battery`'s rules: a grader can't import its siblings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from agentenv_protocol import client

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


async def verify(mcp_url: str) -> list[dict[str, Any]]:
    state = (await client.get_data(mcp_url.removesuffix("/mcp"))).parts[0].data
    prices, schedule = state["prices"], state["schedule"]
    value = score(prices, schedule)
    if schedule is None:
        said = "no valid schedule was submitted"
    else:
        said = f"earned ${profit(prices, schedule) / 1000:.2f} of ${optimum(prices)[0] / 1000:.2f}"
    return [{"id": "profit", "result": value >= 1.0, "score": value, "description": said}]
