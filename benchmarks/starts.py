"""How soon things are there: an env's card after its start beside a bare container's, and `serve`'s first answer."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from statistics import median

from agent_env.bundle import load_bundle
from agent_env.env.card import wait_ready
from agent_env.sandbox import provider
from agent_env.sandbox.base import SandboxSpec
from benchmarks.bare import Bare
from benchmarks.context import Context
from benchmarks.echo import write_echo
from benchmarks.ours import provider_options, serve_command
from benchmarks.processes import answers, started
from benchmarks.results import Metric, paired
from benchmarks.stub import write_folder


def measure_card(context: Context) -> list[Metric]:
    """From the start to the card's answer."""
    ours, bare = asyncio.run(_cards(context, write_echo()))
    return [paired("start_to_card_vs_bare", "s", 1.1, ours, bare, of="ratio", note="peer: docker run alone")]


async def _cards(context: Context, bundle: Path) -> tuple[list[float], list[float]]:
    sandboxes = provider("docker", **provider_options())
    prepared = await sandboxes.prepare(load_bundle(bundle).envs["echo"])
    bare = Bare(prepared.handle)
    ours: list[float] = []
    theirs: list[float] = []

    async def start_ours() -> None:
        began = time.perf_counter()
        sandbox = await sandboxes.start(SandboxSpec(prepared, episode="bench"))
        await wait_ready(sandbox, timeout=120)
        ours.append(time.perf_counter() - began)
        await sandbox.stop(0)

    async def start_bare() -> None:
        began = time.perf_counter()
        name = await asyncio.to_thread(bare.start)
        theirs.append(time.perf_counter() - began)
        await asyncio.to_thread(bare.remove, name)

    try:
        for number in range(context.pairs + 1):
            for start in (start_ours, start_bare) if number % 2 else (start_bare, start_ours):
                await start()
            if number == 0:
                ours.clear()
                theirs.clear()
            context.say(f"pair {number} of {context.pairs}")
    finally:
        await sandboxes.aclose()
    return ours, theirs


def measure_serve(context: Context) -> list[Metric]:
    """From the command to the first answer over HTTP, nothing behind it."""
    folder = write_folder(context.work / "stub_v1", "http://127.0.0.1:9")
    seconds = []
    for _ in range(3 if context.quick else 11):
        began = time.perf_counter()
        with started(serve_command(folder), context.work / "serve.log") as server:
            assert answers(server.url)
            seconds.append(time.perf_counter() - began)
    return [Metric("serve_start", "s", 1.0, ours=median(seconds), pairs=len(seconds), note="to the first answer")]
