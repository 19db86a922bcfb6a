"""Many rollouts on one server: 1,000 that do nothing, and 700 at once against 96 places."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import Any

import orjson

from agent_env.training.nemo_gym.client import Rollout, RolloutClient, RolloutResult
from agent_env.training.nemo_gym.transport import Http
from benchmarks.context import Context
from benchmarks.processes import Failed
from benchmarks.results import Metric
from benchmarks.stub import StubChain, rows, stub_chain

ROLLOUTS, PLACES = 700, 96


def measure_idle(context: Context) -> list[Metric]:
    """Memory of `serve` that each open session adds."""
    count = 100 if context.quick else 1000
    with stub_chain(context.work, places=count + 100) as chain:
        before, after = asyncio.run(_open(chain, count))
    return [Metric("idle_session_memory", "KB", 150, ours=(after - before) / count / 1000, extra={"sessions": count})]


async def _open(chain: StubChain, count: int) -> tuple[int, int]:
    """`serve`'s memory before and after so many more sessions, each ready to be played."""
    http = Http(chain.serve.url, pooled=True)
    some = rows(count + 50)

    async def seed(number: int) -> None:
        answer = await http.post("/seed_session", some[number].body)
        if not answer.ok:
            raise Failed(f"a seed: {answer.status} {answer.text[:200]}")

    for number in range(count, count + 50):
        await seed(number)
    await asyncio.sleep(1)
    before = chain.serve.rss()
    for number in range(count):
        await seed(number)
    await asyncio.sleep(1)
    after = chain.serve.rss()
    told = orjson.loads((await http.get("/capacity")).body)
    await http.aclose()
    if told["open"] != count + 50:
        raise Failed(f"{told['open']} sessions are open, not {count + 50}")
    return before, after


def measure_crowd(context: Context) -> list[Metric]:
    """All measured when the client waits long; seeded or refused in time, without orphans, when it does not."""
    episode_s = (0.5, 1.5) if context.quick else (5.0, 15.0)
    with stub_chain(context.work / "patient", places=PLACES, start_s=episode_s[0]) as chain:
        patient, wall, _ = asyncio.run(_crowd(context, chain, 600))
    flags = ["--seed-wait", "5" if context.quick else "50", "--masked-as-error"]
    with stub_chain(context.work / "hasty", places=PLACES, start_s=episode_s[1], serve=flags) as chain:
        hasty, _, orphans = asyncio.run(_crowd(context, chain, 6 if context.quick else 60))
    seeded = sum(result.measured for result in hasty)
    refused = sum((result.error or "").startswith("seed: HTTP 503") for result in hasty)
    others = Counter(result.error or result.kind for result in hasty if not result.measured)
    slowest = max(result.seconds["seed"] for result in hasty)
    return [
        Metric(
            "crowd_measured",
            "rollouts",
            ROLLOUTS,
            at_least=True,
            ours=sum(result.measured for result in patient),
            extra={"wall_s": wall},
        ),
        Metric(
            "crowd_answered_in_time",
            "rollouts",
            ROLLOUTS,
            at_least=True,
            ours=seeded + refused,
            extra={"seeded": seeded, "refused": refused, "slowest_seed_s": slowest},
            note="" if seeded + refused == ROLLOUTS else f"others: {others.most_common(3)}",
        ),
        Metric("crowd_orphans", "episodes", 0, ours=orphans),
    ]


async def _crowd(context: Context, chain: StubChain, timeout: float) -> tuple[list[RolloutResult], float, int]:
    """The results, wall seconds, and the episodes that the stub still runs a moment after."""
    client = RolloutClient(chain.serve.url, request_timeout=timeout)
    began = time.perf_counter()
    results = await asyncio.gather(*(client.play(row, _wait) for row in rows(ROLLOUTS)))
    wall = time.perf_counter() - began
    context.say(f"{sum(result.measured for result in results)} of {ROLLOUTS} measured in {wall:.1f} s")
    await asyncio.sleep(2)
    told: dict[str, Any] = orjson.loads((await Http(chain.stub.url).get("/capacity")).body)
    return list(results), wall, told["running"] + told["queued"]


async def _wait(play: Rollout) -> None:
    await play.ready()
