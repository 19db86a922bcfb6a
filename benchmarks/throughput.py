"""Episodes a minute, eight at once, in alternating blocks: ours through both servers, the peer, bare containers."""

from __future__ import annotations

import asyncio
import time
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
"""episodes of a block"""
FORK_BLOCK = 160
"""fork isolation has them in no time"""


def measure(context: Context) -> list[Metric]:
    """Each episode in a container of its own, started when it is asked for; and eight at once as forks in one."""
    bundle = write_echo()
    bare = Bare(asyncio.run(image_of(bundle)))
    with (
        original(bundle, context.work / "original", free_port()) as theirs,
        chain(bundle, context.work / "cold", "docker", CONCURRENCY, ["--warm", "0"]) as cold,
        chain(bundle, context.work / "fork", "docker", CONCURRENCY, ["--isolation", "fork"]) as fork,
    ):
        sides = [_Ours(cold, BLOCK), _Ours(fork, FORK_BLOCK), _Theirs(theirs), _Bare(bare)]
        asyncio.run(_measure(context, sides))
    our_cold, our_fork, lean, alone = (side.rates for side in sides)
    return [
        _either(
            paired("", "1/min", 2.5, our_cold, lean, of="ratio", at_least=True),
            paired("", "1/min", 0.8, our_cold, alone, of="ratio", at_least=True),
        ),
        _cpu(sides[0].cpu),
        paired("fork_episodes", "1/min", 600, our_fork, lean, at_least=True),
        paired("fork_episodes_vs_lean", "1/min", 25, our_fork, lean, of="ratio", at_least=True),
    ]


async def _measure(context: Context, sides: list[_Side]) -> None:
    """The first round is not counted."""
    for number in range(context.pairs + 1):
        for side in sides if number % 2 else reversed(sides):
            await side.block()
        if number == 0:
            for side in sides:
                side.rates.clear()
                side.cpu.clear()
        context.say(f"round {number} of {context.pairs}: {', '.join(f'{side.last:.0f}' for side in sides)} a minute")


async def image_of(bundle: Path) -> str:
    """The echo env's image, as our servers use it."""
    docker = provider("docker", **provider_options())
    try:
        return (await docker.prepare(load_bundle(bundle).envs["echo"])).handle
    finally:
        await docker.aclose()


class _Side:
    count = BLOCK

    def __init__(self) -> None:
        self.last = 0.0
        self.rates: list[float] = []
        """episodes a minute, by block"""
        self.cpu: list[float] = []
        """seconds an episode"""

    async def play(self) -> None:
        raise Failed("this side plays nothing")

    async def block(self) -> None:
        left = iter(range(self.count))

        async def player() -> None:
            for _ in left:
                await self.play()

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(player())
        self.last = 60 * self.count / (time.perf_counter() - began)
        self.rates.append(self.last)


class _Ours(_Side):
    """Rollouts through both servers."""

    def __init__(self, servers: Chain, count: int) -> None:
        super().__init__()
        self.count = count
        self._servers = servers

    async def block(self) -> None:
        self._client = RolloutClient(self._servers.serve.url, pooled=True)
        before = self._servers.cpu() + time.process_time()
        await super().block()
        self.cpu.append((self._servers.cpu() + time.process_time() - before) / self.count)
        await self._client.aclose()
        await quiet(self._servers.openenv.url)

    async def play(self) -> None:
        result = await self._client.play(self._servers.rows[0], echo_once)
        if not result.measured or result.reward != 1.0:
            raise Failed(f"a rollout through serve: {result.error or result.reason or result.reward}")


class _Theirs(_Side):
    def __init__(self, server: Process) -> None:
        super().__init__()
        self._server = server

    async def block(self) -> None:
        await super().block()
        await until(lambda: not containers(), "the original's containers to go")

    async def play(self) -> None:
        await episode(self._server.url, 1)


class _Bare(_Side):
    """Start to card and removal, nothing in between."""

    def __init__(self, bare: Bare) -> None:
        super().__init__()
        self._bare = bare

    async def play(self) -> None:
        await asyncio.to_thread(self._bare.episode)


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
