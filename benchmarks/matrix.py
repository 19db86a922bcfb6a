"""Our ways of running the echo env: Docker or processes, one sandbox each or forks, cold or warm, 1 to 32 at once."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from statistics import median
from typing import Any

from agent_env.tables import align
from agent_env.training.nemo_gym.client import RolloutClient, RolloutResult
from benchmarks.context import Context
from benchmarks.echo import write_echo
from benchmarks.ours import Chain, chain
from benchmarks.players import echo_once
from benchmarks.processes import Failed
from benchmarks.results import Metric
from benchmarks.stats import percentile
from benchmarks.waiting import quiet

CONCURRENCY = (1, 8, 32)
SANDBOXES = ("docker", "process")
ISOLATIONS = {"container": [], "fork": ["--isolation", "fork"]}
WARMTHS = {"cold": ["--warm", "0"], "warm": ["--warm", "8"]}

Json = Any


def measure(context: Context) -> list[Metric]:
    """No targets of their own: the table goes to matrix.json beside the results, and to stdout."""
    bundle = write_echo()
    cells: dict[str, Json] = {}
    for sandbox, isolation, warmth in itertools.product(SANDBOXES, ISOLATIONS, WARMTHS):
        name = f"{sandbox} {isolation} {warmth}"
        flags = [*ISOLATIONS[isolation], *WARMTHS[warmth], "--max-starting", "8"]
        try:
            with chain(bundle, context.work / name.replace(" ", "-"), sandbox, max(CONCURRENCY), flags) as running:
                cells |= asyncio.run(_levels(context, name, running))
        except Failed as failure:
            cells[name] = {"failed": str(failure)}
            context.say(f"{name}: {failure}")
    (context.out / "matrix.json").write_text(json.dumps(cells, indent=1) + "\n")
    print(_table(cells))
    return []


async def _levels(context: Context, name: str, running: Chain) -> dict[str, Json]:
    found: dict[str, Json] = {}
    for concurrency in CONCURRENCY:
        await quiet(running.openenv.url)
        cell = await _level(running, concurrency, 4 if context.quick else 20)
        found[f"{name} {concurrency}"] = cell
        context.say(f"{name}, {concurrency} at once: {cell['per_min']:.0f} a minute")
    return found


async def _level(running: Chain, concurrency: int, seconds: float) -> Json:
    client = RolloutClient(running.serve.url, pooled=True)
    results: list[RolloutResult] = []
    before = running.cpu() + time.process_time()
    began = time.perf_counter()

    async def player() -> None:
        while True:
            results.append(await client.play(running.rows[0], echo_once))
            if time.perf_counter() - began > seconds:
                return

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(player())
    wall = time.perf_counter() - began
    cpu = running.cpu() + time.process_time() - before
    await client.aclose()
    return {
        "per_min": round(60 * sum(result.measured for result in results) / wall, 1),
        "ready_p50_s": round(median(_ready(results)), 4),
        "ready_p90_s": round(percentile(_ready(results), 0.9), 4),
        "verify_p50_s": round(median(result.seconds["verify"] for result in results if result.measured), 4),
        "cpu_s": round(cpu / len(results), 4),
        "lost": sum(not result.measured for result in results),
    }


def _ready(results: Sequence[RolloutResult]) -> list[float]:
    """Seconds from the seed to the first call's answer."""
    return [result.seconds["seed"] + result.seconds["first_call"] for result in results if result.measured]


def _table(cells: dict[str, Json]) -> str:
    heads = ["sandbox", "isolation", "spares", "at once"]
    columns = ["per_min", "ready_p50_s", "ready_p90_s", "verify_p50_s", "cpu_s", "lost"]
    rows = [[*heads, *columns]]
    for name, cell in cells.items():
        words = [*name.split(), ""][: len(heads)]
        rows.append([*words, *(str(cell.get(column, "-")) for column in columns)])
    return align(rows, left=(0, 1, 2))
