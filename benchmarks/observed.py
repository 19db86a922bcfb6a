"""What metrics and the episode log cost `serve`: CPU of a rollout with both, with metrics alone, and with neither.

The three servers stand in front of stub OpenEnv servers, whose CPU is not counted; blocks of rollouts take turns.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from benchmarks.context import Context
from benchmarks.processes import Process
from benchmarks.results import Metric, paired
from benchmarks.stats import ratio_interval
from benchmarks.stub import rows, stub_chain
from benchmarks.versus_native import play_block

SIDES = ("both", "metrics", "neither")
ROLLOUTS = 96
"""of a block: short ones, and many, since a hundredth is looked for"""
TIMES = 8
"""blocks of each side for one pair that is asked for"""


def measure(context: Context) -> list[Metric]:
    with ExitStack() as stack:
        servers: dict[str, Process] = {}
        for side in SIDES:
            work = context.work / side
            flags = ["--episode-log", str(work / "episodes.jsonl")] if side == "both" else []
            module = Path(__file__).with_name("unobserved.py") if side == "neither" else None
            chain = stack.enter_context(stub_chain(work, places=1024, serve=flags, script=module))
            servers[side] = chain.serve
        samples = asyncio.run(_measure(context, servers))
    low, high = ratio_interval(samples["metrics"], samples["neither"])
    extra = {
        "metrics_ms": median(samples["metrics"]),
        "metrics_ratio": median(samples["metrics"]) / median(samples["neither"]),
        "metrics_ratio_low": low,
        "metrics_ratio_high": high,
    }
    note = "server CPU of a rollout with metrics and episode log, beside the same server with neither"
    both, neither = samples["both"], samples["neither"]
    return [paired("observed_cpu", "ms", 1.01, both, neither, of="ratio", note=note, extra=extra)]


async def _measure(context: Context, servers: dict[str, Process]) -> dict[str, list[float]]:
    """Milliseconds of CPU of a rollout, by side."""
    samples: dict[str, list[float]] = defaultdict(list)
    some = rows(ROLLOUTS)
    blocks = context.pairs * TIMES
    for number in range(blocks + 1):
        first = number % len(SIDES)
        for side in (*SIDES[first:], *SIDES[:first]):
            before = servers[side].cpu()
            await play_block(servers[side].url, some)
            samples[side].append(1000 * (servers[side].cpu() - before) / ROLLOUTS)
        if number == 0:
            samples.clear()
        if number % TIMES == 0:
            context.say(f"block {number} of {blocks}")
    return samples
