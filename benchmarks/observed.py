"""What metrics and the episode log cost `serve`: CPU of a rollout with both, with metrics alone, and with neither.

The three servers stand in front of stub OpenEnv servers, whose CPU is not counted. Blocks of rollouts take turns, and
the servers are started anew for each pair.
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
BLOCKS = 12
"""of each side, from each start of the servers on"""


def measure(context: Context) -> list[Metric]:
    samples: dict[str, list[float]] = defaultdict(list)
    for number in range(context.pairs):
        for side, milliseconds in _of_one_start(context.work / f"start-{number}").items():
            samples[side].append(median(milliseconds))
        context.say(f"start {number + 1} of {context.pairs}")
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


def _of_one_start(work: Path) -> dict[str, list[float]]:
    """Milliseconds of CPU of a rollout, by side. A process is quicker or slower than its twin for as long as it lives,
    by more than what is looked for, so each pair is of processes of its own."""
    with ExitStack() as stack:
        servers: dict[str, Process] = {}
        for side in SIDES:
            flags = ["--episode-log", str(work / side / "episodes.jsonl")] if side == "both" else []
            script = Path(__file__).with_name("unobserved.py") if side == "neither" else None
            chain = stack.enter_context(stub_chain(work / side, places=1024, serve=flags, script=script))
            servers[side] = chain.serve
        return asyncio.run(_measure(servers))


async def _measure(servers: dict[str, Process]) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = defaultdict(list)
    some = rows(ROLLOUTS)
    for number in range(BLOCKS + 1):
        first = number % len(SIDES)
        for side in (*SIDES[first:], *SIDES[:first]):
            before = servers[side].cpu()
            await play_block(servers[side].url, some)
            samples[side].append(1000 * (servers[side].cpu() - before) / ROLLOUTS)
        if number == 0:
            samples.clear()
    return samples
