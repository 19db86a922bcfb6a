"""One behaviour, two shells: a client reads the same from `serve` and from the folder that NeMo Gym runs.

What must differ is here too: NeMo Gym lets uvicorn name itself in each answer, and computes the statistics over
finished rollouts, for which `serve` has an empty answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import httpx
import pytest
from clients.chain import GYM, Server, start_server
from clients.gym_conversation import ENVIRONMENT, PLACES, TASKS, Heard, converse, typed
from clients.gym_servers import Place
from clients.in_thread import serving
from clients.nemo_gym_venv import OLDER, NemoGym
from clients.stub_chain import stub_folder
from stubs.gym_client import Rollout
from stubs.stub_openenv import StubOpenEnv

pytestmark = [pytest.mark.nemo_gym, pytest.mark.integration, pytest.mark.timeout(400)]

CONFORMANCE = Path(__file__).with_name("gym_conformance.py")


@dataclass(frozen=True)
class Shells:
    """Both, each in front of a stub of its own."""

    serve: Server
    native: str
    behind_serve: StubOpenEnv
    behind_native: StubOpenEnv

    @property
    def urls(self) -> tuple[str, str]:
        return self.serve.url, self.native


@contextmanager
def shells(place: Place, folder: Path, version: str | None = None) -> Iterator[Shells]:
    stubs = [StubOpenEnv(by_index=dict(enumerate(TASKS.values())), places=PLACES) for _ in range(2)]
    with ExitStack() as stack:
        stack.enter_context(patch.dict(os.environ, ENVIRONMENT))
        written = [
            stub_folder(stub, stack.enter_context(serving(stub)), folder / name)
            for stub, name in zip(stubs, ("alone", "inside"), strict=True)
        ]
        server = start_server(folder / "serve.log", GYM, "serve", str(written[0]), "--port=0")
        stack.callback(server.stop)
        native = stack.enter_context(place.native(written[1], version))
        yield Shells(server, native, *stubs)


@pytest.fixture(scope="module")
def both(nemo_gym: NemoGym, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shells]:
    folder = tmp_path_factory.mktemp("shells")
    with Place.made(nemo_gym, folder / "nemo-gym") as place, shells(place, folder) as both:
        yield both


def test_a_client_reads_the_same_from_both(both: Shells, say: Callable[[str], None]) -> None:
    served, native = asyncio.run(conversations(both))
    say(f"{len(served)} answers compared")
    assert list(served) == list(native)
    differing = [name for name in served if served[name] != in_serve(native[name])]
    assert not differing, "\n".join(f"{name}:\n  {served[name]}\n  {native[name]}" for name in differing)
    seen = [(stub.calls, stub.replies, stub.resets, stub.running) for stub in (both.behind_serve, both.behind_native)]
    assert seen[0] == seen[1]


async def conversations(both: Shells) -> tuple[dict[str, Heard], dict[str, Heard]]:
    async with asyncio.TaskGroup() as group:
        served = group.create_task(converse(both.serve.url, both.behind_serve))
        native = group.create_task(converse(both.native, both.behind_native))
    return served.result(), native.result()


def in_serve(native: Heard) -> Heard:
    """What `serve` would have answered."""
    assert native.headers["server"] == "uvicorn"
    return Heard(native.status, {key: value for key, value in native.headers.items() if key != "server"}, native.body)


def test_both_pass_nemo_gyms_own_check_of_sessions(both: Shells, place: Place) -> None:
    subprocess.run(
        [place.client.python, CONFORMANCE, *both.urls],
        input=json.dumps(typed("conformance")),
        env=place.environment(),
        text=True,
        timeout=120,
        check=True,
    )


def test_statistics_are_nemo_gyms_own_or_empty(both: Shells) -> None:
    rollouts = [{"_ng_task_index": 0, "_ng_rollout_index": 0, "reward": 0.5, "response": {}}]
    served, native = (
        httpx.post(f"{url}/aggregate_metrics", json={"verify_responses": rollouts}, trust_env=False).json()
        for url in both.urls
    )
    assert sorted(served) == sorted(native)
    assert not any(served.values())
    assert native["agent_metrics"]["mean/reward"] == 0.5


@pytest.mark.parametrize("version", OLDER)
def test_the_folder_runs_on_older_releases(place: Place, tmp_path: Path, version: str) -> None:
    with shells(place, tmp_path, version) as both:
        served, native = (asyncio.run(a_rollout(url)) for url in both.urls)
    assert served == native == ['{"saw": {"at": "it"}}', 0.75]
    summary, _, _ = both.serve.out[-1].partition(", longest wait")
    assert summary.startswith("seeded 1, verified 1")
    assert summary in place.log("stub_v1_resources_server")


async def a_rollout(url: str) -> list[object]:
    async with httpx.AsyncClient(base_url=url, trust_env=False) as http:
        rollout = Rollout(http)
        await rollout.seed()
        return [(await rollout.call("look", {"at": "it"})).text, (await rollout.verify()).json()["reward"]]
