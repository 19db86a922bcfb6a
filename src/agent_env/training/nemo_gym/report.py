"""What a play adds up to: one table for people, one summary for programs."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import pstdev
from typing import Any

from agent_env.tables import align
from agent_env.training.nemo_gym.client import RolloutResult

Json = Any

PHASES = ("seed", "first_call", "calls", "verify", "total")
_SHOWN_FAULTS = 10


def summary_of(results: Sequence[RolloutResult], wall: float) -> dict[str, Json]:
    """One policy's entry in the summary. Masked and failed rollouts have no part in the mean."""
    rewards = rewards_of(results)
    return {
        "rollouts": len(results),
        "mean_reward": round(math.fsum(rewards) / len(rewards), 6) if rewards else None,
        "masked": sum(result.masked for result in results),
        "errors": sum(result.error is not None for result in results),
        "seconds": round(wall, 1),
    }


def rewards_of(results: Sequence[RolloutResult]) -> list[float]:
    """Of the measured rollouts."""
    return [result.reward for result in results if result.measured and result.reward is not None]


def table(results: Mapping[str, Sequence[RolloutResult]], walls: Mapping[str, float]) -> str:
    """A line per policy: rollouts, rewards, faults, and seconds per phase as median/90th percentile."""
    heads = ["policy", "rollouts", "mean", "std", "min", "max", "errors", "masked"]
    rows = [[*heads, *(f"{phase} s" for phase in PHASES), "wall s"]]
    for policy, played in results.items():
        entry, rewards = summary_of(played, walls[policy]), rewards_of(played)
        mean = entry["mean_reward"]
        spread = [pstdev(rewards), min(rewards), max(rewards)] if rewards else [None, None, None]
        rows.append(
            [
                policy,
                str(entry["rollouts"]),
                "-" if mean is None else f"{mean:.6f}",
                *("-" if value is None else f"{value:.4f}" for value in spread),
                str(entry["errors"]),
                str(entry["masked"]),
                *(
                    quantiles([result.seconds[phase] for result in played if phase in result.seconds])
                    for phase in PHASES
                ),
                f"{walls[policy]:.1f}",
            ]
        )
    return align(rows)


def faults(results: Mapping[str, Sequence[RolloutResult]]) -> list[str]:
    """Why rollouts failed or were masked, the most frequent first."""
    counts = Counter(
        f"{policy}: {'masked' if result.error is None else 'error'}: {result.error or _masked(result)}"
        for policy, played in results.items()
        for result in played
        if not result.measured
    )
    lines = [f"{count} x {fault}" for fault, count in counts.most_common(_SHOWN_FAULTS)]
    more = len(counts) - len(lines)
    return [*lines, f"and {more} other faults"] if more > 0 else lines


def _masked(result: RolloutResult) -> str:
    return f"{result.kind}: {result.reason}"


def quantiles(values: Sequence[float]) -> str:
    """Median/90th percentile of seconds."""
    if not values:
        return "-"
    ordered = sorted(values)
    ninth = ordered[max(0, math.ceil(0.9 * len(ordered)) - 1)]
    return f"{_seconds(ordered[(len(ordered) - 1) // 2])}/{_seconds(ninth)}"


def _seconds(value: float) -> str:
    return f"{value:.3f}" if value < 10 else f"{value:.1f}"
