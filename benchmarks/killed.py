"""After SIGKILL of one of our processes: how long something of it is left once the next one starts."""

from __future__ import annotations

import asyncio
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from agent_env.training.nemo_gym.rows import Row
from agent_env.training.nemo_gym.transport import Http
from benchmarks.context import Context
from benchmarks.echo import write_echo
from benchmarks.ours import chain, openenv
from benchmarks.processes import Failed, descendants
from benchmarks.results import Metric

SESSIONS = 4
_LONGEST = 60.0
_VICTIMS = ("openenv", "serve", "keeper")


def measure(context: Context) -> list[Metric]:
    """The longest over the victims: the OpenEnv server, `serve`, and a helper process of the OpenEnv server."""
    bundle = write_echo()
    seconds = {victim: _after(context, bundle, victim) for victim in _VICTIMS}
    for victim, took in seconds.items():
        context.say(f"{victim}: nothing left after {took:.1f} s")
    note = "SIGKILL with 4 containers; from the next start until nothing is left"
    return [Metric("killed_nothing_left", "s", 30, ours=max(seconds.values()), extra=seconds, note=note)]


def _after(context: Context, bundle: Path, victim: str) -> float:
    before = set(_containers())

    def left() -> list[str]:
        return [name for name in _containers() if name not in before]

    flags = ["--warm", "0"]
    with chain(bundle, context.work / victim, "docker", SESSIONS, flags) as running:
        asyncio.run(_seed(running.serve.url, running.rows))
        _until(lambda: len(left()) == SESSIONS, "the containers to start")
        if victim == "serve":
            running.serve.kill()
            return _gone(left)
        if victim == "keeper":
            for pid in descendants(running.openenv.pid)[1:2]:
                subprocess.run(["kill", "-KILL", str(pid)], check=True)
        running.openenv.kill()
    with openenv(bundle, context.work / f"{victim}-again", "docker", SESSIONS, flags):
        return _gone(left)


def _gone(left: Callable[[], list[str]]) -> float:
    began = time.monotonic()
    _until(lambda: not left(), "what was left to go")
    return time.monotonic() - began


async def _seed(url: str, rows: Sequence[Row]) -> None:
    http = Http(url)
    for _ in range(SESSIONS):
        answer = await http.post("/seed_session", rows[0].body)
        if not answer.ok:
            raise Failed(f"a seed: {answer.status} {answer.text[:200]}")


def _containers() -> list[str]:
    listed = subprocess.run(
        ["docker", "ps", "--all", "--filter", "label=agent-env.owner", "--format", "{{.Names}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.split()


def _until(true: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + _LONGEST
    while not true():
        if time.monotonic() > until:
            raise Failed(f"waited {_LONGEST:g} s for {what}")
        time.sleep(0.2)
