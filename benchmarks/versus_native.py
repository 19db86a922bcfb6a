"""`serve` alone beside NeMo Gym's native trivial server, 64 rollouts at once of three requests each.

Behind `serve` stands the stub OpenEnv server, which answers at once and whose CPU is not counted; the native server has
nothing behind it, and keeps no episode. Blocks alternate; the client is ours and the same.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from agent_env.training.nemo_gym.client import RolloutClient
from agent_env.training.nemo_gym.rows import Row
from benchmarks.context import Context, free_port
from benchmarks.processes import Failed, Process, listening
from benchmarks.results import Metric, paired
from benchmarks.stats import percentile
from benchmarks.stub import TESTS, rows, stub_chain

CONCURRENCY = 64
BLOCK = 256
"""rollouts of a block"""


def measure(context: Context) -> list[Metric]:
    with native(context.work / "native") as theirs, stub_chain(context.work / "ours", places=1024) as ours:
        samples = asyncio.run(_measure(context, {"ours": ours.serve, "theirs": theirs}))
    cpu = [1000 * value for value in samples["ours cpu"]], [1000 * value for value in samples["theirs cpu"]]
    extra = {
        f"{side}_{name}": median(samples[f"{side} {name}"])
        for side in ("ours", "theirs")
        for name in ("per_s", "p50_ms", "p99_ms")
    }
    return [paired("serve_cpu_vs_native", "ms", 0.5, *cpu, of="ratio", note="server CPU of a rollout", extra=extra)]


async def _measure(context: Context, servers: dict[str, Process]) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = defaultdict(list)
    some = rows(BLOCK)
    for number in range(context.pairs + 1):
        for side in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
            before = servers[side].cpu()
            wall, latencies = await play_block(servers[side].url, some)
            samples[f"{side} cpu"].append((servers[side].cpu() - before) / BLOCK)
            samples[f"{side} per_s"].append(BLOCK / wall)
            samples[f"{side} p50_ms"].append(1000 * median(latencies))
            samples[f"{side} p99_ms"].append(1000 * percentile(latencies, 0.99))
        if number == 0:
            samples.clear()
        context.say(f"block {number} of {context.pairs}")
    return samples


async def play_block(url: str, some: list[Row]) -> tuple[float, list[float]]:
    """Wall seconds, and those of each tool call."""
    client = RolloutClient(url, pooled=True)
    left = iter(some)
    latencies: list[float] = []

    async def player() -> None:
        for row in left:
            result = await client.play(row, _look)
            if not result.measured or result.reward != 0.75:
                raise Failed(f"a rollout at {url}: {result.error or result.reason or result.reward}")
            latencies.append(result.seconds["first_call"])

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(player())
    wall = time.perf_counter() - began
    await client.aclose()
    return wall, latencies


async def _look(play: Any) -> None:
    await play.call("look", {"at": "the sea"})
    play.say("done")


@contextmanager
def native(work: Path) -> Iterator[Process]:
    """NeMo Gym 0.7.0 from the venv that the tests of its client use, installed on first use."""
    sys.path.append(str(TESTS))
    try:
        from clients.nemo_gym_venv import ClientMissing, ensure_nemo_gym
    finally:
        sys.path.remove(str(TESTS))
    try:
        installed = ensure_nemo_gym()
    except ClientMissing as error:
        raise Failed(str(error)) from None
    work.mkdir(parents=True, exist_ok=True)
    port, name = free_port(), "trivial_resources_server"
    settings = {"entrypoint": "native_server.py", "domain": "other", "host": "127.0.0.1", "port": port}
    config = {
        name: {"resources_servers": {"trivial": settings}},
        "head_server": {"host": "127.0.0.1", "port": free_port()},
        "dry_run": False,
    }
    env = installed.environment(work) | {
        "NEMO_GYM_CONFIG_DICT": json.dumps(config),
        "NEMO_GYM_CONFIG_PATH": name,
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
    }
    command = [str(installed.python), str(Path(__file__).with_name("native_server.py"))]
    with listening(command, f"http://127.0.0.1:{port}", work / "native.log", env, cwd=work) as process:
        yield process
