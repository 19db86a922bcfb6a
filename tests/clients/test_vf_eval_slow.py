"""A client with a time-out of five seconds, and an environment that takes twelve: no rollout is lost."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from clients.scripted_model import Call, Conversation, Reply, script
from clients.stub_chain import stub_chain, stub_rows
from clients.verifiers_venv import VerifiersClient
from clients.vf_eval import play
from stubs.stub_openenv import Knobs, StubOpenEnv

pytestmark = [pytest.mark.verifiers, pytest.mark.integration, pytest.mark.timeout(400)]

SLOW = 12.0
CLIENT = ("--env.taskset.task.request-timeout", "5")
ANSWER = "the answer of a slow call, to its last word"

looks = script(Reply(calls=(Call.of("look", {"at": "it"}),)))


def test_slow_starts_calls_and_gradings_outlive_the_clients_timeout(
    verifiers_client: VerifiersClient, tmp_path: Path, say: Callable[[str], None]
) -> None:
    def answered(tool: str, arguments: object) -> str:
        return ANSWER

    knobs = {
        "slow-start": Knobs(start_s=SLOW, output=answered, reward=0.1),
        "slow-call": Knobs(tool_s=SLOW, output=answered, reward=0.2),
        "slow-grading": Knobs(verify_s=SLOW, output=answered, reward=0.3),
        "slow-masked-grading": Knobs(fail={"verify": ("judge_failed", "the judge was silent")}, verify_s=SLOW),
        "quick": Knobs(output=answered, reward=0.5),
    }
    stub = StubOpenEnv(by_index=dict(enumerate(knobs.values())))
    with stub_chain(stub, tmp_path, "--masked-as-error", "--keepalive-after=2") as server:
        rows = stub_rows(list(knobs))
        run = play(verifiers_client, server.url, tmp_path / "eval", rows, dict.fromkeys(knobs, looks), *CLIENT)
    say(f"vf-eval in {run.seconds:.1f} s: {run.headline}")
    rollouts = {rollout.prompt: rollout for rollout in run.rollouts}
    masked = rollouts.pop("slow-masked-grading")
    assert {name: (rollout.ok, rollout.reward) for name, rollout in rollouts.items()} == {
        name: (True, knobs[name].reward) for name in rollouts
    }
    for rollout in rollouts.values():
        (text,) = rollout.tool_texts
        assert text.strip() == ANSWER
    assert rollouts["quick"].tool_texts == (ANSWER,)
    assert (masked.ok, masked.reward) == (False, None)
    assert re.search("scoring: RemoteProtocolError", masked.errors[0]), masked.errors
    assert run.mean == pytest.approx((0.1 + 0.2 + 0.3 + 0.5) / 4)


def test_a_seed_that_waits_for_its_place_outlives_the_clients_timeout(
    verifiers_client: VerifiersClient, tmp_path: Path
) -> None:
    waits = [SLOW]

    def first_is_slow(conversation: Conversation) -> Reply:
        time.sleep(waits.pop() if waits else 0)
        return Reply("Done.")

    stub = StubOpenEnv(places=1)
    with stub_chain(stub, tmp_path, "--masked-as-error", "--keepalive-after=2") as server:
        rows = stub_rows(["a", "b"])
        run = play(verifiers_client, server.url, tmp_path / "eval", rows, dict.fromkeys("ab", first_is_slow), *CLIENT)
        said = server.log.read_text()
    assert [(rollout.ok, rollout.reward) for rollout in run.rollouts] == [(True, 0.75)] * 2, said
    server.stop()
    (waited,) = re.findall(r"longest wait ([\d.]+) s", server.said)
    assert float(waited) >= SLOW


def test_without_keepalive_such_a_client_loses_them(verifiers_client: VerifiersClient, tmp_path: Path) -> None:
    knobs = {"call": Knobs(tool_s=8), "grading": Knobs(verify_s=8)}
    stub = StubOpenEnv(by_index=dict(enumerate(knobs.values())))
    with stub_chain(stub, tmp_path, "--masked-as-error", "--keepalive-after=0") as server:
        rows = stub_rows(["call", "grading"])
        run = play(
            verifiers_client, server.url, tmp_path / "eval", rows, dict.fromkeys(["call", "grading"], looks), *CLIENT
        )
    call, grading = run.rollouts
    assert (call.ok, call.tool_texts) == (True, ("",))
    assert "ReadTimeout" in grading.errors[0]
