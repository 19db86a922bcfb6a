"""Logged sessions are scored again: with their calls alone, and by playing them again."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from stubs.processes import chain
from stubs.quick_server import quick
from stubs.stub_bundle import stub_task, write_stub_bundle
from typer.testing import CliRunner

from agent_env.cli import app as cli
from agent_env.examples.gridsim.bundle import write_bundle
from agent_env.examples.gridsim.prices import synthetic_days
from agent_env.observe.reading import read
from agent_env.observe.record import Fate
from agent_env.openenv import build_app
from agent_env.training.nemo_gym.folder import FolderConfig
from agent_env.training.nemo_gym.options import ServeOptions
from agent_env.training.nemo_gym.play import play_command
from agent_env.training.nemo_gym.server import build_server

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TASKS = 3


def two_turns() -> list[dict[str, Any]]:
    """Scored by what was submitted, and by what was said to each prompt."""
    steps = stub_task(0.5, prompts=("Submit a value.", "Say that you are done."))
    for step in steps:
        if step["type"] == "prompt_agent":
            step["prompt_id"] = step["id"]
    said = {"type": "agent_prompt_response_verifier", "prompt_id": "ask1", "score_aggregator": "weighted_average"}
    wanted = [{"type": "response_contains", "needles": ["done"]}, {"type": "response_contains", "needles": ["42"]}]
    return [*steps, {"id": "said", **said, "criteria": wanted}]


async def rollout(url: str, index: int, final: str) -> None:
    row = {"responses_create_params": {"input": "x"}, "split": "train", "index": index}
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        assert (await http.post("/seed_session", json=row)).status_code == 200
        await http.post("/submit", json={"value": index / 4})
        await http.post("/fly", json={})
        await http.post("/submit", content=b"[1]")
        await http.post("/end_turn", json={"response": "submitted"})
        message = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": final}]}
        answer = await http.post("/verify", json={**row, "response": {"id": "r", "output": [message]}})
        assert answer.json()["failure_kind"] is None, answer.text


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle, and the logs that both servers kept of three sessions: `serve.jsonl`, `openenv.jsonl`."""
    place = tmp_path_factory.mktemp("kept")
    bundle = write_stub_bundle(place / "stub-v1", tasks={f"train-{n:04}": two_turns() for n in range(TASKS)})

    async def play() -> None:
        openenv = build_app(bundle, sandbox="process", reward="grade", episode_log=place / "openenv.jsonl", warm=0)
        async with quick(openenv) as upstream:
            folder = FolderConfig(name="stub_v1", openenv_url=upstream, env="stub-v1")
            serve = build_server(folder, ServeOptions(episode_log=place / "serve.jsonl"))
            async with quick(serve) as url:
                await asyncio.gather(*(rollout(url, n, "I am done." if n else "42") for n in range(TASKS)))

    asyncio.run(play())
    return place


def run(*words: object) -> Any:
    return CliRunner().invoke(cli, ["episodes", *map(str, words)])


def test_both_servers_tell_the_same_of_an_episode(played: Path) -> None:
    sessions = {entry.episode: entry.load() for entry in read([played / "serve.jsonl"]).entries}
    episodes = {entry.episode: entry.load() for entry in read([played / "openenv.jsonl"]).entries}
    assert len(sessions) == TASKS
    assert sessions.keys() == episodes.keys()
    for id, session in sessions.items():
        episode = episodes[id]
        assert (session["fate"], episode["fate"]) == (Fate.VERIFIED, Fate.SCORED)
        for key in ("scores", "reward", "bundle", "index", "split", "prompt", "system_prompt", "turns_played"):
            assert session[key] == episode[key], key
        made = [call for call in session["calls"] if call.get("error") is None]
        ended = made[-1] | {"arguments": {"response": session["final"]}, "turn": 2}
        assert [(call["turn"], call["name"], call["arguments"]) for call in [*made, ended]] == [
            (call["turn"], call["name"], call["arguments"]) for call in episode["calls"]
        ]
        assert set(episode["timings"]) >= {"wait_s", "deploy_s", "load_s", "turn_s", "verify_s", "teardown_s"}
    told = run(played / "openenv.jsonl").stdout
    assert f"episodes: {TASKS} started, {TASKS} scored, 0 abandoned, 0 failed" in told


@pytest.mark.parametrize("name", ["serve.jsonl", "openenv.jsonl"])
def test_what_was_said_is_graded_again_without_an_env(name: str, played: Path) -> None:
    told = run(played / name, "--regrade", played / "stub-v1")
    assert told.exit_code == 0, told.stdout
    assert "step 'grade' reads the env's state: --replay plays the calls again" in told.stdout
    assert f"scored again: {TASKS}, the same: {TASKS}, different: 0, left: {TASKS}" in told.stdout


@pytest.mark.parametrize("name", ["serve.jsonl", "openenv.jsonl"])
def test_calls_that_are_played_again_have_the_same_scores(name: str, played: Path) -> None:
    told = run(played / name, "--regrade", played / "stub-v1", "--replay", "--sandbox", "process")
    assert told.exit_code == 0, told.stdout
    assert told.stdout.splitlines()[-1] == f"scored again: {TASKS}, the same: {TASKS}, different: 0, left: 0"


def test_a_grader_that_says_something_else_now_is_a_difference(played: Path, tmp_path: Path) -> None:
    bundle = write_stub_bundle(tmp_path / "stub-v1", tasks={f"train-{n:04}": two_turns() for n in range(TASKS)})
    task = bundle / "tasks" / "train-0001.json"
    task.write_text(task.read_text().replace('"42"', '"I am"'))
    told = run(played / "serve.jsonl", "--regrade", bundle)
    assert told.exit_code == 1
    lines = told.stdout.splitlines()
    assert lines[0].split() == ["session", "task", "step", "then", "now"]
    assert lines[1].split()[1:] == ["train-0001", "said", "0.5", "1"]
    assert "3 of them were played with another state of the bundle" in told.stdout
    assert lines[-1] == "scored again: 3, the same: 2, different: 1, left: 3"


def test_what_cannot_be_scored_again_is_listed_with_the_reason(played: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in (played / "serve.jsonl").read_text().splitlines()]
    sessions = [line for line in lines if line["of"] == "session"]
    sessions[0]["calls"][0]["arguments"] = {"password": "[redacted]"}
    sessions[1] |= {"fate": "masked", "kind": "env_crashed", "scores": None}
    sessions[2] |= {"task": "gone", "split": None}
    log = tmp_path / "e.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = run(log, "--regrade", played / "stub-v1", "--replay", "--sandbox", "process")
    assert told.exit_code == 0
    assert "hold a secret that the log keeps out" in told.stdout
    assert "it was masked: there is no score to compare with" in told.stdout
    assert "the bundle has no task 'gone'" in told.stdout
    assert told.stdout.splitlines()[-1] == "scored again: 0, the same: 0, different: 0, left: 3"


def test_gridsim_played_again_has_the_same_rewards(tmp_path: Path) -> None:
    days = synthetic_days()
    bundle = write_bundle(tmp_path / "gridsim-v1", days=[*days[:4], *days[-4:]])
    log = tmp_path / "e.jsonl"
    with chain(bundle, tmp_path / "gym-root", serve=["--episode-log", str(log)]) as running:
        rows = running.folder / "data" / "eval.jsonl"
        words = ["--rows", str(rows), "--policy", "greedy", "--limit", "4"]
        assert play_command([running.url, *words]) == 0
        running.serve.stop()
        summary = running.serve.out.splitlines()[-1]
    assert run(log).stdout.splitlines()[-1] == summary
    rewards = {entry.reward for entry in read([log]).entries}
    assert len(rewards) == 4
    told = run(log, "--regrade", bundle, "--replay", "--sandbox", "process")
    assert told.exit_code == 0, told.stdout
    assert told.stdout.splitlines()[-1] == "scored again: 4, the same: 4, different: 0, left: 0"
