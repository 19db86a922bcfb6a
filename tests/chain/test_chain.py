"""Both servers, the writer and the client as real processes: the main job, and what goes wrong on purpose."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from stubs.processes import NEMO_GYM, OPENENV, chain, finished
from stubs.stub_bundle import stub_task, write_stub_bundle

from agent_env.bundle import load_bundle
from agent_env.episode import EpisodeSpec, Runtime
from agent_env.examples.gridsim.bundle import write_bundle
from agent_env.examples.gridsim.policies import random_schedule
from agent_env.sandbox.process import ProcessProvider
from agent_env.training.nemo_gym.client import Rollout, RolloutClient
from agent_env.training.nemo_gym.rows import read_rows

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def gridsim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_bundle(tmp_path_factory.mktemp("bundles") / "gridsim-v1")


def test_gridsim_rewards_through_play_equal_the_episode_api(gridsim: Path, tmp_path: Path) -> None:
    """Twenty random schedules, some of them infeasible, over both ways."""
    schedules = [random_schedule(Random(seed)) for seed in range(20)]
    schedules[3][0] = -1
    schedules[7] = [11] * 24

    async def through_play(url: str, folder: Path) -> list[float | None]:
        rows = read_rows(folder / "data" / "eval.jsonl")[: len(schedules)]
        client = RolloutClient(url)
        gate = asyncio.Semaphore(4)

        async def one(index: int) -> float | None:
            async def policy(play: Rollout) -> None:
                await play.call("submit_schedule", {"schedule": schedules[index]})
                play.say("done")

            async with gate:
                result = await client.play(rows[index], policy)
            assert result.measured, result
            return result.reward

        rewards = await asyncio.gather(*map(one, range(len(schedules))))
        await client.aclose()
        return list(rewards)

    async def through_the_episode_api() -> list[float]:
        bundle = load_bundle(gridsim)
        runtime = Runtime(ProcessProvider())
        await runtime.prepare(bundle.envs.values())
        try:

            async def one(index: int) -> float:
                episode = await EpisodeSpec.from_task(bundle.splits()["eval"][index]).start(runtime=runtime)
                turn = await episode.next_turn()
                assert turn is not None
                await turn.call("submit_schedule", {"schedule": schedules[index]})
                await turn.end("done")
                return (await episode.result())["grade"]

            return await asyncio.gather(*map(one, range(len(schedules))))
        finally:
            await runtime.aclose()

    with chain(gridsim, tmp_path / "gym-root") as running:
        played = asyncio.run(through_play(running.url, running.folder))
    scored = asyncio.run(through_the_episode_api())
    assert played == scored
    assert played[3] == played[7] == 0.0
    assert len(set(played)) > 5


def test_the_writer_prints_the_folder_and_writes_every_row(gridsim: Path, tmp_path: Path) -> None:
    with chain(gridsim, tmp_path / "gym-root") as running:
        assert running.folder == tmp_path / "gym-root/resources_servers/gridsim_v1"
        assert len((running.folder / "data/train.jsonl").read_text().splitlines()) == 2000
        assert len((running.folder / "data/eval.jsonl").read_text().splitlines()) == 200
        row = first_row(running.folder)
        assert list(row) == ["responses_create_params", "split", "index", "task_id", "agent_ref"]
        assert [tool["name"] for tool in row["responses_create_params"]["tools"]] == ["get_prices", "submit_schedule"]
        running.openenv.stop()
        assert "episodes: 1 started" in running.openenv.log


def first_row(folder: Path, **changes: Any) -> dict[str, Any]:
    row: dict[str, Any] = json.loads((folder / "data/train.jsonl").read_text().splitlines()[0])
    return {**row, **changes}


def response(text: str = "done") -> dict[str, Any]:
    message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return {"id": "resp_1", "object": "response", "output": [message], "tools": []}


def seed(url: str, row: dict[str, Any]) -> tuple[httpx.Response, dict[str, str]]:
    answer = httpx.post(f"{url}/seed_session", json=row, timeout=60, trust_env=False)
    return answer, dict(answer.cookies)


def test_a_seed_answers_at_once_and_the_first_call_waits_for_the_env(tmp_path: Path) -> None:
    bundle = write_stub_bundle(tmp_path / "stub-v1", env_vars={"STUB_START_DELAY": "10"})
    with chain(bundle, tmp_path / "gym-root", openenv=["--max-starting", "8"]) as running:
        row = first_row(running.folder)
        httpx.get(running.url, trust_env=False)
        quickest = 99.0
        for _ in range(3):
            begun = time.monotonic()
            answer, cookies = seed(running.url, row)
            quickest = min(quickest, time.monotonic() - begun)
            assert answer.status_code == 200
        assert quickest < 0.1
        called = httpx.post(f"{running.url}/submit", json={"value": 0.5}, cookies=cookies, timeout=60, trust_env=False)
        assert called.status_code == 200
        assert time.monotonic() - begun > 9
        verified = httpx.post(
            f"{running.url}/verify", json={**row, "response": response()}, cookies=cookies, timeout=60, trust_env=False
        ).json()
        assert (verified["reward"], verified["mask_sample"]) == (0.5, False)


@pytest.mark.parametrize("flags", [[], ["--masked-as-error"]])
def test_an_openenv_server_that_goes_away_masks_the_rollout(tmp_path: Path, flags: list[str]) -> None:
    bundle = write_stub_bundle(tmp_path / "stub-v1")
    with chain(bundle, tmp_path / "gym-root", serve=flags) as running:
        row = first_row(running.folder)
        _, cookies = seed(running.url, row)
        for module in ("call", "gone"):
            if module == "gone":
                running.openenv.kill()
            told = httpx.post(f"{running.url}/echo", json={"text": "hi"}, cookies=cookies, timeout=60, trust_env=False)
            assert told.text
            assert (told.text == "hi") == (module == "call")
        body = {**row, "response": response()}
        verified = httpx.post(f"{running.url}/verify", json=body, cookies=cookies, timeout=60, trust_env=False)
        if flags:
            assert verified.status_code == 503
            assert "session_lost" in verified.text or "provider_unavailable" in verified.text
        else:
            answer = verified.json()
            assert (answer["reward"], answer["mask_sample"]) == (0.0, True)
            assert answer["instance_config"]["mask_sample"] is True
            assert answer["failure_kind"] in ("session_lost", "provider_unavailable")
            assert answer["failure_reason"]


@pytest.mark.parametrize(
    ("changes", "status", "words"),
    [
        ({"split": "nope"}, 409, "nope"),
        ({"index": 999}, 409, "999"),
        ({"task_id": "train-0002"}, 409, "train-0002"),
        ({"index": "0"}, 422, "index"),
    ],
)
def test_a_row_that_does_not_fit_is_told_at_the_seed(
    tmp_path: Path, changes: dict[str, Any], status: int, words: str
) -> None:
    bundle = write_stub_bundle(tmp_path / "stub-v1")
    with chain(bundle, tmp_path / "gym-root") as running:
        answer, _ = seed(running.url, first_row(running.folder, **changes))
        assert answer.status_code == status, answer.text
        assert words in answer.text
        assert seed(running.url, first_row(running.folder))[0].status_code == 200


def test_play_exits_1_when_a_rollout_was_masked(tmp_path: Path) -> None:
    bundle = write_stub_bundle(tmp_path / "stub-v1", env_vars={"STUB_CRASH_ON": "submit"})
    policy = tmp_path / "crashing.py"
    policy.write_text("async def play(play):\n    await play.call('submit', {'value': 1})\n")
    with chain(bundle, tmp_path / "gym-root") as running:
        rows = running.folder / "data/train.jsonl"
        played = finished(
            NEMO_GYM,
            "play",
            running.url,
            "--rows",
            str(rows),
            "--policy",
            "crashing:play",
            "--limit",
            "1",
            env={"PYTHONPATH": str(tmp_path)},
        )
        assert played.process.returncode == 1
        assert "env_crashed" in played.out + played.log


def one_line(log: str) -> str:
    lines = [line for line in log.splitlines() if line.startswith("error:")]
    assert len(lines) == 1, log
    assert "Traceback" not in log
    return lines[0]


def test_a_bundle_that_does_not_exist_is_one_line(tmp_path: Path) -> None:
    ended = finished(OPENENV, "serve", str(tmp_path / "none"), "--port", "0", "--sandbox", "process")
    assert ended.process.returncode == 1
    assert f"{tmp_path / 'none'}: there is no such folder" in one_line(ended.log)


def test_a_typo_in_a_steps_type_is_one_line(tmp_path: Path) -> None:
    steps = stub_task(0.5)
    steps[0]["type"] = "deploy_evn"
    bundle = write_stub_bundle(tmp_path / "b", tasks={"t": steps})
    ended = finished(OPENENV, "serve", str(bundle), "--port", "0", "--sandbox", "process")
    assert ended.process.returncode == 1
    assert (
        one_line(ended.log)
        == "error: tasks/t.json: step 'env': unknown step type 'deploy_evn'; did you mean 'deploy_env'?"
    )


def test_a_port_in_use_is_one_line_on_both_servers(tmp_path: Path) -> None:
    bundle = write_stub_bundle(tmp_path / "stub-v1")
    with socket.create_server(("127.0.0.1", 0)) as taken, chain(bundle, tmp_path / "gym-root") as running:
        port = str(taken.getsockname()[1])
        for arguments in (
            (OPENENV, "serve", str(bundle), "--sandbox", "process"),
            (NEMO_GYM, "serve", str(running.folder)),
        ):
            ended = finished(*arguments, "--port", port)
            assert ended.process.returncode == 1
            assert port in one_line(ended.log)
            assert "in use" in one_line(ended.log)


def test_serving_a_folder_the_writer_did_not_write_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    ended = finished(NEMO_GYM, "serve", str(tmp_path / "other"), "--port", "0")
    assert ended.process.returncode == 2
    assert str(tmp_path / "other") in one_line(ended.log)


def test_writing_without_the_openenv_server_is_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    ended = finished(NEMO_GYM, f"http://127.0.0.1:{port}", str(tmp_path / "gym-root"))
    assert ended.process.returncode == 1
    assert str(port) in one_line(ended.log)
    assert not (tmp_path / "gym-root").exists()


def test_docker_asked_for_and_absent_is_one_line(tmp_path: Path) -> None:
    bundle = write_stub_bundle(tmp_path / "stub-v1")
    absent = {"DOCKER_HOST": f"unix://{tmp_path}/none.sock"}
    ended = finished(OPENENV, "serve", str(bundle), "--port", "0", "--sandbox", "docker", env=absent)
    assert ended.process.returncode == 1
    assert "ocker" in one_line(ended.log)


def test_sigterm_ends_both_servers_and_their_sandboxes(tmp_path: Path) -> None:
    bundle = write_stub_bundle(tmp_path / "stub-v1")
    state = tmp_path / "state"
    os.environ["AGENT_ENV_STATE"] = str(state)
    try:
        with chain(bundle, tmp_path / "gym-root") as running:
            _, cookies = seed(running.url, first_row(running.folder))
            httpx.post(f"{running.url}/echo", json={"text": "hi"}, cookies=cookies, timeout=60, trust_env=False)
            pids = sandbox_pids(state)
            assert pids
            begun = time.monotonic()
            running.serve.process.send_signal(signal.SIGTERM)
            assert running.serve.wait(10) == 0
            running.openenv.process.send_signal(signal.SIGTERM)
            assert running.openenv.wait(10) == 0
            assert time.monotonic() - begun < 10
            assert "seeded 1" in running.serve.log + running.serve.out
        assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    finally:
        del os.environ["AGENT_ENV_STATE"]


def sandbox_pids(state: Path) -> list[int]:
    """Processes whose working folder lies in the state folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                cwd = os.readlink(entry / "cwd")
            except OSError:
                continue
            if cwd.startswith(str(state)):
                found.append(int(entry.name))
    return found
