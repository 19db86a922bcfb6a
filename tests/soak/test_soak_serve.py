"""`serve` for many minutes: memory stays flat, tallies add up exactly, nothing is left.

AGENT_ENV_SOAK_MINUTES=15 python -m pytest tests/soak/test_soak_serve.py
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml
from stubs.gym_client import post, response, row, until
from stubs.quick_server import quick
from stubs.stub_openenv import Knobs, StubOpenEnv

from agent_env.training.nemo_gym.options import ServeOptions

MINUTES = float(os.environ.get("AGENT_ENV_SOAK_MINUTES", "15"))
IN_FLIGHT = 300
IDLE = 8.0

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.integration,
    pytest.mark.timeout(MINUTES * 60 + 300),
    pytest.mark.soak,
]

FAULTS = [
    Knobs(start_s=0.3, fail={"start": ("deploy_failed", "x")}),
    Knobs(start_s=0.3, fail={"tool": ("env_crashed", "x")}),
    Knobs(start_s=0.3, drop=frozenset({"tool"})),
    Knobs(start_s=0.3, fail={"verify": ("verifier_error", "x")}),
]


async def rollout(url: str, rng: random.Random, ends: Counter[str]) -> None:
    index = rng.randrange(2000)
    cancelled = rng.random() < 0.1
    if cancelled and rng.random() < 0.3:
        seeding = asyncio.ensure_future(post(url, "/seed_session", row(index=index)))
        await asyncio.wait({seeding}, timeout=rng.random() * 0.02)
        seeding.cancel()
        await asyncio.wait({seeding})
        ends["seeds left"] += 1
        return
    _, headers, _ = await post(url, "/seed_session", row(index=index))
    cookie = headers["set-cookie"].split(";")[0]
    for _ in range(rng.randrange(1, 4)):
        await asyncio.sleep(rng.random())
        await post(url, "/look", {"at": "x" * rng.randrange(2000)}, cookie)
    if cancelled:
        ends["cancelled"] += 1
        return
    _, _, answer = await post(url, "/verify", {"response": response({"x": "y" * rng.randrange(20_000)})}, cookie)
    verdict = json.loads(answer)
    faulty = index % 20 == 0
    assert verdict["mask_sample"] == faulty, (index, verdict["failure_reason"])
    ends["masked" if faulty else "measured"] += 1


async def player(url: str, until_time: float, seed: int, ends: Counter[str]) -> None:
    rng = random.Random(seed)
    while time.monotonic() < until_time:
        await rollout(url, rng, ends)


def folder(place: Path, url: str) -> Path:
    made = place / "resources_servers" / "stub_v1"
    (made / "configs").mkdir(parents=True)
    block = {"format": 1, "openenv_url": url, "env": "stub-v1"}
    document = {"stub_v1_resources_server": {"resources_servers": {"stub_v1": {"agent_env": block}}}}
    (made / "configs" / "stub_v1.yaml").write_text(yaml.safe_dump(document))
    return made


def memory_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def test_serve_stays_flat_and_its_tallies_add_up(tmp_path: Path) -> None:
    by_index = {index: FAULTS[index // 20 % len(FAULTS)] for index in range(0, 2000, 20)}
    stub = StubOpenEnv(Knobs(start_s=0.3), places=100_000, by_index=by_index, keep=False)
    async with quick(stub) as upstream:
        flags = ("--port", "0", "--idle-timeout", str(IDLE), "--log-level", "error")
        command = (
            sys.executable,
            "-m",
            "agent_env.training.nemo_gym",
            "serve",
            str(folder(tmp_path, upstream)),
            *flags,
        )
        serve = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert serve.stdout is not None
        try:
            url = (await serve.stdout.readline()).decode().split()[-1]
            ends: Counter[str] = Counter()
            stop = time.monotonic() + MINUTES * 60
            players = [asyncio.create_task(player(url, stop, n, ends)) for n in range(IN_FLIGHT)]
            await asyncio.sleep(MINUTES * 60 * 0.4)
            # the remembered sessions have reached their bound by then, or grow on
            await until(lambda: ends.total() > 1.2 * ServeOptions().tombstones, MINUTES * 60)
            before = memory_of(serve.pid)
            await asyncio.gather(*players)
            after = memory_of(serve.pid)
            await until(lambda: status(url)["open"] == 0, IDLE + 10)
            told = status(url)
            print(dict(ends), told, f"{before / 1e6:.1f} MB, then {after / 1e6:.1f} MB")
            assert told["verified"] == ends["measured"]
            assert sum(told["masked"].values()) == ends["masked"]
            assert told["seeded"] == told["verified"] + ends["masked"] + told["reclaimed"] + told["closed"]
            assert told["reclaimed"] + told["abandoned_seeds"] >= ends["cancelled"]
            assert told["refused"] == 0
            await until(lambda: (stub.running, stub.sessions) == (0, 0))
            assert after <= before * 1.05
            serve.send_signal(signal.SIGTERM)
            out, _ = await serve.communicate()
            assert f"seeded {told['seeded']}, verified {told['verified']}" in out.decode()
        finally:
            if serve.returncode is None:
                serve.kill()
                await serve.wait()


def status(url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{url}/status") as answer:
        return json.loads(answer.read())  # type: ignore[no-any-return]
