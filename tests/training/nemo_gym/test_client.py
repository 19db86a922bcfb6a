from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from stubs.stub_resources import StubResources
from stubs.stub_taskapi import served

from agent_env.errors import ConfigError
from agent_env.training.nemo_gym.client import Rollout, RolloutClient, RolloutResult
from agent_env.training.nemo_gym.rows import Row
from agent_env.training.nemo_gym.transport import Answer, TransportError, cookie_header

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "name": "submit", "description": "", "parameters": {"type": "object"}, "strict": False}


def row(**params: Any) -> Row:
    data = {
        "responses_create_params": {"input": [{"role": "user", "content": "Go."}], "tools": [TOOL]} | params,
        "split": "eval",
        "index": 3,
        "task_id": "eval-0003",
        "mine": "naïve",
    }
    return Row(3, data, orjson.dumps(data))


async def answer_half(play: Rollout) -> None:
    await play.call("submit", {"answer": 0.5})
    play.say("done")


async def played(
    stub: StubResources, policy: Any = answer_half, data: Row | None = None, **options: Any
) -> RolloutResult:
    with served(stub.app()) as url:
        client = RolloutClient(url, **options)
        try:
            return await client.play(data or row(), policy, name="p")
        finally:
            await client.aclose()


async def test_a_rollout_is_seed_then_calls_then_verify_with_the_seeds_cookie_alone() -> None:
    stub = StubResources()
    result = await played(stub)
    assert [(path, cookie) for path, cookie, _ in stub.seen] == [
        ("/seed_session", None),
        ("/submit", "session=s1"),
        ("/verify", "session=s1"),
    ]
    assert stub.seen[0][2] == row().data
    assert (result.reward, result.measured, result.error, result.calls) == (0.5, True, None, 1)
    assert (result.policy, result.row, result.split, result.index) == ("p", "eval-0003", "eval", 3)
    assert result.scores == {"grade": 0.5}
    assert set(result.seconds) == {"seed", "first_call", "calls", "verify", "total"}


async def test_verify_gets_the_row_and_a_response_shaped_as_verifiers_makes_it() -> None:
    stub = StubResources()
    await played(stub)
    body = stub.seen[-1][2]
    response = body.pop("response")
    assert body == row().data
    call, output, message = response["output"]
    assert call == {
        "type": "function_call",
        "call_id": call["call_id"],
        "name": "submit",
        "arguments": '{"answer": 0.5}',
    }
    assert output == {"type": "function_call_output", "call_id": call["call_id"], "output": "called submit"}
    assert (message["role"], message["content"][0]["text"]) == ("assistant", "done")
    assert response["id"].startswith("resp_")
    assert {key: response[key] for key in ("model", "object", "parallel_tool_calls", "tool_choice", "status")} == {
        "model": "verifiers",
        "object": "response",
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "status": "completed",
    }
    assert response["tools"] == [TOOL]
    assert isinstance(response["created_at"], float)
    assert "usage" not in response


async def test_each_request_has_a_connection_of_its_own_unless_pooled() -> None:
    fresh, pooled = StubResources(), StubResources()
    await played(fresh)
    await played(pooled, pooled=True)
    assert (len(fresh.connections), len(pooled.connections)) == (3, 1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"answer":', "error: invalid JSON in tool arguments ("),
        ("[1]", "error: tool arguments must be a JSON object, got list; resend as an object"),
        ("null", "error: tool arguments must be a JSON object, got NoneType; resend as an object"),
        ('{"answer": NaN}', "error: invalid JSON in tool arguments ("),
        ("[" * 100_000, "error: invalid JSON in tool arguments ("),
    ],
)
async def test_arguments_that_are_no_object_never_reach_the_server(arguments: str, text: str) -> None:
    stub, texts = StubResources(), []

    async def policy(play: Rollout) -> None:
        texts.append(await play.call("submit", arguments))

    result = await played(stub, policy)
    assert texts[0].startswith(text)
    assert [path for path, _, _ in stub.seen] == ["/seed_session", "/verify"]
    assert (result.reward, result.calls) == (0.0, 0)
    assert stub.seen[-1][2]["response"]["output"][0]["arguments"] == arguments


async def test_an_unknown_tool_is_answered_by_the_client() -> None:
    stub, texts = StubResources(), []

    async def policy(play: Rollout) -> None:
        texts.append(await play.call("sell", {}))

    assert (await played(stub, policy)).measured
    assert texts == ["error: unknown tool 'sell'"]
    assert len(stub.seen) == 2


async def test_an_empty_argument_text_is_posted_as_an_empty_object() -> None:
    stub = StubResources()

    async def policy(play: Rollout) -> None:
        await play.call("submit", "")

    await played(stub, policy)
    assert stub.seen[1][2] == {}


@pytest.mark.parametrize("status", [200, 404, 422, 500])
async def test_a_tools_text_is_the_body_whatever_the_status(status: int) -> None:
    texts = []

    async def tool(request: Request) -> Response:
        return JSONResponse("zurück", status)

    async def policy(play: Rollout) -> None:
        texts.append(await play.call("submit", {}))

    assert (await played(StubResources(tool=tool), policy)).measured
    assert texts == ['"zurück"']


async def test_a_charset_in_the_content_type_is_honoured() -> None:
    texts = []

    async def tool(request: Request) -> Response:
        return PlainTextResponse("é".encode("latin-1"), media_type="text/plain; charset=iso-8859-1")

    async def policy(play: Rollout) -> None:
        texts.append(await play.call("submit", {}))

    await played(StubResources(tool=tool), policy)
    assert texts == ["é"]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", ""),
        (b"\xff\xfe", "\ufffd\ufffd"),
        (b"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m"),
        (b"x" * 10 * 1024 * 1024, "x" * 10 * 1024 * 1024),
    ],
    ids=["empty", "not UTF-8", "ANSI", "10 MiB"],
)
async def test_any_output_reaches_the_model_as_text(body: bytes, text: str) -> None:
    texts = []

    async def tool(request: Request) -> Response:
        return Response(body, media_type="text/plain")

    async def policy(play: Rollout) -> None:
        texts.append(await play.call("submit", {}))

    assert (await played(StubResources(tool=tool), policy)).measured
    assert texts == [text]


async def test_a_cookie_of_five_kilobytes_is_sent_back_whole() -> None:
    value = "v" * 5000

    async def seed(request: Request) -> Response:
        return JSONResponse({}, headers={"set-cookie": f"big={value}; Path=/"})

    stub = StubResources(seed=seed)
    assert (await played(stub, data=row(tools=[]))).measured
    assert stub.seen[-1][1] == f"big={value}"


async def test_calls_of_one_rollout_go_one_at_a_time_in_order() -> None:
    running = most = 0

    async def tool(request: Request) -> Response:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.01)
        running -= 1
        return PlainTextResponse(str((await request.json())["n"]))

    async def policy(play: Rollout) -> None:
        assert await asyncio.gather(*(play.call("submit", {"n": n}) for n in range(5))) == list("01234")

    result = await played(StubResources(tool=tool), policy)
    assert (most, result.calls, result.error) == (1, 5, None)


async def test_the_turn_cap_ends_the_policy_and_the_rollout_is_verified() -> None:
    stub = StubResources()

    async def policy(play: Rollout) -> None:
        while True:
            await play.call("submit", {"answer": 0.25})

    result = await played(stub, policy, max_turns=3)
    assert (result.reward, result.calls) == (0.25, 3)
    assert [item["type"] for item in stub.seen[-1][2]["response"]["output"]][-1] == "function_call"


async def test_a_silent_tool_is_an_empty_text_and_the_rollout_goes_on() -> None:
    texts = []

    async def tool(request: Request) -> Response:
        await asyncio.sleep(1)
        return PlainTextResponse("late")

    async def policy(play: Rollout) -> None:
        texts.append(await play.call("submit", {}))

    result = await played(StubResources(tool=tool), policy, request_timeout=0.2)
    assert (texts, result.measured) == ([""], True)


async def test_an_answer_that_keeps_sending_outlives_the_time_limit() -> None:
    async def verify(request: Request) -> Response:
        async def slowly() -> AsyncIterator[bytes]:
            for _ in range(4):
                await asyncio.sleep(0.15)
                yield b" "
            yield b'{"reward": 1, "response": {}, "responses_create_params": {}}'

        return StreamingResponse(slowly(), media_type="application/json")

    result = await played(StubResources(verify=verify), request_timeout=0.4)
    assert (result.reward, result.error) == (1.0, None)
    assert result.seconds["verify"] > 0.5


def _verify_with(content: Any, status: int = 200) -> Any:
    async def verify(request: Request) -> Response:
        return Response(content, status) if isinstance(content, str | bytes) else JSONResponse(content, status)

    return verify


@pytest.mark.parametrize(
    ("verify", "error"),
    [
        (_verify_with({"detail": "env_crashed: gone"}, 503), "verify: HTTP 503: env_crashed: gone"),
        (_verify_with("oops", 500), "verify: HTTP 500: oops"),
        (_verify_with({"reward": 1, "response": {}}), "verify: the answer has no 'responses_create_params'"),
        (_verify_with({"response": {}, "responses_create_params": {}}), "verify: the answer has no 'reward'"),
        (
            _verify_with({"reward": None, "response": {}, "responses_create_params": {}}),
            "verify: the reward is None, not a number",
        ),
        (_verify_with("nope"), "verify: the answer is not JSON"),
        (_verify_with([]), "verify: the answer is not a JSON object: []"),
        (
            _verify_with('{"reward": NaN, "response": {}, "responses_create_params": {}}'),
            "verify: the answer is not JSON",
        ),
    ],
)
async def test_a_verify_without_a_usable_answer_fails_the_rollout(verify: Any, error: str) -> None:
    result = await played(StubResources(verify=verify))
    assert result.error is not None
    assert result.error.startswith(error)
    assert (result.reward, result.masked, result.measured) == (None, False, False)


async def test_a_masked_rollout_keeps_its_kind_and_reason() -> None:
    stub = StubResources(
        extra={
            "reward": 0.0,
            "mask_sample": True,
            "failure_kind": "agent_env:env_crashed",
            "failure_reason": "exit code 3",
            "episode": {"kind": "env_crashed", "scores": {}},
        }
    )
    result = await played(stub)
    assert (result.masked, result.measured, result.error) == (True, False, None)
    assert (result.kind, result.reason, result.reward) == ("env_crashed", "exit code 3", 0.0)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (JSONResponse({"detail": "capacity: waited 600 s"}, 503), "seed: HTTP 503: capacity: waited 600 s"),
        (JSONResponse({"detail": "task_id 'a' is not 'b'"}, 409), "seed: HTTP 409: task_id 'a' is not 'b'"),
        (PlainTextResponse("hello"), "seed: the answer is not JSON"),
        (JSONResponse(None), "seed: the answer is not a JSON object"),
        (JSONResponse({"mcp": {"url_path": "/mcp"}}), "seed: the server offers its tools over MCP"),
        (Response(status_code=307, headers={"location": "/x/"}), "seed: HTTP 307"),
    ],
)
async def test_a_failed_seed_ends_the_rollout_without_a_verify(answer: Response, error: str) -> None:
    async def seed(request: Request) -> Response:
        return answer

    stub = StubResources(seed=seed)
    result = await played(stub)
    assert result.error is not None
    assert result.error.startswith(error)
    assert len(stub.seen) == 1


async def test_a_policy_that_raises_fails_its_rollout_without_a_verify() -> None:
    stub = StubResources()

    async def policy(play: Rollout) -> None:
        raise KeyError("prices")

    result = await played(stub, policy)
    assert result.error == "policy: KeyError: 'prices'"
    assert [path for path, _, _ in stub.seen] == ["/seed_session"]


async def test_a_server_without_a_cookie_is_played_without_one() -> None:
    async def seed(request: Request) -> Response:
        return JSONResponse({})

    stub = StubResources(seed=seed)
    assert (await played(stub, data=row(tools=[]))).measured
    assert [cookie for _, cookie, _ in stub.seen] == [None, None]


async def test_random_numbers_depend_on_seed_row_and_repeat_alone() -> None:
    drawn: list[float] = []

    async def policy(play: Rollout) -> None:
        drawn.append(play.rng.random())

    with served(StubResources().app()) as url:
        for seed, repeat in ((1, 0), (1, 0), (1, 1), (2, 0)):
            await RolloutClient(url, seed=seed).play(row(), policy, repeat=repeat)
    assert drawn[0] == drawn[1]
    assert len(set(drawn)) == 3


async def test_a_lone_surrogate_in_a_policys_text_does_not_end_the_client() -> None:
    async def policy(play: Rollout) -> None:
        play.say("\ud800")

    assert (await played(StubResources(extra={"response": None}), policy)).measured


@asynccontextmanager
async def raw_server(answer: bytes) -> AsyncIterator[str]:
    """Answers each connection with these bytes and closes it."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{", b"not http at all\r\n\r\n"])
async def test_a_connection_that_is_cut_fails_the_rollout(answer: bytes) -> None:
    async with raw_server(answer) as url:
        result = await RolloutClient(url).play(row(), answer_half)
    assert result.error is not None
    assert result.error.startswith("seed: the connection was lost")


async def test_a_tool_whose_connection_is_cut_reads_as_verifiers_says_it() -> None:
    async with raw_server(b"") as url:
        play = Rollout(RolloutClient(url)._http, row(), None, None, None)  # type: ignore[arg-type]
        assert await play.call("submit", {}) == "Server disconnected without sending a response."


async def test_a_server_that_is_down_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with pytest.raises(TransportError, match=f"no server answers at {url}"):
        await RolloutClient(url).check()
    result = await RolloutClient(url).play(row(), answer_half)
    assert result.error is not None
    assert result.error.startswith("seed: ")


@pytest.mark.parametrize("url", ["127.0.0.1:9100", "ftp://x", "http://", "http://x:port"])
def test_a_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not a server's URL"):
        RolloutClient(url)


def test_cookies_are_sent_as_name_and_value_alone() -> None:
    headers = (
        ("set-cookie", "a=1; Path=/verify; Secure; HttpOnly"),
        ("set-cookie", 'b="x=y"; Max-Age=60'),
        ("set-cookie", "gone=1; Max-Age=0"),
        ("set-cookie", "a=2; Path=/verify"),
    )
    assert cookie_header(Answer(200, headers, b"")) == 'a=2; b="x=y"'
    assert cookie_header(Answer(200, (), b"")) is None


def test_one_cookie_name_for_two_paths_is_refused() -> None:
    headers = (("set-cookie", "a=1; Path=/x"), ("set-cookie", "a=2; Path=/y"))
    with pytest.raises(ValueError, match="set twice"):
        cookie_header(Answer(200, headers, b""))


def test_the_prompt_is_the_users_text() -> None:
    parts = [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]
    items = [{"role": "system", "content": "s"}, {"role": "user", "content": parts}, {"role": "user", "content": "c"}]
    assert row(input=items).prompt == "ab\n\nc"
    assert row(input="plain").prompt == "plain"
    assert json.loads(row().body) == row().data
