"""The rewards of a play as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from agent_env.figures import new_figure, save_png


def plot_rewards(path: Path, rewards: Mapping[str, Sequence[float]]) -> Path:
    """Write a PNG: one row a policy, one dot a measured rollout, a bar at the mean.

    Masked rollouts have no reward and are not drawn. Raises `ConfigError` when matplotlib is missing.
    """
    figure = new_figure(8, 1.2 + 0.8 * max(1, len(rewards)))
    axes = figure.subplots()
    for row, values in enumerate(rewards.values()):
        if values:
            mean = fmean(values)
            axes.plot([mean, mean], [row - 0.32, row + 0.32], color="black", linewidth=1, zorder=1)
            axes.annotate(f"{mean:.3f}", (mean, row - 0.34), ha="center", va="bottom", fontsize="small")
        axes.scatter(values, [row + _spread(place) for place in range(len(values))], s=18, alpha=0.6, linewidths=0)
    axes.set_yticks(range(len(rewards)), [f"{name} ({len(values)})" for name, values in rewards.items()])
    axes.set_ylim(len(rewards) - 0.4, -0.6)
    drawn = [value for values in rewards.values() for value in values]
    axes.set_xlim(min([0.0, *drawn]) - 0.05, max([1.0, *drawn]) + 0.05)
    axes.set_xlabel("reward")
    return save_png(figure, path)


def _spread(place: int) -> float:
    """Where in its row a dot lies, so that equal rewards don't hide each other: the golden ratio's sequence."""
    return (place * 0.6180339887 % 1 - 0.5) * 0.5
