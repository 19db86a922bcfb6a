from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from stubs.raw_env import Request, http, raw_env

from agent_env.env.card import NotReady, read_card, wait_ready
from agent_env.env.http import Response
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.base import SandboxState

RECORDED: dict[str, Any] = {
    "name": "gridsim",
    "protocolVersion": "1.0",
    "url": "/agentenv",
    "preferredTransport": "JSONRPC",
    "additionalInterfaces": [{"url": "/mcp", "transport": "mcp"}],
    "capabilities": {
        "extensions": [
            {
                "uri": "urn:gridsim:load-day/v1",
                "params": {"endpoint": "/agentenv/ext/load_day", "methods": {"load_day": {"method": "POST"}}},
                "required": None,
            },
            {
                "uri": "urn:gridsim:clock/v1",
                "params": {
                    "methods": {
                        "read": {"method": "GET", "endpoint": "/agentenv/ext/gridsim/clock/read"},
                        "set": {"method": "POST", "endpoint": "/agentenv/ext/gridsim/clock/set"},
                    }
                },
            },
        ],
        "operations": ["data/reset", "data/get"],
    },
    "children_environments": None,
}


def card_of(value: Any) -> Any:
    import json

    return read_card(Response(200, {"content-type": "application/json"}, json.dumps(value).encode()))


def test_a_recorded_card_is_read() -> None:
    card = card_of(RECORDED)
    assert (card.name, card.mcp_path, card.data_path) == ("gridsim", "/mcp", "/agentenv")
    assert card.operations == ("data/reset", "data/get")
    load, clock = card.extensions["urn:gridsim:load-day/v1"], card.extensions["urn:gridsim:clock/v1"]
    assert (load.verb, load.path) == ("POST", "/agentenv/ext/load_day")
    assert (clock.verb, clock.path) == ("GET", "/agentenv/ext/gridsim/clock/read")


def test_a_card_may_hold_only_a_name() -> None:
    card = card_of({"name": "tiny"})
    assert (card.mcp_path, card.data_path, card.operations, card.extensions) == ("/mcp", "/agentenv", None, {})


@pytest.mark.parametrize(
    ("interfaces", "path"),
    [
        ([], "/mcp"),
        (None, "/mcp"),
        ([{"transport": "grpc", "url": "/x"}, {"transport": "mcp", "url": "/tools/mcp"}], "/tools/mcp"),
        ([{"transport": "mcp", "url": "http://0.0.0.0:18765/deep/mcp?x=1"}], "/deep/mcp?x=1"),
        ([{"transport": "mcp", "url": "mcp2"}], "/mcp2"),
        ([3, {"transport": "mcp"}, {"transport": "mcp", "url": None}], "/mcp"),
    ],
)
def test_the_mcp_endpoint_is_where_the_card_says(interfaces: Any, path: str) -> None:
    assert card_of({"name": "x", "additionalInterfaces": interfaces}).mcp_path == path


@pytest.mark.parametrize("extensions", [None, 3, [3], [{"uri": 3}], [{"uri": "u", "params": 3}], [{"params": {}}]])
def test_broken_extensions_are_passed_over(extensions: Any) -> None:
    assert card_of({"name": "x", "capabilities": {"extensions": extensions}}).extensions == {}


@pytest.mark.parametrize("value", [[], "x", None, {}, {"name": ""}, {"name": 3}])
def test_what_has_no_name_is_no_card(value: Any) -> None:
    with pytest.raises(NotReady):
        card_of(value)


@pytest.mark.anyio
async def test_refusals_resets_errors_and_garbage_all_mean_not_ready_yet() -> None:
    answers: list[bytes | None] = [
        None,
        b"",
        http("Not Found", "404 Not Found"),
        http("starting", "503 Service Unavailable"),
        http("<html>", content_type="text/html"),
        b"garbage\r\n\r\n",
        http({"nam": "x"}),
        http({"name": "x"}),
    ]

    async def answer(request: Request, writer: asyncio.StreamWriter) -> bytes | None:
        return answers.pop(0) or None

    async with raw_env(answer) as (env, _):
        card = await wait_ready(env, timeout=5, expected_name="x")  # type: ignore[arg-type]
    assert card.name == "x"
    assert not answers


@pytest.mark.anyio
async def test_the_deadlines_message_holds_the_last_reason_and_the_last_output() -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> bytes:
        return http("warming up", "503 Service Unavailable")

    async with raw_env(answer) as (env, _):
        env.log = "loading weights\nstill loading\n"
        with pytest.raises(EpisodeFailure) as raised:
            await wait_ready(env, timeout=0.2)  # type: ignore[arg-type]
    assert raised.value.kind is FailureKind.DEPLOY_TIMEOUT
    assert "0.2 s" in raised.value.reason
    assert "HTTP 503 warming up" in raised.value.reason
    assert "loading weights | still loading" in raised.value.reason


@pytest.mark.anyio
async def test_another_name_than_the_bundles_fails_the_deploy() -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> bytes:
        return http({"name": "other"})

    async with raw_env(answer) as (env, _):
        with pytest.raises(EpisodeFailure, match=r"'other'.*'mine'") as raised:
            await wait_ready(env, timeout=5, expected_name="mine")  # type: ignore[arg-type]
    assert raised.value.kind is FailureKind.DEPLOY_FAILED


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("state", "kind"),
    [
        (SandboxState(running=False, exit_code=3), FailureKind.ENV_CRASHED),
        (SandboxState(running=False, exit_code=0), FailureKind.ENV_CRASHED),
        (SandboxState(running=False, exit_code=139), FailureKind.ENV_CRASHED),
        (SandboxState(running=False, exit_code=137, oom_killed=True), FailureKind.PROVIDER_OOM_KILLED),
        (SandboxState(running=False, exit_code=137, lost=True), FailureKind.SANDBOX_LOST),
        (SandboxState(running=False, exit_code=143, stopped_by_us=True), FailureKind.SANDBOX_LOST),
        (SandboxState(running=False), FailureKind.SANDBOX_LOST),
    ],
)
async def test_a_death_during_the_start_is_noticed_at_once_and_named(state: SandboxState, kind: FailureKind) -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> None:
        env.state_now = state

    async with raw_env(answer) as (env, _):
        env.log = "Traceback\nValueError: no data"
        started = time.monotonic()
        with pytest.raises(EpisodeFailure) as raised:
            await wait_ready(env, timeout=30)  # type: ignore[arg-type]
    assert time.monotonic() - started < 1
    assert raised.value.kind is kind
    assert "ValueError: no data" in raised.value.reason
    if kind is FailureKind.ENV_CRASHED:
        assert f"exit code {state.exit_code}" in raised.value.reason
