"""Players without a model, for smoke runs: `play` knows them by name.

`idle`, `greedy`, `optimal` and `random` read the day's prices and submit one schedule. `broken` does what a bad model
does: every call it makes is wrong, so it is scored 0 (and never masked: the env has done its part).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from random import Random
from typing import Any, Protocol

from agent_env.examples.gridsim.battery import ENERGY, HOURS, POWER, greedy_schedule, optimum


class Play(Protocol):
    """What a policy uses of a rollout under way."""

    rng: Random

    async def call(self, name: str, arguments: dict[str, Any] | str) -> str:
        """One tool call, the answer as text; a `str` goes out as the raw argument text that a model wrote."""

    def say(self, text: str) -> None:
        """The final reply."""


POLICIES = ("idle", "greedy", "optimal", "random", "broken")


def schedule_for(policy: str, prices: Sequence[float], rng: Random) -> list[int] | None:
    """The schedule that the named policy submits for these prices; None: it submits nothing valid."""
    match policy:
        case "idle":
            return [0] * HOURS
        case "greedy":
            return greedy_schedule(prices)
        case "optimal":
            return optimum(prices)[1]
        case "random":
            return random_schedule(rng)
        case "broken":
            return None
    raise ValueError(f"no GridSim policy is named {policy!r}: there are {', '.join(POLICIES)}")


def random_schedule(rng: Random) -> list[int]:
    """Each hour any move that the battery can make."""
    soc, schedule = 0, []
    for _ in range(HOURS):
        move = rng.randint(-min(POWER, soc), min(POWER, ENERGY - soc))
        soc += move
        schedule.append(move)
    return schedule


async def idle(play: Play) -> None:
    await _submit(play, "idle")


async def greedy(play: Play) -> None:
    await _submit(play, "greedy")


async def optimal(play: Play) -> None:
    await _submit(play, "optimal")


async def random(play: Play) -> None:
    await _submit(play, "random")


async def broken(play: Play) -> None:
    """Wrong names, wrong types, wrong lengths, infeasible schedules and text that is no JSON."""
    day = [0] * HOURS
    for schedule in (day[1:], [-1, *day[1:]], [POWER + 1, *day[1:]], [POWER] * HOURS, ["1", *day[1:]], [0.5, *day[1:]]):
        await play.call("submit_schedule", {"schedule": schedule})
    await play.call("submit_schedule", {})
    await play.call("submit_schedule", {"schedule": "buy low, sell high"})
    await play.call("submit_schedule", '{"schedule": [0, 0,')
    await play.call("submit_schedule", "[]")
    await play.call("sell_everything", {"hour": 17})
    play.say("The schedule is submitted.")


async def _submit(play: Play, policy: str) -> None:
    prices = _prices(await play.call("get_prices", {}))
    if prices is None:  # the env is down: its rollout is masked, whatever is said here
        play.say("The prices could not be read.")
        return
    schedule = schedule_for(policy, prices, play.rng)
    answer = await play.call("submit_schedule", {"schedule": schedule})
    play.say(f"The schedule is submitted: {answer}")


def _prices(text: str) -> list[float] | None:
    try:
        day = json.loads(text)
    except ValueError:
        return None
    prices = day.get("prices") if isinstance(day, dict) else None
    return prices if isinstance(prices, list) and len(prices) == HOURS else None
