"""`agent-env run` as a process."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path
from typing import Any

import modes
import pytest
from clients.in_thread import serving
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route
from stubs.processes import OPENENV, Command, command, finished
from stubs.stub_bundle import stub_task, write_stub_bundle

pytestmark = pytest.mark.integration

POLICY = """
import asyncio

async def one(play):
    await play.call("submit", {"value": 1})
    play.say("done")

async def crashes(play):
    if play.row["task_id"] == "train-0001":
        await play.call("crash", {})
    await play.call("submit", {"value": 0.5})

async def sleeps(play):
    print("asleep", flush=True)
    await asyncio.sleep(600)
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a bundle and a module of policies."""
    write_stub_bundle(tmp_path / "stub-v1", evals={"train": ["train-0002", "train-0001"]})
    (tmp_path / "mine.py").write_text(POLICY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*flags: str) -> Command:
    return finished(OPENENV, "run", "stub-v1", "--sandbox", "process", *flags)


def test_every_task_of_the_evals_is_played_and_told(here: Path) -> None:
    done = run("--policy", "mine:one", "--out", "out/run.jsonl")
    assert done.process.returncode == 0, done.log
    head, first, second, total, left = done.out.splitlines()
    assert head.split()[:3] == ["task", "status", "score"]
    assert first.split()[:5] == ["train-0002", "PASSED", "1.0000", "1", "1"]
    assert second.split()[0] == "train-0001"
    assert total.startswith("2/2 tasks: 2 PASSED, mean score 1.0000; ")
    assert total.endswith(" s, process sandbox")
    assert left == "not run, in no chosen eval: train-0000"
    assert "2/2 tasks" in done.log, "progress goes to stderr"
    lines = [json.loads(line) for line in (here / "out/run.jsonl").read_text().splitlines()]
    assert {line["task"] for line in lines} == {"train-0001", "train-0002"}
    assert [line["failure"] for line in lines] == [None, None]
    assert lines[0]["messages"][0]["role"] == "system"


def test_one_failed_task_is_told_and_ends_with_1(here: Path) -> None:
    done = run("--policy", "mine:crashes", "--out", "run.jsonl")
    assert done.process.returncode == 1
    assert "train-0001  FAILED" in done.out
    assert "env_crashed" in done.out
    assert "train-0002  BELOW_ONE  0.5000" in done.out
    lines = {line["task"]: line for line in map(json.loads, (here / "run.jsonl").read_text().splitlines())}
    assert lines["train-0001"]["failure"]["kind"] == "env_crashed"
    assert "Traceback" not in done.log


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_nothing_and_tells_what_was_done(here: Path, number: signal.Signals) -> None:
    state = {"AGENT_ENV_STATE": str(here / "state")}
    sandboxes = here / "state" / "sandboxes"
    flags = ["--sandbox", "process", "--policy", "mine:sleeps"]
    with command(OPENENV, "run", "stub-v1", *flags, env=state) as running:
        until = time.monotonic() + 60
        while running.out.count("asleep") < 2:
            assert running.process.poll() is None, running.log
            assert time.monotonic() < until, running.log
            time.sleep(0.02)
        assert len(list(sandboxes.glob("*.json"))) == (1 if modes.FORKED else 2)
        running.process.send_signal(number)
        running.process.send_signal(number)
        assert running.wait(30) == 130
    assert "interrupted: removing what was started" in running.log
    assert "2/2 tasks: 2 CANCELLED" in running.out
    assert "Traceback" not in running.log
    assert list(sandboxes.iterdir()) == []


def test_a_model_plays_with_its_key_and_fields(here: Path) -> None:
    asked: list[tuple[str | None, dict[str, Any]]] = []

    async def complete(request: Request) -> JSONResponse:
        body = await request.json()
        asked.append((request.headers.get("authorization"), body))
        call = {"id": "c", "type": "function", "function": {"name": "submit", "arguments": '{"value": 1}'}}
        done = body["messages"][-1]["role"] == "tool"
        message = {"content": "Done."} if done else {"content": None, "tool_calls": [call]}
        return JSONResponse({"choices": [{"message": {"role": "assistant", **message}}]})

    with serving(Starlette(routes=[Route("/v1/chat/completions", complete, methods=["POST"])])) as url:
        flags = ["--model", "m", "--base-url", f"{url}/v1", "--api-key-var", "A_KEY", "--model-arg", "temperature=0.7"]
        done = finished(
            OPENENV, "run", "stub-v1", "--sandbox", "process", *flags, "--model-arg", "stop=x", env={"A_KEY": "s3cret"}
        )
    assert done.process.returncode == 0, done.log
    assert "2/2 tasks: 2 PASSED" in done.out
    assert len(asked) == 4
    assert {key for key, _ in asked} == {"Bearer s3cret"}
    assert (asked[0][1]["model"], asked[0][1]["temperature"], asked[0][1]["stop"]) == ("m", 0.7, "x")
    assert "s3cret" not in done.out + done.log


def test_keys_that_nobody_knows_are_a_warning(here: Path) -> None:
    steps = stub_task(0.5)
    steps[3]["max_turnz"] = 3
    (here / "stub-v1/tasks/train-0002.json").write_text(json.dumps(steps))
    done = run("--policy", "mine:one", "--task", "train-0002")
    assert done.process.returncode == 0
    assert "tasks/train-0002.json: step 'ask': unknown key 'max_turnz'; did you mean 'max_turns'?" in done.log


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ([], "tasks/train-0002.json prompts an agent: give --policy, or --model and --base-url"),
        (["--policy", "mine:one", "--model", "m"], "--policy and --model: give one or the other"),
        (["--model", "m"], "--model and --base-url go together"),
        (["--model", "m", "--base-url", "nowhere"], "--base-url nowhere: write a URL like"),
        (["--policy", "mine:nobody"], "policy 'mine:nobody': mine has no 'nobody'"),
        (["--policy", "mine:one", "--task", "train-1"], "--task train-1: no task 'train-1' in this bundle"),
        (["--policy", "mine:one", "--eval", "tain"], "--eval tain: no eval of that name in this bundle; did you mean"),
        (["--policy", "mine:one", "--sandbox", "dokcer"], "sandbox 'dokcer' is not known"),
        (["--policy", "mine:one", "--log-level", "loud"], "--log-level loud: choose one of"),
        (["--policy", "mine:one", "--model-arg", "x"], ""),
    ],
)
def test_a_flag_that_is_wrong_is_one_line(here: Path, flags: list[str], words: str) -> None:
    done = run(*flags)
    if not words:
        assert done.process.returncode == 0, "flags of a model that is not asked have no effect"
        return
    assert done.process.returncode == 2
    (line,) = [line for line in done.log.splitlines() if "WARNING" not in line]
    assert line.startswith(f"error: {words}"), line


def test_a_bundle_that_is_wrong_gives_every_problem(here: Path) -> None:
    for name in ("train-0000", "train-0001"):
        (here / f"stub-v1/tasks/{name}.json").write_text('[{"id": "x", "type": "deploi_env"}]')
    done = run("--policy", "mine:one")
    assert done.process.returncode == 1
    assert [line.split(":")[1].strip() for line in done.log.splitlines()] == [
        "tasks/train-0000.json",
        "tasks/train-0001.json",
    ]


def test_the_environment_stands_in_for_a_flag(here: Path) -> None:
    done = finished(OPENENV, "run", "stub-v1", env={"AGENT_ENV_SANDBOX": "process", "AGENT_ENV_POLICY": "mine:one"})
    assert done.process.returncode == 0, done.log
