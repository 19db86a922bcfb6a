"""The life of a session: repeated, late and out-of-order requests, the clocks, and clients that leave."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stubs.gym_client import bench, row, until
from stubs.gym_requests import closing, request, typed
from stubs.stub_openenv import Knobs, StubOpenEnv

from agent_env.training.nemo_gym.options import ServeOptions

pytestmark = pytest.mark.anyio


# repeated and late requests


async def test_verify_twice_gives_the_first_verdict_with_the_second_echo() -> None:
    async with bench() as b:
        rollout = await b.seeded()
        first = (await rollout.verify("one")).json()
        second = (await rollout.verify("two")).json()
        assert second.pop("response")["output"][0]["content"][0]["text"] == "two"
        first.pop("response")
        assert first == second
        assert b.stub.replies == ["one"]
        assert b.tally.verified == 1


async def test_a_verify_that_is_sent_again_while_the_first_runs_grades_once() -> None:
    async with bench(StubOpenEnv(Knobs(verify_s=0.2))) as b:
        rollout = await b.seeded()
        answers = await asyncio.gather(*(rollout.verify() for _ in range(3)))
        assert [answer.json()["reward"] for answer in answers] == [0.75] * 3
        assert b.stub.replies == ["Done."]
        assert b.tally.verified == 1


async def test_a_tool_call_after_verify_is_told_so_and_changes_nothing() -> None:
    async with bench() as b:
        rollout = await b.seeded()
        await rollout.verify()
        answer = await rollout.call("look")
        assert (answer.status_code, "verified already" in answer.text) == (200, True)
        assert b.stub.calls == []
        assert (await rollout.verify()).json()["reward"] == 0.75


async def test_calls_of_a_session_run_one_after_the_other_in_order() -> None:
    async with bench(StubOpenEnv(Knobs(tool_s=0.05))) as b:
        rollout = await b.seeded()
        calls = [asyncio.create_task(rollout.call("look", {"at": str(n)})) for n in range(4)]
        for call in calls:
            await call
        assert [arguments["at"] for _, arguments in b.stub.calls] == ["0", "1", "2", "3"]


async def test_a_verify_during_a_tool_call_waits_for_it() -> None:
    async with bench(StubOpenEnv(Knobs(tool_s=0.3))) as b:
        rollout = await b.seeded()
        call = asyncio.create_task(rollout.call("look", {"at": "x"}))
        await until(lambda: len(b.stub.calls) == 1)
        assert (await rollout.verify()).json()["mask_sample"] is False
        assert (await call).text == '{"saw": {"at": "x"}}'


async def test_a_verify_that_a_tool_call_holds_up_too_long_masks() -> None:
    async with bench(StubOpenEnv(Knobs(tool_s=5)), ready_wait=0.2) as b:
        rollout = await b.seeded()
        call = asyncio.create_task(rollout.call("look"))
        await until(lambda: len(b.stub.calls) == 1)
        answer = (await rollout.verify()).json()
        assert answer["episode"]["kind"] == "tool_timeout"
        assert "look" in answer["failure_reason"]
        assert (await call).text.startswith("The environment failed")


async def test_a_tool_call_past_its_deadline_masks_and_the_next_is_answered_at_once() -> None:
    async with bench(StubOpenEnv(Knobs(tool_s=5)), tool_timeout=-4.8) as b:
        rollout = await b.seeded()
        assert "tool_timeout" in (await rollout.call("look")).text
        assert "tool_timeout" in (await rollout.call("look")).text
        assert (await rollout.verify()).json()["failure_kind"] == "agent_env:tool_timeout"
        assert len(b.stub.calls) == 1


async def test_a_grading_past_its_deadline_masks() -> None:
    async with bench(StubOpenEnv(Knobs(verify_s=5)), verify_timeout=-4.8) as b:
        answer = (await (await b.seeded()).verify()).json()
        assert (answer["episode"]["kind"], answer["failure_kind"]) == ("verifier_timeout", "verifier_error")


async def test_the_first_call_and_verify_wait_for_the_env() -> None:
    async with bench(StubOpenEnv(Knobs(start_s=0.4))) as b:
        rollout = b.rollout()
        began = asyncio.get_running_loop().time()
        await rollout.seed()
        assert asyncio.get_running_loop().time() - began < 0.1
        assert (await rollout.call("look", {"at": "x"})).text == '{"saw": {"at": "x"}}'
        assert asyncio.get_running_loop().time() - began > 0.4
        unused = await b.seeded()
        assert (await unused.verify()).json()["reward"] == 0.75


@pytest.mark.parametrize("first", ["call", "verify"])
async def test_an_env_that_is_not_ready_in_time_fails_the_rollout(first: str) -> None:
    async with bench(StubOpenEnv(Knobs(start_s=5)), ready_wait=0.2) as b:
        rollout = await b.seeded()
        if first == "call":
            assert "--ready-wait" in (await rollout.call("look")).text
            await until(lambda: b.stub.running == 0)
        assert (await rollout.verify()).json()["episode"]["kind"] == "deploy_timeout"


async def test_no_answer_takes_ten_minutes_by_default() -> None:
    assert ServeOptions().longest_answer < 600


# closing


async def test_the_cookies_session_can_be_closed() -> None:
    async with bench() as b:
        rollout = await b.seeded()
        for _ in range(2):
            answer = await rollout.post("/close_session", {})
            assert (answer.status_code, answer.json()) == (200, {})
        assert "cancelled" in (await rollout.call("look")).text
        assert (await rollout.verify()).json()["failure_kind"] == "cancelled"


async def test_closing_after_verify_keeps_the_verdict() -> None:
    async with bench() as b:
        rollout = await b.seeded()
        await rollout.verify()
        await rollout.post("/close_session", {})
        assert (await rollout.verify()).json()["reward"] == 0.75
        assert (b.tally.verified, b.tally.closed) == (1, 0)


async def test_closing_wins_over_a_running_call() -> None:
    async with bench(StubOpenEnv(Knobs(tool_s=5))) as b:
        rollout = await b.seeded()
        call = asyncio.create_task(rollout.call("look"))
        await until(lambda: len(b.stub.calls) == 1)
        await rollout.post("/close_session", {})
        assert "cancelled" in (await call).text


# the typed seed: nemo-gym 0.7.0's session contract


async def test_a_typed_seed_is_answered_with_exactly_its_three_fields() -> None:
    async with bench() as b:
        rollout = b.rollout()
        answer = await rollout.seed(typed())
        assert answer.json() == {"resources_session_id": "s1", "resources_tools": None, "sandbox_access": None}
        assert (await rollout.call("look", {"at": "x"})).text == '{"saw": {"at": "x"}}'
        assert (await rollout.verify()).json()["reward"] == 0.75


async def test_a_typed_seed_sent_twice_is_one_session() -> None:
    async with bench() as b:
        first, second = b.rollout(), b.rollout()
        answers = await asyncio.gather(first.seed(typed()), second.seed(typed()))
        assert [answer.json()["resources_session_id"] for answer in answers] == ["s1", "s1"]
        assert first.cookie == second.cookie
        assert b.stub.resets == [("train", 0)]
        assert b.tally.seeded == 1
        assert (await b.rollout().seed(typed(rollout_id="r2"))).status_code == 409


async def test_the_session_contract_of_nemo_gym() -> None:
    async with bench() as b:
        for _ in range(2):
            seeded = await b.rollout().seed(typed())
            assert (seeded.status_code, seeded.json()["resources_session_id"]) == (200, "s1")
        for _ in range(2):
            closed = await b.rollout().post("/close_session", closing())
            assert (closed.status_code, closed.json()) == (200, {"resources_session_id": "s1"})
        assert (await b.rollout().post("/close_session", closing("never"))).status_code == 200
        for late in ("s1", "never"):
            answer = await b.rollout().post("/seed_session", typed(late))
            assert (answer.status_code, "closed" in answer.json()["detail"]) == (409, True)
        assert b.stub.sessions == 0


async def test_closing_a_session_that_waits_for_its_place_answers_its_seed() -> None:
    async with bench(StubOpenEnv(places=1)) as b:
        first = await b.seeded()
        seeding = asyncio.create_task(b.rollout().post("/seed_session", typed()))
        await until(lambda: b.app.sessions.waiting == 1)
        await b.rollout().post("/close_session", closing())
        answer = await seeding
        assert (answer.status_code, "closed" in answer.json()["detail"]) == (409, True)
        assert b.stub.resets == [("train", 0)] * 2
        await until(lambda: b.stub.sessions == 1)
        await first.verify()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"extra": 1}, "extra"),
        ({"resources_session_id": ""}, "resources_session_id"),
        ({"resources_session_id": 1}, "resources_session_id"),
        ({"episode_id": {"rollout_id": "r-a1", "attempt": 0}}, "episode_id.rollout_id"),
        ({"episode_id": {"rollout_id": "-", "attempt": 0}}, "episode_id.rollout_id"),
        ({"episode_id": {"rollout_id": "r", "attempt": -1}}, "episode_id.attempt"),
        ({"episode_id": {"rollout_id": "r", "attempt": 0, "x": 1}}, "x"),
        ({"episode_id": None}, "episode_id"),
        ({"task_id": "t"}, "task_id"),
        ({"task_data": []}, "task_data"),
        ({"task_data": {"split": "train"}}, "index"),
    ],
)
async def test_a_malformed_typed_seed_is_refused_by_field(changes: dict[str, Any], field: str) -> None:
    async with bench() as b:
        answer = await b.rollout().post("/seed_session", typed(**changes))
        assert (answer.status_code, answer.json()["detail"].startswith(f"{field}:")) == (422, True), answer.text


@pytest.mark.parametrize("body", [{"resources_session_id": "s"}, {**closing(), "x": 1}, [], {"episode_id": 1}])
async def test_a_malformed_close_is_refused(body: Any) -> None:
    async with bench() as b:
        assert (await b.rollout().post("/close_session", body)).status_code == 422


# the clocks


async def test_an_idle_session_is_reclaimed_and_its_late_verify_is_masked() -> None:
    async with bench(idle_timeout=0.2) as b:
        rollout = await b.seeded()
        await rollout.call("look")
        await until(lambda: b.tally.reclaimed == 1)
        await until(lambda: b.stub.running == 0)
        assert "session_expired" in (await rollout.call("look")).text
        answer = (await rollout.verify()).json()
        assert (answer["failure_kind"], answer["mask_sample"]) == ("session_expired", True)
        assert "--idle-timeout" in answer["failure_reason"]
        assert (b.tally.reclaimed, b.tally.masked.total()) == (0, 1)


async def test_the_idle_clock_stands_while_a_request_runs_and_starts_anew_with_each_answer() -> None:
    async with bench(StubOpenEnv(Knobs(tool_s=0.5)), idle_timeout=0.3) as b:
        rollout = await b.seeded()
        for _ in range(2):
            assert (await rollout.call("look", {"at": "x"})).text == '{"saw": {"at": "x"}}'
            await asyncio.sleep(0.15)
        assert (await rollout.verify()).json()["mask_sample"] is False


async def test_the_first_call_has_a_clock_of_its_own() -> None:
    async with bench(idle_timeout=0.2, first_call_timeout=20) as b:
        rollout = await b.seeded()
        await asyncio.sleep(0.4)
        assert (await rollout.call("look")).text.startswith("{")
        await until(lambda: b.tally.reclaimed == 1)


async def test_what_was_measured_stays_measured_when_its_verify_is_late() -> None:
    async with bench(StubOpenEnv(Knobs(prompts=("One.", "Two.")), foreign=True), idle_timeout=0.2) as b:
        rollout = await b.seeded()
        for _ in range(2):
            await rollout.call("end_turn", {"response": "x"})
        await until(lambda: b.tally.reclaimed == 1)
        assert (await rollout.verify()).json()["reward"] == 0.75
        assert (b.tally.reclaimed, b.tally.verified) == (0, 1)


async def test_ended_sessions_are_remembered_up_to_a_bound() -> None:
    async with bench(tombstones=2) as b:
        rollouts = [await b.seeded() for _ in range(3)]
        for rollout in rollouts:
            await rollout.verify()
        kinds = [(await rollout.verify()).json()["failure_kind"] for rollout in rollouts]
        assert kinds == ["session_lost", None, None]


# clients that leave


async def test_a_client_that_leaves_while_its_seed_waits_frees_its_place_in_the_queue() -> None:
    async with bench(StubOpenEnv(places=1)) as b:
        first = await b.seeded()
        async with request(b, "/seed_session", row()):
            await until(lambda: b.app.sessions.waiting == 1)
        await until(lambda: b.app.sessions.waiting == 0)
        await until(lambda: b.stub.sessions == 1)
        assert (b.tally.abandoned, b.tally.seeded) == (1, 1)
        await first.verify()


async def test_a_typed_seed_can_be_sent_again_after_its_client_left() -> None:
    async with bench(StubOpenEnv(places=1)) as b:
        first = await b.seeded()
        async with request(b, "/seed_session", typed()):
            await until(lambda: b.app.sessions.waiting == 1)
        await until(lambda: b.app.sessions.waiting == 0)
        await first.verify()
        again = b.rollout()
        assert (await again.seed(typed())).status_code == 200
        assert (await again.verify()).json()["reward"] == 0.75


async def test_a_seed_that_two_requests_wait_for_survives_the_loss_of_one() -> None:
    async with bench(StubOpenEnv(places=1)) as b:
        first = await b.seeded()
        second = b.rollout()
        async with request(b, "/seed_session", typed()):
            await until(lambda: b.app.sessions.waiting == 1)
            seeding = asyncio.create_task(second.seed(typed()))
            await until(lambda: next(iter(b.app.sessions._by_id.values())).seeders == 2)
        await first.verify()
        assert (await seeding).status_code == 200
        assert (await second.verify()).json()["reward"] == 0.75


async def test_a_tool_call_ends_in_the_background_when_its_client_leaves() -> None:
    async with bench(StubOpenEnv(Knobs(tool_s=0.3))) as b:
        rollout = await b.seeded()
        async with request(b, "/look", {}, rollout.cookie):
            await until(lambda: len(b.stub.calls) == 1)
        answer = (await rollout.verify()).json()
        assert (answer["mask_sample"], answer["reward"]) == (False, 0.75)


async def test_a_verify_whose_client_leaves_is_finished_and_answers_the_retry() -> None:
    async with bench(StubOpenEnv(Knobs(verify_s=0.3))) as b:
        rollout = await b.seeded()
        async with request(b, "/verify", {"response": {}}, rollout.cookie):
            await until(lambda: len(b.stub.replies) == 1)
        assert (await rollout.verify()).json()["reward"] == 0.75
        assert len(b.stub.replies) == 1


async def test_a_client_that_leaves_before_its_request_is_complete_leaves_nothing() -> None:
    async with bench() as b:
        host, port = b.url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST /seed_session HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        assert (await b.http.get("/health")).status_code == 200
        assert b.stub.resets == []
