from __future__ import annotations

import json
import logging
from typing import Any

import pytest
from stubs.gym_client import bench, message, response, row
from stubs.stub_openenv import Knobs, StubOpenEnv

pytestmark = pytest.mark.anyio


async def test_a_rollout_is_seeded_played_and_scored() -> None:
    async with bench() as b:
        rollout = b.rollout()
        seeded = await rollout.seed(split="train", index=7, task_id="train-0007")
        assert (seeded.status_code, seeded.json()) == (200, {})
        called = await rollout.call("look", {"at": "the sky"})
        assert (called.status_code, called.text) == (200, '{"saw": {"at": "the sky"}}')
        assert called.headers["content-type"] == "text/plain; charset=utf-8"
        verified = await rollout.verify("It is blue.")
        assert verified.status_code == 200
        answer = verified.json()
        assert answer["reward"] == 0.75
        assert (answer["mask_sample"], answer["instance_config"]) == (False, {"mask_sample": False})
        assert (answer["failure_kind"], answer["failure_reason"]) == (None, None)
        assert answer["episode"]["scores"] == {"grade": 0.75}
        assert answer["episode"]["id"] == "episode-1"
        assert b.stub.resets == [("train", 7)]
        assert b.stub.replies == ["It is blue."]
        assert b.tally.verified == 1


async def test_the_answer_of_verify_has_these_keys_and_no_other_number() -> None:
    async with bench() as b:
        rollout = await b.seeded()
        answer = (await rollout.verify(index=0, task_id="train-0000", temperature=1.5)).json()
        assert list(answer) == [
            "reward",
            "mask_sample",
            "failure_kind",
            "failure_reason",
            "instance_config",
            "episode",
            "responses_create_params",
            "response",
        ]
        assert set(answer["episode"]) == {"id", "kind", "scores", "turns_played", "tools_changed", "timings"}


async def test_response_and_params_are_echoed_byte_for_byte() -> None:
    params = '{"input" : "ü\\u00fc", "temperature":1.0e0,"z":[1,2 ,3]}'
    answered = '{"output":[{"type":"message", "generation_token_ids":[11,12, 13],"lp":-0.10000000000000001}],"id":"é"}'
    async with bench() as b:
        rollout = await b.seeded()
        body = f'{{"split":"train",  "responses_create_params":{params} , "response":{answered}}}'
        answer = await rollout.post("/verify", body.encode())
        assert answer.text.endswith(f',"responses_create_params":{params},"response":{answered}}}')
        assert answer.json()["reward"] == 0.75


async def test_a_token_probability_that_is_no_number_costs_no_reward() -> None:
    async with bench() as b:
        rollout = await b.seeded()
        answer = await rollout.post("/verify", b'{"responses_create_params":{},"response":{"lp":[-Infinity,NaN,0.5]}}')
        assert answer.json()["response"] == {"lp": [None, None, 0.5]}
        assert answer.json()["reward"] == 0.75


@pytest.mark.parametrize(
    "output",
    [
        [],
        None,
        [{"type": "function_call", "call_id": "c", "name": "look", "arguments": "not json"}],
        [{"type": "reasoning", "summary": []}, message("x")],
        [{"role": "assistant", "content": "an easy message"}],
        ["nonsense", 3, None],
    ],
)
async def test_verify_takes_every_output_that_clients_send(output: Any) -> None:
    async with bench() as b:
        rollout = await b.seeded()
        answer = await rollout.post("/verify", {"response": {"output": output}, "responses_create_params": {}})
        assert answer.json()["reward"] == 0.75


async def test_a_tool_error_is_text_for_the_model_and_scored() -> None:
    async with bench() as b:
        rollout = await b.seeded()
        failed = await rollout.call("fail")
        assert (failed.status_code, failed.text) == (200, "it failed")
        unknown = await rollout.call("nope")
        assert unknown.status_code == 404
        assert unknown.text == "There is no tool 'nope'. The tools are: look, fail."
        assert (await rollout.verify()).json()["mask_sample"] is False


async def test_an_aliased_tool_is_called_by_its_own_name() -> None:
    tools = [{"name": "a.b", "description": "", "input_schema": {"type": "object"}}]
    async with bench(StubOpenEnv(Knobs(tools=tools)), folder={"aliases": {"a_b": "a.b"}}) as b:
        rollout = await b.seeded()
        assert (await rollout.call("a_b")).status_code == 200
        assert b.stub.calls == [("a.b", {})]


async def test_arguments_reach_the_env_as_the_model_wrote_them() -> None:
    async with bench() as b:
        rollout = await b.seeded()
        await rollout.post("/look", b'{"n": 123456789012345678901234567890, "f": 1.10}')
        assert '"arguments":{"n": 123456789012345678901234567890, "f": 1.10}}' in b.stub.frames[-1]


async def test_an_empty_output_is_an_empty_text() -> None:
    empty = {"content": [], "structured_content": None, "meta": None, "data": "", "is_error": False}
    async with bench(StubOpenEnv(Knobs(output=lambda *_: empty))) as b:
        rollout = await b.seeded()
        answer = await rollout.call("look")
        assert (answer.status_code, answer.content) == (200, b"")


async def test_a_long_output_is_cut_and_says_so() -> None:
    async with bench(StubOpenEnv(Knobs(output=lambda *_: "é" * 5000)), max_output=1001) as b:
        rollout = await b.seeded()
        text = (await rollout.call("look")).text
        assert text == "é" * 500 + "\n[output cut: 1000 of 10000 bytes are shown]"


@pytest.mark.parametrize("path", ["/", "/health", "/healthz", "/livez", "/readyz"])
async def test_health_is_told_on_every_path_that_is_asked(path: str) -> None:
    async with bench(token="secret") as b:
        answer = await b.http.get(path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ok"})
        assert "set-cookie" in answer.headers


async def test_the_small_routes_answer() -> None:
    async with bench() as b:
        assert (await b.http.get("/reverify_mode")).json() == "unsupported"
        metrics = await b.http.post("/aggregate_metrics", json={"verify_responses": []})
        assert metrics.json() == {
            "group_level_metrics": [],
            "agent_metrics": {},
            "key_metrics": {},
            "perf_summary": None,
            "repeat_level_metrics": [],
        }
        assert (await b.http.get("/look")).status_code == 405
        assert (await b.http.get("/status")).json()["seeded"] == 0


async def test_the_prefix_of_observed_rollouts_is_stripped() -> None:
    async with bench() as b:
        rollout = b.rollout()
        seeded = await rollout.post("/ng-rollout/0-0-a1/seed_session", row())
        rollout.cookie = seeded.headers["set-cookie"].split(";")[0]
        assert (await rollout.post("/ng-rollout/0-0-a1/look", {})).status_code == 200
        assert (await rollout.post("/ng-rollout/0-0-a1/verify", {"response": {}})).json()["reward"] == 0.75


async def test_a_token_is_wanted_everywhere_but_at_health() -> None:
    async with bench(token="secret") as b:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "secret"}):
            answer = await b.http.post("/seed_session", json=row(), headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        answer = await b.http.post("/seed_session", json=row(), headers={"authorization": "Bearer secret"})
        assert answer.status_code == 200


# cookies


async def test_every_answer_carries_the_same_cookie() -> None:
    async with bench() as b:
        rollout = await b.seeded()
        answers = [
            await rollout.call("look"),
            await rollout.call("nope"),
            await rollout.post("/look", b"no json"),
            await rollout.post("/verify", b"no json"),
            await rollout.verify(),
            await rollout.verify(),
            await rollout.http.get("/health", headers={"cookie": rollout.cookie or ""}),
        ]
        assert {answer.headers["set-cookie"].split(";")[0] for answer in answers} == {rollout.cookie}


async def test_foreign_and_stale_cookies_are_passed_over() -> None:
    async with bench() as b:
        rollout = await b.seeded()
        name = (rollout.cookie or "").partition("=")[0]
        for cookie in (
            f"SimpleAgent___agent=abc.def; {rollout.cookie}; other=1",
            f"{name}=of-another-time; {rollout.cookie}",
            f"{'x' * 5000}=y; {rollout.cookie}",
            f'{name}="{(rollout.cookie or "").partition("=")[2]}"',
        ):
            answer = await rollout.post("/look", {}, {"cookie": cookie})
            assert answer.status_code == 200, answer.text


async def test_a_seed_makes_a_session_of_its_own_whatever_cookie_it_carries(caplog: pytest.LogCaptureFixture) -> None:
    async with bench() as b:
        rollout = await b.seeded(index=1)
        first = rollout.cookie
        with caplog.at_level(logging.WARNING):
            await rollout.seed(index=2)
        assert rollout.cookie != first
        assert b.stub.resets == [("train", 1), ("train", 2)]
        assert "cookie jar" in caplog.text


@pytest.mark.parametrize("cookie", ["", "agent_env_session_stub_v1=unknown", "agent_env_session_stub_v1=%00;;=;"])
async def test_a_call_without_a_session_is_told_so_and_opens_none(cookie: str) -> None:
    async with bench() as b:
        rollout = b.rollout()
        called = await rollout.post("/look", {}, {"cookie": cookie})
        assert called.status_code == 404
        assert "no session" in called.text
        verified = await rollout.post("/verify", {"response": {}}, {"cookie": cookie})
        assert (verified.status_code, verified.json()["failure_kind"]) == (200, "session_lost")
        assert b.stub.sessions == 0


# requests that can't be served


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"", 422, "the seed"),
        (b"[]", 422, "the seed"),
        (b"null", 422, "the seed"),
        (b'{"split":"train"}', 422, "index"),
        (b'{"index":0}', 422, "split"),
        (b'{"split":1,"index":0}', 422, "split"),
        (b'{"split":"train","index":"0"}', 422, "index"),
        (b'{"split":"train","index":true}', 422, "index"),
        (b'{"split":"train","index":-1}', 422, "index"),
        (b'{"split":"train","index":0.5}', 422, "index"),
        (b'{"split":"train","index":123456789012345678901}', 422, "index"),
        (b'{"split":"train","index":0,"task_id":{}}', 422, "task_id"),
        (b'{"split":"train","index":0,"x":NaN}', 422, "the seed"),
        (b'{"split":"train","index":0,"x":"\\ud800"}', 422, "the seed"),
        (b'{"split":"train","index":0,"x":' + b"[" * 10000 + b"]" * 10000 + b"}", 422, "the seed"),
        (b"\xff\xfe", 422, "the seed"),
        (b'{"split":"train","index":2000}', 409, "index"),
        (b'{"split":"nope","index":0}', 409, "split"),
        (b'{"split":"train","index":0,"task_id":"train-0001"}', 409, "task_id"),
    ],
)
async def test_a_wrong_row_is_refused_at_once_and_leaves_nothing(body: bytes, status: int, field: str) -> None:
    async with bench() as b:
        for _ in range(2):
            answer = await b.rollout().post("/seed_session", body)
            assert (answer.status_code, field in answer.json()["detail"]) == (status, True), answer.text
            assert "set-cookie" in answer.headers
        assert b.tally.seeded == 0


async def test_a_row_for_another_task_is_refused_with_both_names() -> None:
    async with bench() as b:
        answer = await b.rollout().seed(index=3, task_id="tasks/train-0004")
        assert answer.status_code == 409
        assert "'train-0004'" in answer.json()["detail"]
        assert "'train-0003'" in answer.json()["detail"]


@pytest.mark.parametrize("task_id", ["train-0003", "tasks/train-0003", "/somewhere/bundle/tasks/train-0003"])
async def test_a_path_form_task_id_counts_by_its_last_segment(task_id: str) -> None:
    async with bench() as b:
        assert (await b.rollout().seed(index=3, task_id=task_id)).status_code == 200


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"[]", 422),
        (b"1", 422),
        (b"null", 422),
        (b'"x"', 422),
        (b'{"a": NaN}', 422),
        (b'{"a": 1e400}', 422),
        (b'{"a"', 422),
        (b'{"a": "\\ud800"}', 422),
        (b'{"a":' * 10000 + b"1" + b"}" * 10000, 422),
        (b'{"a": "\xff"}', 422),
        (b'\xef\xbb\xbf{"a": 1}', 422),
        (b'{"a": 1} {"b": 2}', 422),
        (b'{"at": 1, "at": 2}', 200),
        (b'{"at": "\\u0000"}', 200),
        ('{"at": "‮שלום"}'.encode(), 200),
        (b"", 200),
        (b"  ", 200),
    ],
)
async def test_arguments_get_a_clear_answer_and_the_session_goes_on(body: bytes, status: int) -> None:
    async with bench() as b:
        rollout = await b.seeded()
        answer = await rollout.post("/look", body)
        assert answer.status_code == status
        if status == 422:
            assert answer.text.startswith("error: the arguments: ")
            assert b.stub.calls == []
        assert (await rollout.verify()).json()["reward"] == 0.75


async def test_of_a_key_given_twice_the_last_counts() -> None:
    async with bench() as b:
        rollout = await b.seeded()
        assert json.loads((await rollout.post("/look", b'{"at": 1, "at": 2}')).text) == {"saw": {"at": 2}}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "object"),
        (b"[]", "object"),
        (b"{}", "response: missing"),
        (b'{"response":null}', "response: must be an object"),
        (b'{"response":{}', "','"),
        (b'{"response":{}} x', "more text"),
        (b'{"response":{},}', "name"),
        (b'{"response":' + b"[" * 100000 + b"}", "nested"),
        (b"\xff", "UTF-8"),
    ],
)
async def test_a_wrong_verify_request_is_refused_and_the_session_goes_on(body: bytes, said: str) -> None:
    async with bench() as b:
        rollout = await b.seeded()
        answer = await rollout.post("/verify", body)
        assert answer.status_code == 422
        assert said in answer.json()["detail"]
        assert (await rollout.verify()).json()["reward"] == 0.75


async def test_a_body_past_the_limit_is_refused_by_name() -> None:
    async def trickle() -> Any:
        for _ in range(3):
            yield b"x" * 1000

    async with bench(max_body=2000) as b:
        for content in (b"x" * 2001, trickle()):
            answer = await b.http.post("/look", content=content)
            assert answer.status_code == 413
            assert "--max-body" in answer.json()["detail"]


@pytest.mark.parametrize("tool", ["a.b", "mcp", "health", "65" * 33, "naïve", "a/b", "__proto__", "a b"])
async def test_any_name_can_be_a_tool_of_the_env(tool: str) -> None:
    tools = [{"name": tool, "description": "", "input_schema": {"type": "object"}}]
    async with bench(StubOpenEnv(Knobs(tools=tools))) as b:
        rollout = await b.seeded()
        answer = await rollout.call(tool)
        assert answer.status_code == 200, answer.text
        assert b.stub.calls == [(tool, {})]


async def test_two_scores_and_what_is_asked_for_stand_at_the_top() -> None:
    scores = {"a": 0.5, "b": 1.0}
    for asked, shown in (
        (None, {"score/a": 0.5, "score/b": 1.0}),
        (frozenset[str](), {}),
        (frozenset({"timings"}), {"deploy_s": 0.5, "verify_s": 0.25}),
    ):
        async with bench(StubOpenEnv(Knobs(scores=scores)), metrics=asked) as b:
            answer = (await (await b.seeded()).verify()).json()
            answer.pop("wait_s", None)
            assert {key: value for key, value in answer.items() if isinstance(value, float)} == shown | {"reward": 0.75}
            assert answer["episode"]["scores"] == scores


async def test_tools_that_differ_from_the_rows_are_told_once_and_with_the_verdict(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shown = [{"type": "function", "name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}]
    async with bench() as b:
        with caplog.at_level(logging.WARNING):
            for _ in range(2):
                rollout = b.rollout()
                await rollout.seed(row() | {"responses_create_params": {"input": "x", "tools": shown}})
                assert (await rollout.verify()).json()["episode"]["tools_changed"] is True
        assert caplog.text.count("other tools or schemas") == 1


async def test_another_bundle_than_the_rows_were_written_for_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    async with bench(folder={"bundle_digest": "e" * 64}) as b:
        with caplog.at_level(logging.WARNING):
            await b.seeded()
            await b.seeded()
        assert caplog.text.count("another state of the bundle") == 1


# several turns


async def test_end_turn_hands_out_each_prompt_and_verify_ends_the_last_turn() -> None:
    async with bench(StubOpenEnv(Knobs(prompts=("One.", "Two.", "Three.")))) as b:
        rollout = await b.seeded()
        assert (await rollout.call("end_turn", {"response": "first"})).text == "Two."
        assert (await rollout.call("end_turn", {"response": "second"})).text == "Three."
        last = await rollout.call("end_turn", {"response": "third"})
        assert "no further prompt" in last.text
        answer = (await rollout.verify("the end")).json()
        assert b.stub.replies == ["first", "second", "the end"]
        assert (answer["reward"], answer["episode"]["turns_played"]) == (0.75, 3)


async def test_turns_left_open_at_verify_end_with_an_empty_reply_unmasked() -> None:
    async with bench(StubOpenEnv(Knobs(prompts=("One.", "Two.", "Three.")))) as b:
        rollout = await b.seeded()
        call = {"type": "function_call", "name": "end_turn", "call_id": "c", "arguments": "{}"}
        await rollout.call("end_turn", {"response": "first"})
        answer = await rollout.verify(response=response(message("before"), call))
        assert b.stub.replies == ["first", "", ""]
        assert (answer.json()["reward"], answer.json()["mask_sample"]) == (0.75, False)


async def test_end_turn_of_a_single_turn_says_to_reply() -> None:
    async with bench() as b:
        rollout = await b.seeded()
        assert "Reply without a tool call" in (await rollout.call("end_turn", {"response": "x"})).text
        assert (await rollout.call("end_turn", {"response": 3})).status_code == 422
        assert b.stub.replies == []
