"""A run in which everything happens to sessions that can, and the places that count them: `/metrics`, the episode log
and the summary at the end. Real server processes."""

from __future__ import annotations

import asyncio
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import yaml
from prometheus_client.parser import text_string_to_metric_families
from stubs.gym_client import message, post, response, row
from stubs.stub_bundle import stub_task, write_stub_bundle
from stubs.stub_openenv import Knobs, StubOpenEnv

from agent_env.observe.reading import Log
from agent_env.observe.record import Fate

IDLE = 2.0
FAULTS = [
    Knobs(fail={"start": ("deploy_failed", "x")}, start_s=0.05),
    Knobs(fail={"tool": ("env_crashed", "x")}),
    Knobs(drop=frozenset({"tool"})),
    Knobs(fail={"verify": ("verifier_error", "x")}),
    Knobs(drop=frozenset({"start"})),
    Knobs(reward=None),
    Knobs(fail={"reset": ("image_missing", "x")}),
]
NORMAL = [Knobs(), Knobs(start_s=0.1, tool_s=0.01), Knobs(prompts=("One.", "Two."))]
LEFT_OPEN = 3
_FATES = (Fate.VERIFIED, Fate.MASKED, Fate.RECLAIMED, Fate.CLOSED, Fate.OPEN)
_WORDS = {
    **{word: rf"\b{word} (\d+)" for word in ("seeded", "verified", "reclaimed", "closed", "refused")},
    "open": r"open at the end (\d+)",
    "abandoned": r"(\d+) left before their seed's answer",
    "unknown": r"(\d+) verified without a session",
}


@dataclass
class Told:
    """What a server says of its sessions or episodes, in one of those places."""

    counts: dict[str, int]
    kinds: dict[str, int] = field(default_factory=dict)
    """masked sessions, or failed episodes, by kind"""


def of_summary(line: str) -> Told:
    found = {word: re.search(pattern, line) for word, pattern in _WORDS.items()}
    kinds = re.search(r"masked \d+ \((.*?)\)", line)
    pairs = [pair.split() for pair in kinds[1].split(", ")] if kinds else []
    return Told(
        {word: int(match[1]) if match else 0 for word, match in found.items()},
        {kind: int(count) for kind, count in pairs},
    )


def of_log(log: Log) -> Told:
    fates = Counter(entry.fate for entry in log.entries)
    kinds = Counter(str(entry.kind) for entry in log.entries if entry.fate is Fate.MASKED)
    counted = (Fate.VERIFIED, Fate.RECLAIMED, Fate.CLOSED, Fate.OPEN, Fate.REFUSED, Fate.ABANDONED, Fate.UNKNOWN)
    counts = {"seeded": sum(fates[fate] for fate in _FATES), **{fate.value: fates[fate] for fate in counted}}
    return Told(counts, dict(kinds))


def of_metrics(text: str) -> Told:
    values = _samples(text)
    ended = {
        fate: values["agent_env_sessions_ended_total", fate]
        - values.get(("agent_env_sessions_recounted_total", fate), 0)
        for fate in ("verified", "reclaimed", "closed")
    }
    counts = {
        "seeded": values["agent_env_sessions_seeded_total", ""],
        **ended,
        "open": values["agent_env_sessions_open", ""],
        "refused": values["agent_env_seeds_refused_total", ""],
        "abandoned": values["agent_env_seeds_abandoned_total", ""],
        "unknown": values["agent_env_verifies_unknown_total", ""],
    }
    return Told(counts, {kind: count for (name, kind), count in values.items() if name == "agent_env_masked_total"})


def episodes_of_log(log: Log) -> Told:
    fates = Counter(entry.fate.value for entry in log.entries)
    kinds = Counter(str(entry.kind) for entry in log.entries if entry.fate is Fate.FAILED)
    ends = {fate: fates[fate] for fate in ("scored", "failed", "abandoned")}
    return Told({"started": len(log.entries), **ends}, dict(kinds))


def episodes_of_summary(text: str) -> Told:
    line = re.search(r"episodes: (\d+) started, (\d+) scored, (\d+) abandoned, (\d+) failed(?: \((.*)\))?", text)
    assert line is not None, text
    started, scored, abandoned, failed = map(int, line.groups()[:4])
    pairs = [pair.split() for pair in line[5].split(", ")] if line[5] else []
    counts = {"started": started, "scored": scored, "failed": failed, "abandoned": abandoned}
    return Told(counts, {kind: int(count) for count, kind in pairs})


def episodes_of_metrics(text: str) -> Told:
    values = _samples(text)
    ends = {fate: values["agent_env_episodes_ended_total", fate] for fate in ("scored", "failed", "abandoned")}
    kinds = {kind: count for (name, kind), count in values.items() if name == "agent_env_masked_total"}
    return Told({"started": values["agent_env_episodes_started_total", ""], **ends}, kinds)


def _samples(text: str) -> dict[tuple[str, str], int]:
    return {
        (sample.name, next(iter(sample.labels.values()), "")): int(sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if len(sample.labels) < 2
    }


# the servers


@dataclass
class Process:
    """A server as a process: its URL, and what it printed when it was stopped."""

    url: str
    process: asyncio.subprocess.Process

    async def get(self, path: str) -> httpx.Response:
        async with httpx.AsyncClient(base_url=self.url, timeout=30, trust_env=False) as http:
            return await http.get(path)

    async def stop(self) -> str:
        self.process.send_signal(signal.SIGTERM)
        out, _ = await self.process.communicate()
        return out.decode()


@asynccontextmanager
async def serving(module: str, *words: object, errors: Path) -> AsyncIterator[Process]:
    """What it logs goes into the file `errors`."""
    with errors.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", module, "serve", *map(str, words), "--port", "0"),
            stdout=subprocess.PIPE,
            stderr=file,
        )
    assert process.stdout is not None
    try:
        line = (await process.stdout.readline()).decode()
        assert "http://" in line, line
        yield Process(line.split()[-1], process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.communicate()


def resources_server(place: Path, upstream: str, env: str, log: Path) -> Any:
    folder = place / "resources_servers" / "stub_v1"
    (folder / "configs").mkdir(parents=True)
    block = {"format": 1, "openenv_url": upstream, "env": env}
    document = {"stub_v1_resources_server": {"resources_servers": {"stub_v1": {"agent_env": block}}}}
    (folder / "configs" / "stub_v1.yaml").write_text(yaml.safe_dump(document))
    flags = ("--idle-timeout", IDLE, "--first-call-timeout", 8, "--log-level", "error", "--episode-log", log)
    return serving("agent_env.training.nemo_gym", folder, *flags, errors=place / "serve.txt")


def faulty_stub() -> StubOpenEnv:
    knobs = {index: NORMAL[index % len(NORMAL)] for index in range(200)}
    knobs |= {index: FAULTS[index % len(FAULTS)] for index in range(200, 270)}
    return StubOpenEnv(places=20, queue=1000, by_index=knobs, keep=False)


def faulty_bundle(folder: Path) -> Path:
    """Its last task can't be loaded."""
    tasks = {f"train-{n:04}": stub_task("bad" if n == 3 else 0.5) for n in range(4)}  # type: ignore[arg-type]
    return write_stub_bundle(folder, tasks=tasks)


# the clients

Play = Callable[[str, random.Random, Counter[str]], Awaitable[None]]


async def play(players: int, seconds: float, one: Play, url: str) -> Counter[str]:
    """So many clients for so long; how many of their rollouts ended in which way."""
    ends: Counter[str] = Counter()
    until_time = time.monotonic() + seconds

    async def player(number: int) -> None:
        rng = random.Random(number)
        while time.monotonic() < until_time:
            await one(url, rng, ends)

    await asyncio.gather(*(player(number) for number in range(players)))
    return ends


async def on_stub(url: str, rng: random.Random, ends: Counter[str]) -> None:
    dice = rng.random()
    if dice < 0.04:
        await post(url, "/verify", {**row(), "response": response()})
        ends["unknown"] += 1
    elif dice < 0.08:
        wrong = row(index=5, task_id="another") if dice < 0.06 else {"split": "train"}
        status, _, _ = await post(url, "/seed_session", wrong)
        ends["refused"] += status in (409, 422)
    elif dice < 0.14:
        seeding = asyncio.ensure_future(post(url, "/seed_session", row(index=rng.randrange(200))))
        await asyncio.wait({seeding}, timeout=rng.random() * 0.05)
        seeding.cancel()
        await asyncio.wait({seeding})
        ends["left"] += 1
    else:
        faulty = rng.random() < 0.2
        index = rng.randrange(200, 270) if faulty else rng.randrange(200)
        await _rollout(url, rng, ends, index, "look", "masked" if faulty else "measured")


async def on_bundle(url: str, rng: random.Random, ends: Counter[str]) -> None:
    index = rng.randrange(4)
    crash = index != 3 and rng.random() < 0.2
    await _rollout(
        url, rng, ends, index, "crash" if crash else "submit", "masked" if crash or index == 3 else "measured"
    )


async def _rollout(url: str, rng: random.Random, ends: Counter[str], index: int, tool: str, expected: str) -> None:
    _, headers, _ = await post(url, "/seed_session", row(index=index))
    cookie = headers["set-cookie"].split(";")[0]
    for number in range(rng.randrange(1, 4)):
        await post(url, f"/{tool}", {"at": "x" * rng.randrange(6000), "value": number / 4}, cookie)
        if rng.random() < 0.1:
            await post(url, "/unheard_of", {}, cookie)
    dice = rng.random()
    if dice < 0.06:
        ends["gone"] += 1
        return
    if dice < 0.1:
        await post(url, "/close_session", {}, cookie)
        ends["closed"] += 1
        return
    if dice < 0.16:
        await asyncio.sleep(1.5 * IDLE)
        expected = "masked"
    verify = {**row(), "response": response(message("y" * rng.randrange(2000)))}
    await asyncio.gather(*(post(url, "/verify", verify, cookie) for _ in range(2 if rng.random() < 0.1 else 1)))
    ends[expected] += 1


async def leave_some_open(server: Process) -> str:
    """Waits until every abandoned session was reclaimed, seeds a few that stay open, and reads `/metrics`."""

    async def settled() -> bool:
        return int(of_metrics((await server.get("/metrics")).text).counts["open"]) == 0

    async with asyncio.timeout(60):
        while not await settled():  # noqa: ASYNC110
            await asyncio.sleep(0.1)
    for index in range(LEFT_OPEN):
        await post(server.url, "/seed_session", row(index=index))
    return (await server.get("/metrics")).text
