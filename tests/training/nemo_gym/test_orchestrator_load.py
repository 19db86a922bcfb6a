"""The load of a prime-rl run on both servers: bursts, cancels and abandoned rollouts, and what is left of them.

AGENT_ENV_ORCHESTRATOR_STEPS=40 plays a run of the published size.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from stubs.gym_client import until
from stubs.orchestrator import Orchestrator, Pace
from stubs.processes import Chain, chain
from stubs.stub_bundle import stub_task, write_stub_bundle

from agent_env.policies import Policy
from agent_env.training.nemo_gym.client import Rollout, RolloutClient
from agent_env.training.nemo_gym.rows import read_rows

Json = Any
STEPS = int(os.environ.get("AGENT_ENV_ORCHESTRATOR_STEPS", "3"))
WHOLE = STEPS >= 40
PLACES = 96 if WHOLE else 72
IDLE = 6.0
SPLITS = {"train": 40, "eval": 200 if WHOLE else 16}
PACE = Pace() if WHOLE else Pace(steps=STEPS, max_off_policy=1, eval_interval=STEPS, ramp_every=0.3, overload_at=(2,))

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.timeout(1800 if WHOLE else 240)]


class Models:
    """A model for each rollout, and what became of it. Each submits a value of its own, which is its reward."""

    def __init__(self) -> None:
        self.rng = random.Random(0)
        self.kinds: Counter[str] = Counter()
        self.submitted: list[float] = []

    def policy(self, split: str) -> Policy:
        faults = {"train": {"hangs": 0.02, "fails": 0.02, "breaks its env": 0.03}}.get(split, {})
        draw, value = self.rng.random(), round(self.rng.random(), 6)
        kind = "plays"
        for fault, share in faults.items():
            if 0 <= draw < share:
                kind = fault
            draw -= share
        self.kinds[kind] += 1

        async def model(play: Rollout) -> None:
            await asyncio.sleep(play.rng.uniform(0.05, 0.4))
            if kind == "hangs":
                await asyncio.Event().wait()
            if kind == "fails":
                raise RuntimeError("the model's endpoint answered 500")
            await play.call("crash" if kind == "breaks its env" else "look", {})
            await asyncio.sleep(play.rng.uniform(0.05, 0.4))
            await play.call("submit", {"value": value})
            self.submitted.append(value)
            play.say("Done.")

        return model


async def test_a_run_of_prime_rl_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("AGENT_ENV_STATE", str(state))
    names = {split: [f"{split}-{n:04}" for n in range(count)] for split, count in SPLITS.items()}
    tasks = {name: stub_task(0.5) for group in names.values() for name in group}
    bundle = write_stub_bundle(tmp_path / "stub-v1", tasks=tasks, evals=names)
    serve = ("--masked-as-error", "--idle-timeout", str(IDLE), "--log-level", "warning")
    openenv = ("--max-concurrent-envs", str(PLACES), "--isolation", "fork", "--log-level", "warning")
    models = Models()
    with chain(bundle, tmp_path / "gym-root", serve=serve, openenv=openenv) as servers:
        rows = {split: read_rows(servers.folder / "data" / f"{split}.jsonl") for split in SPLITS}
        run = Orchestrator(RolloutClient(servers.url), rows["train"], rows["eval"], models.policy, PACE)
        async with watched(servers) as peaks:
            await run.run()
            await until(lambda: get(servers.url, "status")["open"] == 0, IDLE + 30)
        await until(lambda: get(servers.openenv.url(), "capacity")["running"] == 0, 30)
        told, places = get(servers.url, "status"), get(servers.openenv.url(), "capacity")
        servers.serve.stop()
        summary = servers.serve.out.splitlines()[-1]
        servers.openenv.stop()
    with capsys.disabled():
        print(f"\nbegun {dict(run.begun)}, cancelled {dict(run.cancelled)}, {dict(models.kinds)}, peaks {dict(peaks)}")
        print(summary)

    # What the trainer has is right, and nothing that it waited for was lost.
    assert run.step == PACE.steps
    assert set(run.cancelled) == {"stale", "overload", "the end"}
    assert all(result.measured for result in run.results["eval"])
    assert len(run.results["eval"]) == SPLITS["eval"] * (1 + PACE.steps // PACE.eval_interval)
    train = Counter(ending(result.error) for result in run.results["train"])
    assert set(train) <= {"measured", "policy", "verify: HTTP 503: env_crashed"}
    assert min(train.values()) > 0
    rewards = [result.reward for results in run.results.values() for result in results if result.measured]
    assert not Counter(rewards) - Counter(models.submitted)

    # The servers' accounts add up, and agree with the trainer's.
    masked = sum(told["masked"].values())
    assert told["seeded"] == told["verified"] + masked + told["reclaimed"] + told["closed"] + told["open"]
    assert (told["closed"], told["open"], told["refused"], told["unknown_sessions"]) == (0, 0, 0, 0)
    gone = sum(run.cancelled.values())
    assert len(rewards) <= told["verified"] <= len(rewards) + gone
    assert train["verify: HTTP 503: env_crashed"] <= masked <= train["verify: HTTP 503: env_crashed"] + gone
    assert set(told["masked"]) == {"env_crashed"}
    assert run.begun.total() - gone <= told["seeded"] + told["abandoned_seeds"] <= run.begun.total()
    assert summary.startswith(
        f"seeded {told['seeded']}, verified {told['verified']}, masked {masked} (env_crashed {masked}), "
        f"reclaimed {told['reclaimed']}, closed 0, refused 0, open at the end 0, longest wait "
    )

    # Nothing is left: no episode, no place, no queue, no sandbox, no process.
    assert (places["running"], places["queued"], places["free"]) == (0, 0, PLACES)
    assert peaks["running"] <= PLACES
    assert WHOLE or peaks["queued"] > 0, "the last evals find what was abandoned in their places, and wait"
    assert not list((state / "sandboxes").glob("*"))
    assert processes_of(state) == []


def ending(error: str | None) -> str:
    """`verify: HTTP 503: env_crashed`: without what differs from one to the next."""
    found = re.match(r"policy|verify: HTTP \d+: \w+|.*", error or "measured", re.DOTALL)
    assert found
    return found[0]


def get(url: str, path: str) -> dict[str, Json]:
    told: dict[str, Json] = httpx.get(f"{url}/{path}", timeout=30, trust_env=False).json()
    return told


@asynccontextmanager
async def watched(servers: Chain) -> AsyncIterator[Counter[str]]:
    """The most that was seen at once of sessions, running episodes and waiting ones."""
    peaks: Counter[str] = Counter()

    async def watch() -> None:
        while True:
            told = await asyncio.to_thread(get, servers.url, "status")
            places = await asyncio.to_thread(get, servers.openenv.url(), "capacity")
            for name, value in {"open": told["open"], **{key: places[key] for key in ("running", "queued")}}.items():
                peaks[name] = max(peaks[name], value)
            await asyncio.sleep(0.5)

    watcher = asyncio.create_task(watch())
    try:
        yield peaks
    finally:
        watcher.cancel()
        await asyncio.wait({watcher})


def processes_of(state: Path) -> list[str]:
    """What still runs with this test's state folder in its environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if f"AGENT_ENV_STATE={state}".encode() in (entry / "environ").read_bytes():
                found.append((entry / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found
