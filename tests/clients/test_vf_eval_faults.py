"""The failure matrix, played by the real vf-eval with faults injected below `serve`.

What the environment does wrong fails the rollout and stays out of the mean; what the model does wrong is scored.
"""

from __future__ import annotations

import copy
import json
import os
import re
import signal
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from clients.chain import Chain, chain
from clients.fault_bundle import SLOW, TaskFault, write_fault_bundle
from clients.scripted_model import Call, Conversation, Policy, Refusal, Reply, script
from clients.verifiers_venv import VerifiersClient
from clients.vf_eval import Rollout, play

from agent_env.errors import FailureKind as Kind

pytestmark = [pytest.mark.verifiers, pytest.mark.integration, pytest.mark.timeout(600)]

IDLE = 45


def submit(value: Any) -> Call:
    return Call.of("submit", {"value": value})


submits = script(Reply("Here.", (submit(0.75),)))


def calls(*made: Call) -> Policy:
    """Everything in one turn."""
    return script(Reply(calls=made))


@dataclass(frozen=True)
class Case:
    """How a task is broken, how its model plays, and what comes of it."""

    policy: Policy = submits
    task: TaskFault = field(default_factory=TaskFault)


ENVIRONMENT: Mapping[str, tuple[Case, Kind]] = {
    "env-ends-at-its-start": (Case(task=TaskFault(env="exits")), Kind.ENV_CRASHED),
    "env-starts-too-late": (Case(task=TaskFault(env="late")), Kind.DEPLOY_TIMEOUT),
    "load-is-refused": (Case(task=TaskFault(load="bad")), Kind.LOAD_FAILED),
    "load-never-ends": (Case(task=TaskFault(env="stuck", load_timeout=1)), Kind.LOAD_TIMEOUT),
    "env-ends-in-a-call": (Case(calls(submit(1), Call("crash"))), Kind.ENV_CRASHED),
    "call-never-ends": (Case(calls(submit(1), Call.of("sleep", {"seconds": SLOW}))), Kind.TOOL_TIMEOUT),
    "turn-is-too-long": (Case(task=TaskFault(turn_timeout=0.5)), Kind.TURN_EXPIRED),
    "grader-raises": (Case(task=TaskFault(grader="raises")), Kind.VERIFIER_ERROR),
    "grader-never-ends": (Case(task=TaskFault(grader="hangs")), Kind.VERIFIER_TIMEOUT),
    "grader-ends-its-process": (Case(task=TaskFault(grader="ends")), Kind.VERIFIER_ERROR),
    "grader-scores-nan": (Case(task=TaskFault(grader="nan")), Kind.SCORE_NOT_FINITE),
    "grader-scores-a-text": (Case(task=TaskFault(grader="texts")), Kind.VERIFIER_ERROR),
}

MODEL: Mapping[str, tuple[Case, float]] = {
    "plays-well": (Case(), 0.75),
    "says-nothing": (Case(script(Reply())), 0.0),
    "submits-zero": (Case(calls(submit(0))), 0.0),
    "writes-no-json": (Case(calls(Call("submit", '{"value": 1'), submit(0.5))), 0.5),
    "writes-an-array": (Case(calls(Call("submit", "[1]"), submit(0.5))), 0.5),
    "writes-no-arguments": (Case(calls(Call("submit", ""), submit(0.5))), 0.5),
    "calls-what-is-not-there": (Case(calls(Call("win"), submit(0.5))), 0.5),
    "gives-wrong-types": (Case(calls(submit("high"))), 0.0),
    "is-refused": (Case(calls(Call.of("fail", {"message": "no"}), submit(0.5))), 0.5),
    "gets-a-long-answer": (Case(calls(Call.of("big", {"size": 50_000}), submit(0.5))), 0.5),
    "is-cut-at-its-length": (Case(script(Reply(calls=(submit(0.5),)), Reply("I", finish_reason="length"))), 0.5),
    "overflows-its-context": (
        Case(script(Reply(calls=(submit(0.5),)), Refusal(400, "maximum context length is 8 tokens"))),
        0.5,
    ),
    "never-stops-calling": (Case(script(*[Reply(calls=(Call("look"),))] * 9)), 0.0),
}

ORPHANS: Mapping[str, Case] = {
    "endpoint-refuses": Case(script(Refusal(422, "no such model"))),
    "endpoint-fails": Case(script(Reply(calls=(submit(1),)), Refusal(500, "out of memory"))),
}
"""The model's server fails: verifiers sends no verify, so the session ends by the idle clock."""

KILLED = "env-is-killed-from-outside"
MISNAMED = "row-of-another-task"


@pytest.fixture(scope="module")
def tasks() -> dict[str, Case]:
    scored = {name: case for name, (case, _) in MODEL.items()}
    masked = {name: case for name, (case, _) in ENVIRONMENT.items()}
    return {**ORPHANS, **masked, KILLED: Case(), MISNAMED: Case(), **scored}


@pytest.fixture(scope="module")
def served(tasks: dict[str, Case], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    place = tmp_path_factory.mktemp("faults")
    bundle = write_fault_bundle(place / "faults-v1", {name: case.task for name, case in tasks.items()})
    with chain(
        bundle,
        place,
        openenv_flags=["--max-concurrent-envs=12", "--tool-timeout=3", "--verify-timeout=3"],
        writer_flags=["--split=probe"],
        serve_flags=["--masked-as-error", f"--idle-timeout={IDLE}"],
    ) as both:
        yield both


def rows_of(served: Chain, names: list[str]) -> list[dict[str, Any]]:
    (sample,) = served.rows("probe")
    rows = []
    for index, name in enumerate(names):
        row = copy.deepcopy(sample) | {"split": "faults", "index": index, "task_id": name}
        (user,) = [item for item in row["responses_create_params"]["input"] if item["role"] == "user"]
        user["content"] = name
        rows.append(row)
    return rows


def kinds_in(log: str) -> dict[str, str]:
    """Kind of failure by task, as `serve` logged it with each 503."""
    return dict(re.findall(r"verify of (\S+) answered with an error: (\w+):", log))


def status(url: str) -> Any:
    with urllib.request.urlopen(f"{url}/status", timeout=10) as answer:
        return json.load(answer)


def capacity(url: str) -> Any:
    with urllib.request.urlopen(f"{url}/capacity", timeout=10) as answer:
        return json.load(answer)


def until(true: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.2)


def kill_env_of(task: str, log: Path) -> None:
    """SIGKILL to the process of the task's env, found in the OpenEnv server's log."""
    text = log.read_text()
    (episode,) = re.findall(rf"episode (\w+): task {task} started", text)
    spare = re.search(rf"sandbox (\w+): a spare, now for episode {episode}", text)
    started = rf"sandbox {spare[1]}: env \w+ for episode spare" if spare else rf"for episode {episode}"
    (pid,) = re.findall(rf"{started}, pid (\d+)", text)
    os.kill(int(pid), signal.SIGKILL)


def test_faults_of_the_environment_fail_the_rollout_and_faults_of_the_model_are_scored(
    verifiers_client: VerifiersClient,
    tasks: dict[str, Case],
    served: Chain,
    tmp_path: Path,
    say: Callable[[str], None],
) -> None:
    def killer(conversation: Conversation) -> Reply:
        if conversation.turn == 1:
            kill_env_of(KILLED, served.openenv.log)
        return Reply(calls=(submit(1),)) if conversation.turn < 2 else Reply("Done.")

    rows = rows_of(served, list(tasks))
    rows[list(tasks).index(MISNAMED)]["task_id"] = "plays-well"
    policies = {name: case.policy for name, case in tasks.items()} | {KILLED: killer}
    run = play(verifiers_client, served.url, tmp_path, rows, policies)
    say(f"vf-eval in {run.seconds:.1f} s: {run.headline}")

    rollouts = {rollout.prompt: rollout for rollout in run.rollouts}
    assert {name: (rollouts[name].ok, rollouts[name].reward) for name in MODEL} == {
        name: (True, reward) for name, (_, reward) in MODEL.items()
    }
    expected = {name: kind for name, (_, kind) in ENVIRONMENT.items()} | {KILLED: Kind.SANDBOX_LOST}
    assert kinds_in(served.resources.log.read_text()) == {name: kind.value for name, kind in expected.items()}
    for name in expected:
        assert_failed(rollouts[name], r"TaskError: .*scoring: HTTPStatusError: Server error '503")
    assert_failed(rollouts[MISNAMED], r"TaskError: task setup: HTTPStatusError: Client error '409")
    for name in ORPHANS:
        assert_failed(rollouts[name], r"ProviderError: ")
    assert run.mean == pytest.approx(sum(reward for _, reward in MODEL.values()) / len(MODEL))
    assert f"reward {run.mean:.2f} (" in run.headline

    until(lambda: status(served.url)["open"] == 0, IDLE + 15)
    seen = status(served.url)
    assert seen["masked"] == Counter(kind.value for kind in expected.values())
    assert (seen["verified"], seen["reclaimed"], seen["refused"]) == (len(MODEL), len(ORPHANS), 1)
    assert seen["seeded"] == len(tasks) - 1
    assert (seen["masked_tools"]["crash"], seen["masked_tools"]["sleep"]) == (1, 1)
    until(lambda: capacity(served.openenv.url)["running"] == 0, 15)


def assert_failed(rollout: Rollout, error: str) -> None:
    assert (rollout.ok, rollout.reward) == (False, None), rollout.prompt
    assert len(rollout.errors) == 1
    assert re.match(error, rollout.errors[0], re.DOTALL), rollout.errors[0]
