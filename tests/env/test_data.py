from __future__ import annotations

import asyncio
from typing import Any

import pytest
from stubs.raw_env import Request, http, raw_env

from agent_env.env.card import Card, Extension
from agent_env.env.data import call_extension, data_add, data_get, data_reset
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.base import SandboxState

pytestmark = pytest.mark.anyio

LOAD = Card(name="x", extensions={"urn:load": Extension("urn:load", "POST", "/agentenv/ext/load")})
PEEK = Card(name="x", extensions={"urn:peek": Extension("urn:peek", "GET", "/agentenv/ext/peek?v=1")})


async def test_requests_are_the_ones_that_the_original_sends() -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> bytes:
        return http({"jsonrpc": "2.0", "id": 1, "result": {"parts": []}})

    async with raw_env(answer) as (env, client):
        await data_reset(client, card=LOAD)
        await data_add(client, [{"kind": "text", "text": "hello"}], card=LOAD)
        await data_get(client, card=LOAD)
        await data_get(client, write_namespace="w")
    assert [request.json for request in env.requests] == [
        {"jsonrpc": "2.0", "id": 1, "method": "data/reset", "params": {}},
        {"jsonrpc": "2.0", "id": 1, "method": "data/add", "params": {"parts": [{"kind": "text", "text": "hello"}]}},
        {"jsonrpc": "2.0", "id": 1, "method": "data/get", "params": {}},
        {"jsonrpc": "2.0", "id": 1, "method": "data/get", "params": {"write_namespace": "w"}},
    ]
    assert {(r.method, r.path, r.headers["accept"]) for r in env.requests} == {("POST", "/agentenv", "*/*")}


@pytest.mark.parametrize(
    ("body", "kind", "said"),
    [
        (
            {"id": 1, "error": {"code": -32000, "message": "boom", "data": {"code": "get_failed"}}},
            FailureKind.LOAD_FAILED,
            "boom.*get_failed",
        ),
        ({"id": 1, "error": {"code": -32601, "message": "method not found"}}, FailureKind.LOAD_FAILED, "not serve"),
        ({"id": 1, "error": "odd"}, FailureKind.LOAD_FAILED, "odd"),
        ({"id": 1}, FailureKind.ENV_PROTOCOL_ERROR, "no JSON-RPC answer"),
        ({"id": 1, "result": {}}, FailureKind.ENV_PROTOCOL_ERROR, "no parts"),
    ],
)
async def test_errors_of_the_data_plane_are_told_apart(body: dict[str, Any], kind: FailureKind, said: str) -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> bytes:
        return http(body)

    async with raw_env(answer) as (_, client):
        with pytest.raises(EpisodeFailure, match=said) as raised:
            await data_get(client)
    assert raised.value.kind is kind


@pytest.mark.parametrize("answered", [http("oops", "500 Internal Server Error"), http("<html>"), b"garbage\r\n\r\n"])
async def test_what_is_no_json_rpc_is_a_protocol_error(answered: bytes) -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> bytes:
        return answered

    async with raw_env(answer) as (_, client):
        with pytest.raises(EpisodeFailure) as raised:
            await data_get(client, timeout=2)
    assert raised.value.kind is FailureKind.ENV_PROTOCOL_ERROR


async def test_a_method_that_the_card_does_not_serve_is_not_asked_for() -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> bytes:
        return http({})

    async with raw_env(answer) as (env, client):
        with pytest.raises(EpisodeFailure, match=r"data/add.*not served") as raised:
            await data_add(client, [], card=Card(name="x", operations=("data/get",)))
    assert raised.value.kind is FailureKind.LOAD_FAILED
    assert not env.requests


async def test_arguments_are_the_body_of_a_post_and_the_query_of_a_get() -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> bytes:
        return http({"ok": True})

    async with raw_env(answer) as (env, client):
        assert await call_extension(client, LOAD, "urn:load", {"day": "ü", "n": [1]}) == {"ok": True}
        await call_extension(client, PEEK, "urn:peek", {"hour": 3, "q": "a b&c"})
    assert env.requests[0].json == {"day": "ü", "n": [1]}
    assert (env.requests[1].method, env.requests[1].path) == ("GET", "/agentenv/ext/peek?v=1&hour=3&q=a+b%26c")


def refusal(**error: Any) -> bytes:
    return http({"ok": False, "error": {"code": "busy", "message": "come back", **error}}, "409 Conflict")


async def test_a_call_is_repeated_only_when_the_env_did_nothing_and_says_that_it_may_be() -> None:
    answers: list[bytes] = []

    async def answer(request: Request, writer: asyncio.StreamWriter) -> bytes:
        return answers.pop(0)

    async with raw_env(answer) as (_, client):
        answers[:] = [refusal(retryable=True, applied="no"), refusal(retryable=True, applied="no"), http({"done": 1})]
        assert await call_extension(client, LOAD, "urn:load", {}) == {"done": 1}
        for error in ({"retryable": True, "applied": "unknown"}, {"retryable": False, "applied": "no"}, {}):
            answers[:] = [refusal(**error), http({"done": 1})]
            with pytest.raises(EpisodeFailure, match="busy: come back"):
                await call_extension(client, LOAD, "urn:load", {})
            assert len(answers) == 1


@pytest.mark.parametrize("page", [http("Not Found", "404 Not Found"), http("<html>502", "502 Bad Gateway")])
async def test_an_error_without_an_error_object_is_quoted(page: bytes) -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> bytes:
        return page

    async with raw_env(answer) as (_, client):
        with pytest.raises(EpisodeFailure, match=r"urn:load: HTTP (404 Not Found|502 <html>502)") as raised:
            await call_extension(client, LOAD, "urn:load", {})
    assert raised.value.kind is FailureKind.LOAD_FAILED


async def test_a_slow_env_is_a_load_timeout_that_names_the_limit() -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> bytes:
        await asyncio.sleep(10)
        return http({})

    async with raw_env(answer) as (_, client):
        for call in (data_get(client, timeout=0.05), call_extension(client, LOAD, "urn:load", {}, timeout=0.05)):
            with pytest.raises(EpisodeFailure, match=r"0\.05 s") as raised:
                await call
            assert raised.value.kind is FailureKind.LOAD_TIMEOUT


async def test_an_env_that_dies_meanwhile_is_a_crash_and_one_that_lives_is_unreachable() -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        env.state_now = SandboxState(running=request.path == "/agentenv", exit_code=7)

    async with raw_env(answer) as (env, client):
        with pytest.raises(EpisodeFailure, match="exit code 7") as crashed:
            await call_extension(client, LOAD, "urn:load", {})
        with pytest.raises(EpisodeFailure, match="without an answer") as unreachable:
            await data_add(client, [])
    assert crashed.value.kind is FailureKind.ENV_CRASHED
    assert unreachable.value.kind is FailureKind.ENV_UNREACHABLE
