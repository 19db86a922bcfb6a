"""NeMo Gym's own simple_agent plays against `serve`, in front of a stub whose environments are slow or fail."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from clients.chain import Server
from clients.gym_servers import Agent, Place
from clients.nemo_gym_venv import NemoGym
from clients.scripted_model import Call, Policy, Reply, ScriptedModel, script
from clients.stub_chain import stub_chain, stub_rows
from stubs.stub_openenv import Knobs, StubOpenEnv

pytestmark = [pytest.mark.nemo_gym, pytest.mark.integration, pytest.mark.timeout(400)]

Json = Any
SLOW = 12.0
ANSWER = "the answer of a slow call, to its last word"

looks = script(Reply(calls=(Call.of("look", {"at": "it"}),)))


@dataclass(frozen=True)
class Played:
    status: int
    answer: Mapping[str, Json]

    @property
    def tool_texts(self) -> list[str]:
        return [item["output"] for item in self.answer["response"]["output"] if item["type"] == "function_call_output"]

    @property
    def verdict(self) -> tuple[float, bool, str | None]:
        return self.answer["reward"], self.answer["mask_sample"], self.answer["failure_kind"]


@dataclass(frozen=True)
class Bench:
    """The agent with a model, in front of `serve`, in front of the stub."""

    stub: StubOpenEnv
    server: Server
    model: ScriptedModel
    agent: Agent

    def play(self, knobs: Mapping[str, Knobs], policy: Policy) -> dict[str, Played]:
        """One rollout with each of these environments, all at once."""
        self.stub.by_index = dict(enumerate(knobs.values()))
        self.model.default = policy
        return dict(zip(knobs, asyncio.run(play(self.agent, stub_rows(list(knobs)))), strict=True))


@pytest.fixture(scope="module")
def bench(nemo_gym: NemoGym, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    folder = tmp_path_factory.mktemp("agent")
    stub = StubOpenEnv()
    with ExitStack() as stack:
        place = stack.enter_context(Place.made(nemo_gym, folder / "nemo-gym"))
        server = stack.enter_context(stub_chain(stub, folder, "--keepalive-after=2"))
        model = stack.enter_context(ScriptedModel().serving())
        written = folder / "gym-root" / "resources_servers" / "stub_v1"
        yield Bench(stub, server, model, stack.enter_context(place.agent(written, server.url, model.url)))


async def play(agent: Agent, rows: list[dict[str, Json]]) -> list[Played]:
    """All at once; in the order of the rows."""
    answers = await asyncio.gather(*(agent.run(row) for row in rows))
    return [Played(answer.status_code, answer.json() if answer.is_success else {}) for answer in answers]


def test_slow_starts_calls_and_gradings_lose_no_rollout(bench: Bench) -> None:
    def answered(tool: str, arguments: object) -> str:
        return ANSWER

    knobs = {
        "slow-start": Knobs(start_s=SLOW, output=answered, reward=0.1),
        "slow-call": Knobs(tool_s=SLOW, output=answered, reward=0.2),
        "slow-grading": Knobs(verify_s=SLOW, output=answered, reward=0.3),
        "slow-masked-grading": Knobs(fail={"verify": ("judge_failed", "the judge was silent")}, verify_s=SLOW),
        "quick": Knobs(output=answered, reward=0.5),
    }
    played = bench.play(knobs, looks)
    assert {name: rollout.status for name, rollout in played.items()} == dict.fromkeys(knobs, 200)
    masked = played.pop("slow-masked-grading")
    assert masked.verdict == (0.0, True, "judge_failed")
    assert masked.answer["instance_config"] == {"mask_sample": True}
    for name, rollout in played.items():
        assert rollout.verdict == (knobs[name].reward, False, None)
        assert [text.strip() for text in rollout.tool_texts] == [ANSWER]
    assert played["quick"].tool_texts == [ANSWER]


def test_a_seed_that_waits_for_its_place_loses_no_rollout(bench: Bench) -> None:
    bench.stub.places = 1
    played = bench.play({"a": Knobs(tool_s=SLOW), "b": Knobs(tool_s=SLOW)}, looks)
    bench.stub.places = 8
    assert [(rollout.status, rollout.verdict) for rollout in played.values()] == [(200, (0.75, False, None))] * 2
    status = httpx.get(f"{bench.server.url}/status", trust_env=False).json()
    assert status["longest_wait_s"] >= SLOW


def test_faults_are_masked_and_the_models_own_mistakes_are_scored(bench: Bench) -> None:
    knobs = {
        "reset": Knobs(fail={"reset": ("image_missing", "there is no such image")}),
        "start": Knobs(fail={"start": ("deploy_failed", "it did not build")}),
        "call": Knobs(fail={"tool": ("provider_oom_killed", "it took too much")}),
        "verify": Knobs(fail={"verify": ("judge_failed", "silent")}),
        "lost": Knobs(drop=frozenset({"tool"})),
        "well": Knobs(),
    }
    blunders = (
        Call("look", "{not json"),
        Call("look", "[1]"),
        Call("no_such_tool", "{}"),
        Call("fail", "{}"),
        Call("verify_it", '{"a": 1}'),
        Call.of("look", {"at": "it"}),
    )
    played = bench.play(knobs, script(Reply(calls=blunders)))
    assert {name: rollout.status for name, rollout in played.items()} == dict.fromkeys(knobs, 200)
    kinds = {name: rollout.verdict[2] for name, rollout in played.items() if rollout.verdict[1]}
    assert kinds == {
        "reset": "provider_unavailable",
        "start": "agent_env:deploy_failed",
        "call": "provider_oom_killed",
        "verify": "judge_failed",
        "lost": "provider_unavailable",
    }
    assert played["well"].verdict == (0.75, False, None)
    not_json, a_list, unknown, failed, reserved, last = played["well"].tool_texts
    assert "Invalid tool call arguments" in not_json
    assert a_list == "error: the arguments: must be a JSON object, got a list"
    assert unknown == "There is no tool 'no_such_tool'. The tools are: look, fail."
    assert failed == "it failed"
    assert "There is no tool 'verify_it'" in reserved
    assert json.loads(last) == {"saw": {"at": "it"}}
