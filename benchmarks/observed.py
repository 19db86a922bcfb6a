"""What metrics and the episode logs cost: CPU of a rollout with them, and without.

`measure_chain`: of both servers, whose sandboxes are forks in Docker, so that the envs are not counted.
`measure_serve`: of `serve` alone, in front of a stub OpenEnv server, whose CPU is not counted; with metrics alone, too.

The servers switch from one side to the other while they run (switched.py), for blocks of rollouts that take turns: two
processes of one program differ, as long as they live, by more than what is looked for. A hundredth is less than what
one block differs from the next; so there is also a side on which the servers clock what they spend on observing.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from statistics import median

from agent_env.observe.log import GATHER_S
from agent_env.training.nemo_gym.client import RolloutClient
from benchmarks.context import Context
from benchmarks.echo import write_echo
from benchmarks.ours import Chain, chain
from benchmarks.players import echo_once
from benchmarks.processes import Failed, Process
from benchmarks.results import Metric, paired
from benchmarks.stats import ratio_interval
from benchmarks.stub import rows, stub_chain
from benchmarks.switched import SIGNALS
from benchmarks.switched import spent as spent_file
from benchmarks.versus_native import play_block
from benchmarks.waiting import quiet

SWITCHED = Path(__file__).with_name("switched.py")
ROLLOUTS = 512
"""of a block in front of the stub"""
EPISODES = 40
"""of a block with envs"""
CONCURRENCY = 8
BLOCKS = 2
"""of each side that make one value"""
Samples = dict[str, dict[str, list[float]]]
"""milliseconds of CPU of a rollout, by what was counted and side; under `OBSERVING` those that were clocked"""
OBSERVING = "observing"


def measure(context: Context) -> list[Metric]:
    return [*measure_chain(context), *measure_serve(context)]


def measure_chain(context: Context) -> list[Metric]:
    logs = [["--episode-log", str(context.work / name)] for name in ("openenv.jsonl", "serve.jsonl")]
    flags = ["--isolation", "fork", *logs[0]]
    with chain(write_echo(), context.work, "docker", CONCURRENCY, flags, logs[1], SWITCHED) as servers:
        processes = [servers.openenv, servers.serve]

        def cpu() -> dict[str, float]:
            return {"all": servers.cpu(), "servers": sum(process.own_cpu() for process in processes)}

        async def block() -> None:
            await _echo_block(servers)

        samples = asyncio.run(_measure(context, processes, ("both", "neither", "timed"), block, cpu, EPISODES))
    both, neither = samples["all"]["both"], samples["all"]["neither"]
    note = "CPU of both servers with their graders, a rollout with metrics and logs, beside the same with neither"
    extra = _compared("servers_alone", samples["servers"]["both"], samples["servers"]["neither"])
    told = "of the CPU of both servers with their graders: what metrics and logs take, by the servers' own clocks"
    return [
        paired("observed_chain_cpu", "ms", 1.01, both, neither, of="ratio", note=note, extra=extra),
        _share("observed_chain_share", samples, "all", told, "servers"),
    ]


def measure_serve(context: Context) -> list[Metric]:
    log = ["--episode-log", str(context.work / "stub.jsonl")]
    some = rows(ROLLOUTS)
    with stub_chain(context.work / "stub", places=1024, serve=log, script=SWITCHED) as servers:

        def cpu() -> dict[str, float]:
            return {"serve": servers.serve.own_cpu()}

        async def block() -> None:
            await play_block(servers.serve.url, some)

        samples = asyncio.run(_measure(context, [servers.serve], tuple(SIGNALS), block, cpu, ROLLOUTS))
    serve = samples["serve"]
    note = "CPU of serve alone, a rollout of three requests with metrics and log, beside the same with neither"
    extra = _compared("metrics", serve["metrics"], serve["neither"])
    told = "of the CPU of serve alone, in rollouts of three requests: what metrics and log take, by its own clock"
    return [
        paired("observed_serve_cpu", "ms", 1.01, serve["both"], serve["neither"], of="ratio", note=note, extra=extra),
        _share("observed_serve_share", samples, "serve", told),
    ]


async def _measure(
    context: Context,
    processes: Sequence[Process],
    sides: Sequence[str],
    block: Callable[[], Awaitable[None]],
    cpu: Callable[[], Mapping[str, float]],
    rollouts: int,
) -> Samples:
    samples: Samples = defaultdict(lambda: defaultdict(list))
    await block()
    for number in range(context.pairs):
        sums: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
        for turn in range(BLOCKS):
            first = (number + turn) % len(sides)
            for side in (*sides[first:], *sides[:first]):
                spent, clocked = await _of_block(processes, side, block, cpu)
                # Less than nothing: a grader that had done its share was replaced, and took its times along.
                while min(spent.values()) <= 0:
                    spent, clocked = await _of_block(processes, side, block, cpu)
                for what, seconds in spent.items():
                    sums[what][side] += 1000 * seconds / (BLOCKS * rollouts)
                for where, seconds in clocked.items():
                    sums[OBSERVING][where] += 1000 * seconds / (BLOCKS * rollouts)
        for what, by_side in sums.items():
            for side, milliseconds in by_side.items():
                samples[what][side].append(milliseconds)
        told = "; ".join(
            f"{what}: {', '.join(f'{side} {ms:.3f}' for side, ms in by_side.items())} ms"
            for what, by_side in sums.items()
        )
        context.say(f"pair {number + 1} of {context.pairs}: {told}")
    return samples


async def _of_block(
    processes: Sequence[Process],
    side: str,
    block: Callable[[], Awaitable[None]],
    cpu: Callable[[], Mapping[str, float]],
) -> tuple[dict[str, float], dict[str, float]]:
    """Seconds of CPU by what was counted, and those that were clocked."""
    _switch(processes, side)
    before = cpu()
    await block()
    await asyncio.sleep(GATHER_S + 0.2)  # until the log of this block is written
    after = cpu()
    clocked = {}
    if side == "timed":
        _switch(processes, "neither")
        clocked = await _clocked(processes)
    return {what: seconds - before[what] for what, seconds in after.items()}, clocked


def _switch(processes: Sequence[Process], side: str) -> None:
    for process in processes:
        os.kill(process.pid, SIGNALS[side])


async def _clocked(processes: Sequence[Process]) -> dict[str, float]:
    """Seconds that the servers spent on observing, on their event loops and in the threads of their logs."""
    seconds: dict[str, float] = defaultdict(float)
    async with asyncio.timeout(10):
        for process in processes:
            told = spent_file(process.pid)
            while not told.exists():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            for where, nanoseconds in json.loads(told.read_text()).items():
                seconds[where.removesuffix("_ns")] += nanoseconds / 1e9
            told.unlink()
    return seconds


def _share(name: str, samples: Samples, of: str, note: str, besides: str | None = None) -> Metric:
    observing = samples[OBSERVING]
    spent_ms = [loop + thread for loop, thread in zip(observing["loop"], observing["thread"], strict=True)]
    shares = [100 * mine / whole for mine, whole in zip(spent_ms, samples[of]["timed"], strict=True)]
    extra = {
        "loop_us": 1000 * median(observing["loop"]),
        "thread_us": 1000 * median(observing["thread"]),
        "rollout_ms": median(samples[of]["timed"]),
        "least": min(shares),
        "largest": max(shares),
    }
    if besides is not None:
        extra[f"{besides}_alone_ms"] = alone = median(samples[besides]["timed"])
        extra[f"of_{besides}_alone"] = 100 * median(spent_ms) / alone
    return Metric(name, "%", 1.0, ours=median(shares), pairs=len(shares), note=note, extra=extra)


def _compared(name: str, ours: Sequence[float], peer: Sequence[float]) -> dict[str, float]:
    low, high = ratio_interval(ours, peer)
    ms = median(ours)
    return {
        f"{name}_ms": ms,
        f"{name}_ratio": ms / median(peer),
        f"{name}_ratio_low": low,
        f"{name}_ratio_high": high,
    }


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
