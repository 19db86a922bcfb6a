from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from stubs.quick_server import quick

from agent_env.commands import chat
from agent_env.commands.chat import ChatModel, EndpointRefuses, ModelFailed
from agent_env.errors import ConfigError

pytestmark = pytest.mark.anyio

TOOL = {"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}, "strict": False}


class Endpoint:
    """Answers in turn, the last for ever."""

    def __init__(self, *answers: Response | Callable[[], Any]) -> None:
        self.answers = list(answers)
        self.requests: list[tuple[dict[str, str], dict[str, Any]]] = []

    async def answer(self, request: Request) -> Response:
        self.requests.append((dict(request.headers), json.loads(await request.body())))
        found = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        return found if isinstance(found, Response) else await found()


@asynccontextmanager
async def model(endpoint: Endpoint, **more: Any) -> AsyncIterator[ChatModel]:
    async with quick(Starlette(routes=[Route("/v1/chat/completions", endpoint.answer, methods=["POST"])])) as url:
        made = ChatModel("m", f"{url}/v1/", **more)
        try:
            yield made
        finally:
            await made.aclose()


def message(**fields: Any) -> Response:
    return JSONResponse({"choices": [{"message": {"role": "assistant", **fields}}]})


@pytest.fixture(autouse=True)
def quick_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat, "LONGEST_PAUSE", 0.01)


async def test_a_request_has_the_model_its_fields_the_tools_and_the_key() -> None:
    endpoint = Endpoint(message(content="Hello."))
    async with model(endpoint, key="k", arguments={"temperature": 0.5}) as chat_model:
        reply = await chat_model.reply([{"role": "user", "content": "half \ud800"}], [TOOL])
    assert (reply.text, reply.calls) == ("Hello.", ())
    headers, body = endpoint.requests[0]
    assert headers["authorization"] == "Bearer k"
    assert (body["model"], body["temperature"]) == ("m", 0.5)
    function = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    assert body["tools"] == [{"type": "function", "function": function}]


async def test_without_key_or_tools_neither_is_sent() -> None:
    endpoint = Endpoint(message(content=None))
    async with model(endpoint) as chat_model:
        assert (await chat_model.reply([], [])).text == ""
    assert "authorization" not in endpoint.requests[0][0]
    assert "tools" not in endpoint.requests[0][1]


async def test_tool_calls_keep_their_raw_arguments() -> None:
    calls = [
        {"id": "1", "function": {"name": "add", "arguments": '{"a": '}},
        {"function": {"name": "sub", "arguments": {"b": 2}}},
        {"id": None, "function": {"name": "none", "arguments": None}},
    ]
    async with model(Endpoint(message(content=[{"type": "text", "text": "So:"}], tool_calls=calls))) as chat_model:
        reply = await chat_model.reply([], [])
    assert reply.text == "So:"
    assert [(c.name, c.arguments, c.id) for c in reply.calls] == [
        ("add", '{"a": ', "1"),
        ("sub", '{"b": 2}', ""),
        ("none", "{}", ""),
    ]


async def test_what_may_pass_is_tried_again() -> None:
    busy = JSONResponse({"error": "busy"}, 429, headers={"Retry-After": "0.001"})
    endpoint = Endpoint(busy, PlainTextResponse("down", 503), message(content="at last"))
    async with model(endpoint) as chat_model:
        assert (await chat_model.reply([], [])).text == "at last"
    assert len(endpoint.requests) == 3


async def test_tries_come_to_an_end() -> None:
    endpoint = Endpoint(PlainTextResponse("out of\nmemory", 500))
    async with model(endpoint) as chat_model:
        with pytest.raises(ModelFailed, match="HTTP 500: out of memory"):
            await chat_model.reply([], [])
    assert len(endpoint.requests) == chat.TRIES


@pytest.mark.parametrize("status", [401, 403, 404])
async def test_a_wrong_key_or_model_ends_all_when_nothing_was_answered_yet(status: int) -> None:
    endpoint = Endpoint(JSONResponse({"error": {"message": "no such thing"}}, status))
    async with model(endpoint) as chat_model:
        with pytest.raises(EndpointRefuses, match=rf"HTTP {status}: no such thing: check --model"):
            await chat_model.reply([], [])
    assert len(endpoint.requests) == 1


async def test_the_same_later_fails_one_request_only() -> None:
    async with model(Endpoint(message(content="x"), PlainTextResponse("", 404))) as chat_model:
        await chat_model.reply([], [])
        with pytest.raises(ModelFailed):
            await chat_model.reply([], [])


async def test_nobody_at_the_url_is_said() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        chat_model = ChatModel("m", f"http://127.0.0.1:{sock.getsockname()[1]}/v1")
        with pytest.raises(EndpointRefuses, match="check --base-url"):
            await chat_model.reply([], [])
        await chat_model.aclose()


async def test_an_answer_that_does_not_come_names_its_flag() -> None:
    async def never() -> Response:
        await asyncio.sleep(1)
        return PlainTextResponse("")

    async with model(Endpoint(never), timeout=0.05) as chat_model:
        with pytest.raises(ModelFailed, match=r"no answer within 0.05 s \(--request-timeout\)"):
            await chat_model.reply([], [])


@pytest.mark.parametrize(
    "answer",
    [
        PlainTextResponse("<html>"),
        JSONResponse([]),
        JSONResponse({}),
        JSONResponse({"choices": []}),
        JSONResponse({"choices": [{"message": None}]}),
        message(tool_calls=[{"function": None}]),
        message(tool_calls=[{}]),
    ],
)
async def test_an_answer_that_is_none_fails_the_request(answer: Response) -> None:
    async with model(Endpoint(answer)) as chat_model:
        with pytest.raises(ModelFailed):
            await chat_model.reply([], [])


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x/v1", "http://", "http://[::1"])
def test_a_base_url_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="--base-url"):
        ChatModel("m", url)
