"""What metrics and the episode log cost: CPU of a rollout with both, and with neither.

`measure_serve`: of `serve` alone, in front of a stub OpenEnv server, whose CPU is not counted; with metrics alone, too.
`measure_chain`: of both servers, whose sandboxes are forks in Docker, so that envs are not counted. Blocks of rollouts
take turns, and the servers are started anew for each pair.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from agent_env.training.nemo_gym.client import RolloutClient
from benchmarks.context import Context
from benchmarks.echo import write_echo
from benchmarks.ours import Chain, chain
from benchmarks.players import echo_once
from benchmarks.processes import Failed, Process
from benchmarks.results import Metric, paired
from benchmarks.stats import ratio_interval
from benchmarks.stub import rows, stub_chain
from benchmarks.versus_native import play_block
from benchmarks.waiting import quiet

SIDES = ("both", "metrics", "neither")
ROLLOUTS = 96
"""of a block: short ones, and many, since a hundredth is looked for"""
BLOCKS = 12
"""of each side, from each start of the servers on"""
UNOBSERVED = Path(__file__).with_name("unobserved.py")
CONCURRENCY = 8
EPISODES = 40
"""of a block of the chain's"""
CHAIN_BLOCKS = 4


def measure(context: Context) -> list[Metric]:
    return [*measure_serve(context), *measure_chain(context)]


def measure_serve(context: Context) -> list[Metric]:
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
    note = "CPU of serve alone, a rollout with metrics and episode log, beside the same server with neither"
    both, neither = samples["both"], samples["neither"]
    return [paired("observed_serve_cpu", "ms", 1.01, both, neither, of="ratio", note=note, extra=extra)]


def _of_one_start(work: Path) -> dict[str, list[float]]:
    """Milliseconds of CPU of a rollout, by side. A process is quicker or slower than its twin for as long as it lives,
    by more than what is looked for, so each pair is of processes of its own."""
    with ExitStack() as stack:
        servers: dict[str, Process] = {}
        for side in SIDES:
            flags = ["--episode-log", str(work / side / "episodes.jsonl")] if side == "both" else []
            script = UNOBSERVED if side == "neither" else None
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


def measure_chain(context: Context) -> list[Metric]:
    bundle = write_echo()
    samples: dict[str, list[float]] = defaultdict(list)
    for number in range(context.pairs):
        with ExitStack() as stack:
            chains: dict[str, Chain] = {}
            for side in ("both", "neither"):
                work = context.work / f"chain-{number}" / side
                log = ["--episode-log", str(work / "openenv.jsonl")], ["--episode-log", str(work / "serve.jsonl")]
                flags, serve = log if side == "both" else ([], [])
                script = UNOBSERVED if side == "neither" else None
                flags = ["--isolation", "fork", *flags]
                chains[side] = stack.enter_context(chain(bundle, work, "docker", CONCURRENCY, flags, serve, script))
            for side, milliseconds in asyncio.run(_play_chains(chains, number)).items():
                samples[side].append(median(milliseconds))
        told = ", ".join(f"{side} {values[-1]:.1f} ms" for side, values in samples.items())
        context.say(f"chain {number + 1} of {context.pairs}: {told}")
    note = "CPU of both servers, a rollout in fork isolation with metrics and logs, beside the same with neither"
    both, neither = samples["both"], samples["neither"]
    return [paired("observed_chain_cpu", "ms", 1.01, both, neither, of="ratio", note=note)]


async def _play_chains(chains: dict[str, Chain], first: int) -> dict[str, list[float]]:
    samples: dict[str, list[float]] = defaultdict(list)
    sides = list(chains) if first % 2 else list(reversed(chains))
    for number in range(CHAIN_BLOCKS + 1):
        for side in sides if number % 2 else reversed(sides):
            before = chains[side].cpu()
            await _echo_block(chains[side])
            samples[side].append(1000 * (chains[side].cpu() - before) / EPISODES)
        if number == 0:
            samples.clear()
    return samples


async def _echo_block(servers: Chain) -> None:
    client = RolloutClient(servers.serve.url, pooled=True)
    left = iter(range(EPISODES))

    async def player() -> None:
        for _ in left:
            result = await client.play(servers.rows[0], echo_once)
            if result.reward != 1.0:
                raise Failed(f"a rollout through serve: {result.error or result.reason or result.reward}")

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(player())
    await client.aclose()
    await quiet(servers.openenv.url)
