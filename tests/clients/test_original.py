"""Bundles that were written for the original framework score here what they score there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from clients.chain import Server, start_server
from clients.original import Original, OriginalMissing, original
from requirements import absent
from stubs.openenv_client import connected

from agent_env.bundle import load_bundle
from agent_env.examples.gridsim.battery import optimum
from agent_env.examples.gridsim.bundle import write_bundle

pytestmark = [pytest.mark.docker, pytest.mark.integration, pytest.mark.timeout(900)]

BASE_IMAGES = ("agent-env-test-base:latest", "python:3.12-slim")
LEAN = 'env_provider_type = "server"\n'
"""the env provider of the original that starts one container; its default needs images that a registry has"""

Call = tuple[str, dict[str, Any]]


@pytest.fixture(scope="module")
def base_image() -> str:
    given = os.environ.get("AGENT_ENV_TEST_BASE_IMAGE")
    for tag in (given,) if given else BASE_IMAGES:
        try:
            found = subprocess.run(["docker", "image", "inspect", tag], capture_output=True, timeout=60, check=False)
        except FileNotFoundError:
            absent("docker", "the docker command is not on PATH")
        if found.returncode == 0:
            return tag
    return absent("docker", f"no daemon, or no base image; looked for {given or ', '.join(BASE_IMAGES)}")


@pytest.fixture(scope="module")
def framework(base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Original]:
    try:
        with original(tmp_path_factory.mktemp("original")) as made:
            yield made
    except OriginalMissing as error:
        absent("original", str(error))


def taken(framework: Original, name: str, folder: Path, base_image: str) -> Path:
    """A bundle of the wheel with another base image, and with the lean env provider."""
    bundle = folder / name
    shutil.copytree(framework.examples / name, bundle, ignore=shutil.ignore_patterns("__pycache__"))
    for dockerfile in bundle.glob("envs/*/Dockerfile"):
        lines = dockerfile.read_text().splitlines()
        dockerfile.write_text("\n".join([f"FROM {base_image}", *lines[1:]]) + "\n")
        dockerfile.with_name("env.toml").write_text(LEAN)
    return bundle


def run_here(bundle: Path, sandbox: str, base_image: str) -> dict[str, dict[str, float]]:
    """`agent-env run`: scores by step, by task."""
    out = bundle.parent / f"{bundle.name}-{sandbox}.jsonl"
    docker = ["--build-network", "host", "--sandbox-image", base_image] if sandbox == "docker" else []
    command = [sys.executable, "-m", "agent_env", "run", str(bundle), "--sandbox", sandbox, "--out", str(out), *docker]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return {entry["task"]: entry["scores"] for entry in map(json.loads, out.read_text().splitlines())}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("hello", {"hello": {"hello": 1.0}}),
        ("echo-mcp", {"smoke": {"echoes": 1.0}}),
        ("mail-mcp", {"smoke": {"finds-the-invoice": 1.0}}),
    ],
)
def test_the_wheels_bundles_run_here_with_the_scores_of_there(
    framework: Original, base_image: str, tmp_path: Path, name: str, expected: dict[str, dict[str, float]]
) -> None:
    bundle = taken(framework, name, tmp_path, base_image)
    assert framework.run(bundle) == expected
    for sandbox in ("docker", "process"):
        assert run_here(bundle, sandbox, base_image) == expected, sandbox


def serve_here(bundle: Path, folder: Path, sandbox: str, reward: str = "") -> Server:
    options = ["--build-network", "host"] if sandbox == "docker" else []
    rewarded = ["--reward", reward] if reward else []
    command = ["agent_env", "serve", str(bundle), "--port", "0", "--sandbox", sandbox, *options, *rewarded]
    return start_server(folder / f"serve-{sandbox}.log", *command)


async def play(url: str, index: int, turns: Sequence[tuple[Sequence[Call], str]], tries: int = 1) -> dict[str, Any]:
    """What a client of either server sees of one episode: each prompt, each call's text or error, scores, reward."""
    seen: list[str] = []
    async with connected(url, timeout=300) as client:
        for _ in range(tries):
            reset = await client.reset(split="all", index=index)
            if not reset["done"]:
                break
        assert reset["done"] is False, reset
        tools = (await client.ask("step", type="list_tools"))["observation"]["tools"]
        end: dict[str, Any] = {}
        for calls, reply in turns:
            for name, arguments in calls:
                observation = (await client.call(name, **arguments))["observation"]
                error = observation.get("error")
                seen.append(f"error: {error['message']}" if error else observation["result"]["data"])
            end = await client.call("end_turn", response=reply)
    assert end["done"] is True, end
    return {
        "prompt": reset["metadata"]["prompt"],
        "system_prompt": reset["metadata"]["system_prompt"],
        "tools": [(tool["name"], tool["input_schema"]) for tool in tools if tool["name"] != "end_turn"],
        "answers": seen,
        "reward": end["reward"],
        "scores": end["metadata"]["scores"],
    }


async def played_by_both(
    framework: Original,
    bundle: Path,
    folder: Path,
    episodes: Sequence[tuple[int, Sequence[tuple[Sequence[Call], str]]]],
    *,
    reward: str = "",
) -> tuple[list[Any], dict[str, list[Any]]]:
    """What a client of the original sees of each episode, and what one of ours does, by sandbox."""
    with framework.serving(bundle, reward) as url:
        # Its ports come from a count of its own, so two of it on one machine may reach each other's containers.
        there = [await play(url, index, turns, tries=3) for index, turns in episodes]
    here = {}
    for sandbox in ("docker", "process"):
        server = serve_here(bundle, folder, sandbox, reward)
        try:
            here[sandbox] = [await play(server.url, index, turns) for index, turns in episodes]
        finally:
            server.stop()
    return there, here


SAYS = """\
async def verify(mcp_url, run):
    (turn,) = run.turns
    texts = [turn.message.text, turn.message.role, turn.reply.text, turn.reply.role, str(turn.number)]
    return [{"id": "run", "result": True, "score": len(" ".join(texts)) / 100}]
"""


def write_echo_tasks(bundle: Path) -> None:
    """A four-step variant with a prompt, and one with two prompts and every kind of grader that needs no judge."""
    deploy = {"id": "env", "type": "deploy_env", "env_id": "echo"}
    agent = {"id": "agent", "type": "deploy_agent", "env_ids": ["echo"], "system_prompt": "You repeat."}
    ask = {"id": "ask", "type": "prompt_agent", "prompt": "Echo something.", "prompt_id": "first"}
    grade = {"id": "grade", "type": "env_outcome_verifier", "env_id": "echo", "file_artifact_id": "check_echo"}
    says = {**grade, "file_artifact_id": "says", "score_aggregator": "weighted_average"}
    said = {
        "id": "said",
        "type": "agent_prompt_response_verifier",
        "prompt_id": "second",
        "verifier_id": "v-said",
        "score_aggregator": "weighted_average",
        "criteria": [
            {"type": "response_contains", "needles": ["bye"], "weight": 2},
            {"type": "response_regex_present", "pattern": "^b.*d$"},
            {"type": "response_contains", "needles": ["thanks"], "weight": -1},
        ],
    }
    second = {**ask, "id": "ask2", "prompt": "Now say good-bye.", "prompt_id": "second"}
    both = {"id": "both", "type": "aggregate_verifiers", "verifier_ids": ["v-says", "v-said"]}
    for stale in (bundle / "tasks").iterdir():
        stale.unlink()
    (bundle / "artifacts" / "says").mkdir()
    (bundle / "artifacts" / "says" / "verify.py").write_text(SAYS)
    tasks = {
        "four": [deploy, agent, ask, {**grade, "verifier_id": "grade"}],
        "more": [
            deploy,
            agent,
            ask,
            second,
            {**says, "id": "last", "verifier_id": "v-says"},
            {**says, "id": "named", "verifier_id": "v-named", "prompt_id": "first"},
            said,
            both,
            {**grade, "verifier_id": "grade"},
        ],
    }
    for name, steps in tasks.items():
        (bundle / "tasks" / f"{name}.json").write_text(json.dumps(steps))


@pytest.mark.anyio
async def test_an_echo_task_with_prompts_is_played_through_both_servers_alike(
    framework: Original, base_image: str, tmp_path: Path
) -> None:
    bundle = taken(framework, "echo-mcp", tmp_path, base_image)
    write_echo_tasks(bundle)
    assert list(load_bundle(bundle).tasks) == ["four", "more"]
    calls: list[Call] = [("echo", {"text": "hi"}), ("echo", {"text": "gr\u00fc\u00df\n\u2603"}), ("echo", {})]
    episodes = [(0, [(calls, "done")]), (1, [(calls[:1], "I did."), ([], "bye, my friend")])]
    there, here = await played_by_both(framework, bundle, tmp_path, episodes, reward="grade")
    assert there[0]["scores"] == {"grade": 1.0}
    assert there[1]["scores"].keys() == {"last", "named", "said", "both", "grade"}
    for sandbox, seen in here.items():
        assert seen == there, sandbox


def submissions(bundle: Path, task: str) -> list[list[int]]:
    """Schedules of a day: the best, idle, busy, one that only buys, and two that are refused."""
    (load,) = [step for step in load_bundle(bundle).tasks[task].steps if step.type == "apply_server_config"]
    _, best = optimum(load.fields["directives"][0]["args"]["prices"])
    return [best, [0] * 24, [1, -1] * 12, [10, *[0] * 23], best[:23], [999, *[0] * 23]]


def small_gridsim(folder: Path, base_image: str, tasks: Sequence[str]) -> Path:
    """GridSim with these tasks alone and no evals, on that base image."""
    bundle = folder / "gridsim-v1"
    write_bundle(bundle)
    for file in (bundle / "tasks").iterdir():
        if file.stem not in tasks:
            file.unlink()
    shutil.rmtree(bundle / "evals")
    dockerfile = bundle / "envs" / "gridsim" / "Dockerfile"
    lines = dockerfile.read_text().splitlines()
    dockerfile.write_text("\n".join([f"ARG BASE_IMAGE={base_image}", *lines[1:]]) + "\n")
    return bundle


@pytest.mark.anyio
async def test_seed_data_is_loaded_and_resets_are_skipped_as_under_the_original(
    framework: Original, base_image: str, tmp_path: Path
) -> None:
    bundle = small_gridsim(tmp_path, base_image, ["eval-0000"])
    file = bundle / "tasks" / "eval-0000.json"
    steps = json.loads(file.read_text())
    file.unlink()
    (place,) = [place for place, step in enumerate(steps) if step["type"] == "apply_server_config"]
    day = steps[place]["directives"][0]["args"]
    seed = bundle / "artifacts" / "day"
    seed.mkdir()
    (seed / "day.json").write_text(json.dumps(day))
    (seed / "artifact.toml").write_text('type = "environment"\nenvironment_name = "gridsim"\n')
    load = {"id": "load", "type": "load_artifact", "env_id": "gridsim", "artifact_id": "day"}
    reset = {"id": "reset", "type": "reset_env", "env_id": "gridsim"}
    tasks = {
        "artifact": [*steps[:place], load, *steps[place + 1 :]],
        "reset": [*steps[: place + 1], reset, *steps[place + 1 :]],
    }
    for name, changed in tasks.items():
        (bundle / "tasks" / f"{name}.json").write_text(json.dumps(changed))
    _, best = optimum(day["prices"])
    calls: list[Call] = [("get_prices", {}), ("submit_schedule", {"schedule": best})]
    there, here = await played_by_both(framework, bundle, tmp_path, [(0, [(calls, "")]), (1, [(calls, "")])])
    assert [seen["reward"] for seen in there] == [1.0, 1.0]
    for sandbox, seen in here.items():
        assert seen == there, sandbox


@pytest.mark.anyio
async def test_gridsim_scores_the_same_submissions_the_same_under_both(
    framework: Original, base_image: str, tmp_path: Path
) -> None:
    tasks = ["eval-0000", "eval-0123", "train-0000"]
    bundle = small_gridsim(tmp_path, base_image, tasks)
    episodes = [
        (index, [([("get_prices", {}), ("submit_schedule", {"schedule": schedule})], "done")])
        for index, task in enumerate(tasks)
        for schedule in submissions(bundle, task)
    ]
    there, here = await played_by_both(framework, bundle, tmp_path, episodes)
    for sandbox, seen in here.items():
        assert seen == there, sandbox
    rewards = [seen["reward"] for seen in there]
    assert rewards[0::6] == [1.0] * len(tasks)
    assert rewards[1::6] == [0.2] * len(tasks)
    assert rewards[4::6] == rewards[5::6] == [0.0] * len(tasks)
