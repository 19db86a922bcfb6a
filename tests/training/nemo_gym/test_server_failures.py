"""The tables of answers: what a client is told when the environment failed, and what is counted."""

from __future__ import annotations

import asyncio
import logging

import pytest
from stubs.gym_client import Rollout, bench, until
from stubs.quick_server import quick
from stubs.stub_openenv import Knobs, StubOpenEnv

from agent_env.errors import FailureKind

pytestmark = pytest.mark.anyio

FOREIGN_TOOL_FAULTS = [("timeout", "tool_timeout"), ("transport_error", "env_unreachable")]


async def play(rollout: Rollout) -> str:
    """Seed and one call; the call's text."""
    assert (await rollout.seed()).status_code == 200
    return (await rollout.call("look")).text


@pytest.mark.parametrize("kind", list(FailureKind))
@pytest.mark.parametrize("phase", ["start", "tool", "verify"])
async def test_a_failure_after_the_seed_masks_the_rollout(phase: str, kind: FailureKind) -> None:
    async with bench(StubOpenEnv(Knobs(fail={phase: (kind.value, "what came of it")}))) as b:
        rollout = b.rollout()
        text = await play(rollout)
        if phase != "verify":
            assert text.startswith("The environment failed")
            assert f"{kind.value}: what came of it" in text
            assert (await rollout.call("look")).text == text
        answer = (await rollout.verify()).json()
        assert (answer["reward"], answer["mask_sample"]) == (0.0, True)
        assert answer["instance_config"] == {"mask_sample": True}
        assert answer["failure_kind"] == kind.gym_word
        assert answer["failure_reason"] == "what came of it"
        assert answer["episode"]["kind"] == kind.value
        assert b.tally.masked == {kind: 1}
        assert b.tally.masked_tasks == {"train/0": 1}


@pytest.mark.parametrize("phase", ["start", "tool", "verify"])
async def test_under_the_flag_verify_answers_503_with_the_reason(phase: str) -> None:
    stub = StubOpenEnv(Knobs(fail={phase: ("env_crashed", "exit code 3")}))
    async with bench(stub, masked_as_error=True) as b:
        rollout = b.rollout()
        await play(rollout)
        for _ in range(2):
            answer = await rollout.verify()
            assert answer.status_code == 503
            assert answer.json()["detail"] == "env_crashed: exit code 3"
            assert answer.json()["failure_kind"] == "agent_env:env_crashed"
            assert answer.headers["set-cookie"].startswith(rollout.cookie or "?")
        assert b.tally.masked.total() == 1


async def test_a_start_that_is_refused_masks_at_verify() -> None:
    async with bench(StubOpenEnv(Knobs(fail={"reset": ("image_missing", "no image x:1")}))) as b:
        rollout = b.rollout()
        assert (await rollout.seed()).status_code == 200
        assert "no image x:1" in (await rollout.call("look")).text
        answer = (await rollout.verify()).json()
        assert (answer["mask_sample"], answer["failure_kind"]) == (True, "provider_unavailable")
        assert answer["episode"]["kind"] == "image_missing"


async def test_under_the_flag_a_start_that_is_refused_answers_the_seed_with_503() -> None:
    stub = StubOpenEnv(Knobs(fail={"reset": ("image_missing", "no image x:1")}))
    async with bench(stub, masked_as_error=True) as b:
        answer = await b.rollout().seed()
        assert answer.status_code == 503
        assert answer.json()["detail"] == "image_missing: no image x:1"
        assert int(answer.headers["retry-after"]) >= 1
        assert (b.tally.seeded, b.tally.refused) == (0, 1)


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("phase", ["start", "tool", "verify"])
async def test_an_openenv_server_that_breaks_the_connection_masks(phase: str, foreign: bool) -> None:
    async with bench(StubOpenEnv(Knobs(drop=frozenset({phase})), foreign=foreign)) as b:
        rollout = b.rollout()
        await play(rollout)
        answer = (await rollout.verify()).json()
        assert (answer["mask_sample"], answer["failure_kind"]) == (True, "provider_unavailable")
        assert "closed the session (1011)" in answer["failure_reason"]


@pytest.mark.parametrize("reward", [None, "1", "NaN", [0.5], float("nan"), float("inf")])
async def test_a_reward_that_is_no_number_is_masked(reward: object) -> None:
    async with bench(StubOpenEnv(Knobs(reward=reward))) as b:
        answer = (await (await b.seeded()).verify()).json()
        assert (answer["reward"], answer["mask_sample"]) == (0.0, True)
        assert answer["failure_kind"] in ("verifier_error", "agent_env:env_protocol_error")


@pytest.mark.parametrize(("reward", "shown"), [(0, 0.0), (1, 1.0), (True, 1.0), (-0.5, -0.5), (1e-300, 1e-300)])
async def test_every_finite_number_is_a_measurement(reward: object, shown: float) -> None:
    async with bench(StubOpenEnv(Knobs(reward=reward))) as b:
        answer = (await (await b.seeded()).verify()).json()
        assert (answer["reward"], answer["mask_sample"]) == (shown, False)


async def test_scores_that_are_no_numbers_do_not_leave_the_server() -> None:
    async with bench(StubOpenEnv(Knobs(scores={"a": 0.5, "b": None, "c": "x"}))) as b:
        assert (await (await b.seeded()).verify()).json()["episode"]["scores"] == {"a": 0.5}


# places


async def test_a_seed_waits_for_its_place_and_says_how_long() -> None:
    async with bench(StubOpenEnv(places=1)) as b:
        first = await b.seeded(index=1)
        second = b.rollout()
        seeding = asyncio.create_task(second.seed(index=2))
        await until(lambda: b.app.sessions.waiting == 1)
        assert not seeding.done()
        await first.verify()
        assert (await seeding).status_code == 200
        assert (await second.verify()).json()["reward"] == 0.75
        assert b.tally.longest_wait > 0
        assert b.stub.most_running == 1


@pytest.mark.parametrize("flag", [False, True])
@pytest.mark.parametrize("limit", ["reset_timeout", "seed_wait"])
@pytest.mark.parametrize("foreign", [False, True])
async def test_a_place_that_does_not_come_in_time_is_the_kind_capacity(limit: str, flag: bool, foreign: bool) -> None:
    stub = StubOpenEnv(places=1, foreign=foreign)
    async with bench(stub, masked_as_error=flag, **{limit: 0.3}) as b:
        first = await b.seeded()
        second = b.rollout()
        answer = await second.seed()
        if flag:
            assert answer.status_code == 503
            assert answer.json()["failure_kind"] == "agent_env:capacity"
            assert "retry-after" in answer.headers
        else:
            assert answer.status_code == 200
            verified = (await second.verify()).json()
            assert (verified["mask_sample"], verified["episode"]["kind"]) == (True, "capacity")
            assert f"--{limit.replace('_', '-')}" in verified["failure_reason"]
        assert (await first.verify()).json()["reward"] == 0.75


@pytest.mark.parametrize("foreign", [False, True])
async def test_a_full_server_is_tried_again_until_it_has_room(foreign: bool) -> None:
    stub = StubOpenEnv(places=1, queue=0, foreign=foreign)
    async with bench(stub) as b:
        first = await b.seeded()
        second = b.rollout()
        seeding = asyncio.create_task(second.seed())
        await asyncio.sleep(0.3)
        assert not seeding.done()
        await first.verify()
        assert (await seeding).status_code == 200
        assert (await second.verify()).json()["reward"] == 0.75


async def test_an_openenv_server_that_is_away_fails_the_seed_after_a_while() -> None:
    async with bench(folder={"openenv_url": "http://127.0.0.1:9"}, refused_for=0.3) as b:
        rollout = b.rollout()
        assert (await rollout.seed()).status_code == 200
        answer = (await rollout.verify()).json()
        assert answer["failure_kind"] == "provider_unavailable"
        assert "no OpenEnv server answers at http://127.0.0.1:9" in answer["failure_reason"]


async def test_an_openenv_server_that_comes_back_in_time_costs_no_rollout() -> None:
    async with quick(StubOpenEnv()) as gone:
        pass
    port = int(gone.rsplit(":", 1)[1])
    async with bench(folder={"openenv_url": gone}) as b:
        rollout = b.rollout()
        seeding = asyncio.create_task(rollout.seed())
        await asyncio.sleep(0.2)
        async with quick(b.stub, port=port):
            assert (await seeding).status_code == 200
            assert (await rollout.verify()).json()["reward"] == 0.75


# servers of others


async def test_a_foreign_server_is_seeded_before_its_env_is_ready() -> None:
    async with bench(StubOpenEnv(Knobs(start_s=0.5), foreign=True)) as b:
        rollout = b.rollout()
        began = asyncio.get_running_loop().time()
        assert (await rollout.seed(index=4, task_id="train-0004")).status_code == 200
        assert asyncio.get_running_loop().time() - began < 0.4
        assert (await rollout.call("look", {"at": "x"})).text == '{"saw": {"at": "x"}}'
        assert (await rollout.verify("Done.")).json()["reward"] == 0.75
        assert b.stub.requests == ["GET /capacity", "POST /stub-v1/task"]


async def test_a_foreign_server_is_asked_for_each_task_once() -> None:
    async with bench(StubOpenEnv(foreign=True)) as b:
        for _ in range(3):
            assert (await (await b.seeded(index=4)).verify()).json()["reward"] == 0.75
        assert b.stub.requests.count("POST /stub-v1/task") == 1


@pytest.mark.parametrize("fields", [{"index": 2000}, {"split": "nope"}, {"index": 1, "task_id": "train-0002"}])
async def test_a_wrong_row_is_refused_in_front_of_a_foreign_server_too(fields: dict[str, object]) -> None:
    async with bench(StubOpenEnv(foreign=True)) as b:
        assert (await b.rollout().seed(**fields)).status_code == 409
        assert b.stub.resets == []


@pytest.mark.parametrize(("fault", "kind"), FOREIGN_TOOL_FAULTS)
async def test_a_foreign_servers_tool_fault_masks(fault: str, kind: str) -> None:
    async with bench(StubOpenEnv(Knobs(fail={"tool": (fault, "no answer")}), foreign=True)) as b:
        rollout = b.rollout()
        assert "no answer" in await play(rollout)
        assert (await rollout.verify()).json()["episode"]["kind"] == kind


@pytest.mark.parametrize(
    ("phase", "kind"), [("start", "deploy_failed"), ("tool", "env_unreachable"), ("verify", "verifier_error")]
)
async def test_a_foreign_failure_is_named_by_its_phase(phase: str, kind: str) -> None:
    async with bench(StubOpenEnv(Knobs(fail={phase: ("RuntimeError", "boom")}), foreign=True)) as b:
        rollout = b.rollout()
        await play(rollout)
        answer = (await rollout.verify()).json()
        assert (answer["episode"]["kind"], answer["failure_reason"]) == (kind, "RuntimeError: boom")


async def test_end_turn_hands_out_a_foreign_servers_next_prompt() -> None:
    async with bench(StubOpenEnv(Knobs(prompts=("One.", "Two.")), foreign=True)) as b:
        rollout = await b.seeded()
        assert (await rollout.call("end_turn", {"response": "first"})).text == "Two."
        assert "no further prompt" in (await rollout.call("end_turn", {"response": "second"})).text
        answer = (await rollout.verify("the end")).json()
        assert (answer["reward"], answer["episode"]["turns_played"]) == (0.75, 2)
        assert b.stub.replies == ["first", "second"]


# counting


async def test_a_masked_share_above_a_tenth_is_an_error_line_that_names_the_leading_kind(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with bench(StubOpenEnv(Knobs(fail={"tool": ("tool_timeout", "slow")}))) as b:
        with caplog.at_level(logging.ERROR):
            for _ in range(11):
                rollout = b.rollout()
                await play(rollout)
                await rollout.verify()
        errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
        errors = [error for error in errors if error.startswith("masked")]
        assert len(errors) == 1
        assert errors[0].startswith("masked 11 of the last 11 rollouts, most often tool_timeout (11)")
        assert b.tally.masked_tools == {"look": 11}
