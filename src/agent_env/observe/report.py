"""What both servers tell as JSON besides their own counts: health, times, what fails."""

from __future__ import annotations

from typing import Any

from agent_env.observe.exposition import shown
from agent_env.observe.health import Health
from agent_env.observe.lag import LoopLag
from agent_env.observe.times import Histogram
from agent_env.observe.watcher import Watcher

Json = Any


def shared(watcher: Watcher, lag: LoopLag, health: Health) -> dict[str, Json]:
    times, troubles = watcher.times, watcher.troubles
    return {
        "health": {"state": health.state.word, "why": [shown(why) for why in health.why]},
        "event_loop_lag_s": round(lag.last, 4),
        "event_loop_lag_max_s": round(lag.largest, 4),
        "times": {name: figures(histogram) for name, histogram in times.phases.items()},
        "calls": {shown(name): figures(histogram) for name, histogram in times.calls.items()},
        "failing_tasks": [
            {
                "task": shown(task),
                "kind": streak.kind.value,
                "in_a_row": streak.in_a_row,
                "failures": streak.failures,
                "since": round(streak.since, 3),
                "reason": streak.reason,
                "remedy": streak.kind.remedy,
            }
            for task, streak in troubles.listed().items()
        ],
        "last_failures": [
            {
                "at": round(failure.at, 3),
                "task": failure.task and shown(failure.task),
                "kind": failure.kind.value,
                "reason": failure.reason,
                "tool": failure.tool and shown(failure.tool),
                "id": failure.who,
            }
            for failure in reversed(troubles.last)
        ],
    }


def figures(histogram: Histogram) -> dict[str, Json]:
    """How many, and seconds: mean, median, 95th percentile (both exact to their bucket), the largest."""
    count = histogram.count
    if not count:
        return {"count": 0}
    return {
        "count": count,
        "mean_s": round(histogram.total / count, 4),
        "p50_s": round(histogram.quantile(0.5) or 0.0, 4),
        "p95_s": round(histogram.quantile(0.95) or 0.0, 4),
        "max_s": round(histogram.largest, 4),
    }
