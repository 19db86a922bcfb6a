"""A day as a picture: prices, what the schedule does in each hour, what the battery holds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from agent_env.examples.gridsim.battery import ENERGY, HOURS, POWER, offline_score, optimum, profit, states_of_charge
from agent_env.figures import new_figure, save_png


def plot_day(path: Path, date: str, hub: str, prices: Sequence[float], schedule: Sequence[int] | None) -> Path:
    """Write a PNG. Without a schedule the prices stand alone. Raises `ConfigError` when matplotlib is missing."""
    figure = new_figure(8, 6)
    top, middle, bottom = figure.subplots(3, 1, sharex=True, height_ratios=(3, 2, 2))
    hours = range(HOURS)
    top.step(range(HOURS + 1), [*prices, prices[-1]], where="post", color="tab:blue")
    top.axhline(0, color="grey", linewidth=0.5)
    top.set_ylabel("price, $/MWh", parse_math=False)
    top.set_title(f"{date}, {hub}: {_result(prices, schedule)}", parse_math=False)
    moves = list(schedule or [0] * HOURS)
    colours = ["tab:green" if move > 0 else "tab:red" for move in moves]
    middle.bar(hours, moves, width=0.9, align="edge", color=colours)
    middle.axhline(0, color="grey", linewidth=0.5)
    middle.set_ylim(-POWER - 1, POWER + 1)
    middle.set_ylabel("charges (+), sells (-)\nMWh")
    bottom.plot(range(HOURS + 1), [0, *states_of_charge(moves)], color="tab:purple")
    bottom.fill_between(range(HOURS + 1), [0, *states_of_charge(moves)], color="tab:purple", alpha=0.2)
    bottom.set_ylim(0, ENERGY + 2)
    bottom.set_ylabel("held, MWh")
    bottom.set_xlabel("hour of the day")
    bottom.set_xlim(0, HOURS)
    bottom.set_xticks(range(0, HOURS + 1, 3))
    return save_png(figure, path)


def _result(prices: Sequence[float], schedule: Sequence[int] | None) -> str:
    best = optimum(prices)[0] / 1000
    if schedule is None:
        return f"no valid schedule; the optimum earns ${best:,.2f}"
    earned = profit(prices, schedule) / 1000
    return f"${earned:,.2f} of ${best:,.2f}, score {round(offline_score(prices, schedule), 6):g}"
