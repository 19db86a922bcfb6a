"""Ours beside the original with its lean env provider: the same echo bundle on Docker, one episode at a time.

A pair is one episode of each side; the order changes from pair to pair. What a side still does after its answer
(teardown, a new spare) is over before the next one begins. Ours is also played through `serve`, and the env is called
without any server between, which is the floor of a tool call.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from agent_env.bundle import load_bundle
from agent_env.env.card import wait_ready
from agent_env.env.http import EnvHttp
from agent_env.env.tools import ToolSession
from agent_env.sandbox import provider
from agent_env.sandbox.base import SandboxSpec
from agent_env.training.nemo_gym.client import Rollout, RolloutClient
from benchmarks.context import Context, free_port
from benchmarks.echo import write_echo
from benchmarks.original import containers, original
from benchmarks.ours import Chain, chain, openenv, provider_options
from benchmarks.players import episode, timed
from benchmarks.processes import Failed, Process
from benchmarks.results import Metric, paired
from benchmarks.waiting import quiet, until

CALLS = 10
"""tool calls an episode; a pair's value is their median"""


def measure(context: Context) -> list[Metric]:
    bundle = write_echo()
    with (
        original(bundle, context.work / "original", free_port()) as theirs,
        chain(bundle, context.work / "cold", "docker", 2, ["--warm", "0"]) as ours,
        openenv(bundle, context.work / "warm", "docker", 2, ["--warm", "1"]) as warm,
    ):
        return asyncio.run(_measure(context, bundle, _Sides(theirs, ours, warm)))


async def _measure(context: Context, bundle: Path, sides: _Sides) -> list[Metric]:
    client = RolloutClient(sides.ours.serve.url, pooled=True)
    async with _env_alone(bundle) as tools:
        for number in range(context.pairs + 1):
            turns = (
                sides.original,
                sides.cold,
                sides.warm_start,
                lambda: sides.rollout(client),
                lambda: sides.floor(tools),
            )
            for turn in turns if number % 2 else reversed(turns):
                await turn()
            if number == 0:
                sides.samples.clear()  # images, caches and graders got warm in it
            context.say(f"pair {number} of {context.pairs}")
        cpu = await sides.cpu_per_call(client, 50 if context.quick else 500)
    await client.aclose()
    return _metrics(sides.samples, cpu)


@dataclass
class _Sides:
    theirs: Process
    ours: Chain
    warm: Process
    samples: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    """seconds"""

    async def original(self) -> None:
        times = await episode(self.theirs.url, CALLS)
        self.samples["their reset"].append(times.reset)
        self.samples["their call"].append(median(times.calls))
        self.samples["their end"].append(times.end)
        await until(lambda: not containers(), "the original's container to go")

    async def cold(self) -> None:
        times = await episode(self.ours.openenv.url, 1)
        self.samples["cold reset"].append(times.reset)
        await quiet(self.ours.openenv.url)

    async def warm_start(self) -> None:
        """A spare is there before, and made anew after."""
        times = await episode(self.warm.url, 1)
        self.samples["warm reset"].append(times.reset)
        await quiet(self.warm.url)

    async def rollout(self, client: RolloutClient) -> None:
        seconds: list[float] = []

        async def policy(play: Rollout) -> None:
            await play.ready()
            for number in range(CALLS):
                seconds.append(await timed(play.call("echo", {"text": f"{number}"})))
            play.say("done")

        result = await client.play(self.ours.rows[0], policy)
        if not result.measured or result.reward != 1.0:
            raise Failed(f"a rollout through serve: {result.error or result.reason or result.reward}")
        self.samples["our call"].append(median(seconds))
        self.samples["our verify"].append(result.seconds["verify"])
        await quiet(self.ours.openenv.url)

    async def floor(self, tools: ToolSession) -> None:
        seconds = [await timed(tools.call("echo", {"text": f"{number}"}, timeout=30)) for number in range(CALLS)]
        self.samples["floor call"].append(median(seconds))

    async def cpu_per_call(self, client: RolloutClient, calls: int) -> float:
        """CPU milliseconds of both servers for one tool call, over many in one rollout."""
        spent = 0.0

        async def policy(play: Rollout) -> None:
            nonlocal spent
            await play.ready()
            before = self.ours.cpu()
            for _ in range(calls):
                await play.call("echo", {"text": "again"})
            spent = self.ours.cpu() - before

        await client.play(self.ours.rows[0], policy)
        return 1000 * spent / calls


@asynccontextmanager
async def _env_alone(bundle: Path) -> AsyncIterator[ToolSession]:
    """The echo env in a container, with nothing between it and our client."""
    sandboxes = provider("docker", **provider_options())
    try:
        prepared = await sandboxes.prepare(load_bundle(bundle).envs["echo"])
        sandbox = await sandboxes.start(SandboxSpec(prepared, episode="bench"))
        card = await wait_ready(sandbox, timeout=120)
        http = EnvHttp(sandbox)
        tools = await ToolSession.open(http, card, timeout=30)
        try:
            yield tools
        finally:
            await tools.close()
            await http.aclose()
            await sandbox.stop()
    finally:
        await sandboxes.aclose()


def _metrics(samples: dict[str, list[float]], cpu: float) -> list[Metric]:
    milliseconds = {
        name: [1000 * value for value in samples[name]] for name in ("our call", "their call", "floor call")
    }
    cold = samples["cold reset"], samples["their reset"]
    warm = samples["warm reset"], samples["their reset"]
    calls = milliseconds["our call"], milliseconds["their call"]
    verify = samples["our verify"], samples["their end"]
    floor = milliseconds["our call"], milliseconds["floor call"]
    return [
        paired("cold_reset", "s", 1.8, *cold),
        paired("cold_reset_vs_lean", "s", 0.7, *cold, of="ratio"),
        paired("warm_reset", "s", 0.05, *warm),
        paired("warm_reset_vs_lean", "s", 0.02, *warm, of="ratio"),
        paired("tool_call_over_floor", "ms", 4, *floor, of="difference", note="peer: our client straight to the env"),
        paired("tool_call_vs_lean", "ms", 0.6, *calls, of="ratio"),
        Metric("tool_call_server_cpu", "ms", 4, ours=cpu, note="both servers, a call"),
        paired("verify", "s", 0.1, *verify, note="peer: its end of turn, with the teardown it waits for"),
        paired("verify_vs_lean", "s", 0.05, *verify, of="ratio"),
    ]
