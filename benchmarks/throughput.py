"""Episodes a minute, eight at once: ours through both servers, the original's, and bare containers, in alternating
blocks."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from pathlib import Path
from statistics import median

from agent_env.bundle import load_bundle
from agent_env.sandbox import provider
from agent_env.training.nemo_gym.client import RolloutClient
from benchmarks.bare import Bare
from benchmarks.context import Context, free_port
from benchmarks.echo import write_echo
from benchmarks.original import containers, original
from benchmarks.ours import Chain, chain, provider_options
from benchmarks.players import echo_once, episode
from benchmarks.processes import Failed, Process
from benchmarks.results import Metric, paired
from benchmarks.waiting import quiet, until

CONCURRENCY = 8
BLOCK = 16
"""episodes of a block; many more of ours in fork isolation, which has them in no time"""


def measure(context: Context) -> list[Metric]:
    """A container of its own for each episode, started when it is asked for."""
    bundle = write_echo()
    image = asyncio.run(image_of(bundle))
    with (
        original(bundle, context.work / "original", free_port()) as theirs,
        chain(bundle, context.work / "cold", "docker", CONCURRENCY, ["--warm", "0"]) as ours,
    ):
        blocks = _Blocks(theirs, ours, BLOCK, Bare(image))
        asyncio.run(blocks.measure(context))
    lean = paired("", "1/min", 2.5, blocks.ours_rate, blocks.their_rate, of="ratio", at_least=True)
    bare = paired("", "1/min", 0.8, blocks.ours_rate, blocks.bare_rate, of="ratio", at_least=True)
    return [_either(lean, bare), _cpu(blocks.cpu)]


def measure_fork(context: Context) -> list[Metric]:
    """Episodes as forks, eight of them in one container."""
    bundle = write_echo()
    with (
        original(bundle, context.work / "original", free_port()) as theirs,
        chain(bundle, context.work / "fork", "docker", CONCURRENCY, ["--isolation", "fork"]) as ours,
    ):
        blocks = _Blocks(theirs, ours, 10 * BLOCK, None)
        asyncio.run(blocks.measure(context))
    rates = blocks.ours_rate, blocks.their_rate
    return [
        paired("fork_episodes", "1/min", 600, *rates, at_least=True),
        paired("fork_episodes_vs_lean", "1/min", 25, *rates, of="ratio", at_least=True),
    ]


async def image_of(bundle: Path) -> str:
    """The echo env's image, as our servers use it."""
    docker = provider("docker", **provider_options())
    try:
        return (await docker.prepare(load_bundle(bundle).envs["echo"])).handle
    finally:
        await docker.aclose()


class _Blocks:
    def __init__(self, theirs: Process, ours: Chain, our_count: int, bare: Bare | None) -> None:
        self._theirs = theirs
        self._ours = ours
        self._our_count = our_count
        self._bare = bare
        self._client = RolloutClient(ours.serve.url, pooled=True)
        self.rates: dict[str, list[float]] = defaultdict(list)
        """episodes a minute"""
        self.cpu: list[float] = []
        """seconds an episode, of our client and both servers"""

    @property
    def ours_rate(self) -> list[float]:
        return self.rates["ours"]

    @property
    def their_rate(self) -> list[float]:
        return self.rates["theirs"]

    @property
    def bare_rate(self) -> list[float]:
        return self.rates["bare"]

    async def measure(self, context: Context) -> None:
        """The first round is not counted."""
        blocks = [self._our_block, self._their_block, *([self._bare_block] if self._bare else [])]
        for number in range(context.pairs + 1):
            for block in blocks if number % 2 else reversed(blocks):
                await block()
            if number == 0:
                self.rates.clear()
                self.cpu.clear()
            context.say(f"block {number} of {context.pairs}")
        await self._client.aclose()

    async def _our_block(self) -> None:
        before = self._ours.cpu() + time.process_time()
        await self._block("ours", self._rollout, self._our_count)
        self.cpu.append((self._ours.cpu() + time.process_time() - before) / self._our_count)
        await quiet(self._ours.openenv.url)

    async def _their_block(self) -> None:
        await self._block("theirs", lambda: episode(self._theirs.url, 1), BLOCK)
        await until(lambda: not containers(), "the original's containers to go")

    async def _bare_block(self) -> None:
        assert self._bare is not None
        bare = self._bare
        await self._block("bare", lambda: asyncio.to_thread(bare.episode), BLOCK)

    async def _block(self, side: str, play: Callable[[], Awaitable[object]], count: int) -> None:
        left = iter(range(count))

        async def player() -> None:
            for _ in left:
                await play()

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(player())
        self.rates[side].append(60 * count / (time.perf_counter() - began))

    async def _rollout(self) -> None:
        result = await self._client.play(self._ours.rows[0], echo_once)
        if not result.measured or result.reward != 1.0:
            raise Failed(f"a rollout through serve: {result.error or result.reason or result.reward}")


def _either(lean: Metric, bare: Metric) -> Metric:
    """So many times lean, or near what bare containers reach: one of the two is enough."""
    best = max((lean, bare), key=lambda metric: (metric.ratio or 0) / metric.target)
    return Metric(
        "cold_episodes",
        "1/min",
        best.target,
        of="ratio",
        at_least=True,
        ours=best.ours,
        peer=best.peer,
        interval=best.interval,
        pairs=best.pairs,
        note=f"peer: {'lean' if best is lean else 'bare containers'}; 2.5 x lean or 0.8 x bare is the target",
        extra={
            "lean_per_min": lean.peer or 0,
            "bare_per_min": bare.peer or 0,
            "vs_lean": lean.ratio or 0,
            "vs_bare": bare.ratio or 0,
        },
    )


def _cpu(seconds: list[float]) -> Metric:
    note = "client and both servers, an episode"
    return Metric("cold_episode_cpu", "s", 0.4, ours=median(seconds), pairs=len(seconds), note=note)
