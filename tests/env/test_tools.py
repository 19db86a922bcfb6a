from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from stubs.raw_env import Answer, RawEnv, Request, http, raw_env, sse

from agent_env.env import mcp
from agent_env.env.card import Card
from agent_env.env.tools import ToolResult, ToolSession
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.base import SandboxState

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

CARD = Card(name="x")
TOOLS = [{"name": "act", "description": "Acts.", "inputSchema": {"type": "object"}}]
Reply = Callable[[Request], "Answer"]


def result_of(request: Request, result: Any, **more: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": request.json["id"], "result": result, **more}


def event(message: Any) -> bytes:
    return b"event: message\r\ndata: " + json.dumps(message).encode() + b"\r\n\r\n"


def text(value: str) -> dict[str, Any]:
    return {"content": [{"type": "text", "text": value}]}


class Script:
    """An MCP server of which a test changes single answers, by method."""

    def __init__(self) -> None:
        self.replies: dict[str, Reply] = {
            "initialize": lambda r: http(
                result_of(r, {"protocolVersion": "2025-06-18", "capabilities": {}}), mcp_session_id="abc"
            ),
            "notifications/initialized": lambda r: http("", "202 Accepted", mcp_session_id="other"),
            "notifications/cancelled": lambda r: http("", "202 Accepted"),
            "tools/list": lambda r: http(result_of(r, {"tools": TOOLS})),
            "tools/call": lambda r: http(result_of(r, text("done"))),
            "DELETE": lambda r: http(""),
        }
        self.delay: dict[str, float] = {}
        self.env: RawEnv

    async def answer(self, request: Request, writer: asyncio.StreamWriter) -> Answer:
        method = request.json["method"] if request.method == "POST" else request.method
        await asyncio.sleep(self.delay.get(method, 0))
        return self.replies[method](request)

    def sent(self, method: str) -> list[Request]:
        return [r for r in self.env.requests if r.method == "POST" and r.json["method"] == method]

    @asynccontextmanager
    async def session(self, **options: Any) -> AsyncIterator[ToolSession]:
        async with raw_env(self.answer) as (env, client):
            self.env = env
            session = await ToolSession.open(client, CARD, **options)
            yield session
            await session.close()


async def test_every_request_carries_what_servers_ask_for() -> None:
    script = Script()
    async with script.session(role="auditor") as session:
        await session.call("act", {}, timeout=5)
    first, *rest = script.env.requests
    assert first.json["params"] == {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "agent-env", "version": "1"},
    }
    assert "mcp-session-id" not in first.headers
    for request in script.env.requests:
        assert request.headers["accept"] == "application/json, text/event-stream"
        assert request.headers["host"] == script.env.authority
        assert request.headers["agentenv-role"] == "auditor"
        assert "origin" not in request.headers
    assert {(r.headers["mcp-session-id"], r.headers["mcp-protocol-version"]) for r in rest} == {("abc", "2025-06-18")}
    ids = [r.json["id"] for r in script.env.requests if r.method == "POST" and "id" in r.json]
    assert len(ids) == len(set(ids)) == 3
    assert rest[-1].method == "DELETE"


async def test_without_a_session_id_none_is_sent_and_nothing_is_deleted() -> None:
    script = Script()
    script.replies["initialize"] = lambda r: http(result_of(r, {"protocolVersion": "2025-11-25"}))
    async with script.session(role="default") as session:
        await session.call("act", {}, timeout=5)
    assert all("mcp-session-id" not in r.headers and "agentenv-role" not in r.headers for r in script.env.requests)
    assert all(r.method == "POST" for r in script.env.requests)


async def test_a_server_that_insists_on_the_order_gets_it() -> None:
    script = Script()
    script.delay["notifications/initialized"] = 0.05
    lists = iter([True, False])

    def early(r: Request) -> bytes:
        if next(lists):
            return http({"jsonrpc": "2.0", "id": r.json["id"], "error": {"code": -32000, "message": "not initialized"}})
        return http(result_of(r, {"tools": TOOLS}))

    script.replies["tools/list"] = early
    async with script.session() as session:
        assert [tool.name for tool in session.tools] == ["act"]


async def test_a_server_that_is_slow_to_take_note_of_the_session_has_the_whole_time_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mcp, "NOTIFY_TIMEOUT", 0.01)
    script = Script()
    script.delay["notifications/initialized"] = 0.1
    async with script.session() as session:
        assert session.tools


async def test_pages_of_tools_are_put_together() -> None:
    script = Script()

    def page(r: Request) -> bytes:
        number = int(r.json["params"].get("cursor", "0"))
        tools = [{"name": f"t{number}", "inputSchema": {"type": "object", "x": number}}]
        return http(result_of(r, {"tools": tools, "nextCursor": str(number + 1) if number < 2 else ""}))

    script.replies["tools/list"] = page
    async with script.session() as session:
        assert [(t.name, t.input_schema["x"], t.description) for t in session.tools] == [
            ("t0", 0, ""),
            ("t1", 1, ""),
            ("t2", 2, ""),
        ]


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        ({"tools": []}, "no tools"),
        ({"tools": [*TOOLS, *TOOLS]}, "two tools are named 'act'"),
        ({"tools": [{"description": "x"}]}, "without a name"),
        ({"tools": "act"}, "no list"),
        ({}, "no list"),
    ],
)
async def test_a_list_of_tools_that_can_not_be_used_is_refused(listed: Any, said: str) -> None:
    script = Script()
    script.replies["tools/list"] = lambda r: http(result_of(r, listed))
    with pytest.raises(EpisodeFailure, match=said) as raised:
        async with script.session():
            pass
    assert raised.value.kind is FailureKind.ENV_PROTOCOL_ERROR


async def test_hidden_tools_are_marked_and_schemas_kept_as_given() -> None:
    script = Script()
    schema = {"type": "object", "required": None, "$ref": "#/x"}
    tools = [{"name": "a", "inputSchema": schema}, {"name": "b", "_meta": {"agentenv.io/hiddenByDefault": True}}]
    script.replies["tools/list"] = lambda r: http(result_of(r, {"tools": tools}))
    async with script.session() as session:
        a, b = session.tools
        assert (a.input_schema, a.hidden, b.hidden) == (schema, False, True)


async def test_the_answer_is_found_among_everything_else_in_the_stream() -> None:
    script = Script()

    def stream(r: Request) -> bytes:
        own = r.json["id"]
        return sse(
            b"id: 0\r\ndata: \r\n\r\n"
            + event({"method": "notifications/message", "params": {"data": "half way"}, "jsonrpc": "2.0"})
            + b": ping - 2026-11-30 16:05:39\r\n\r\n"
            + event({"jsonrpc": "2.0", "id": own + 1, "result": text("somebody else's")})
            + event({"jsonrpc": "2.0", "id": own, "method": "sampling/createMessage", "params": {}})
            + event({"jsonrpc": "2.0", "id": "server-error", "error": {"code": 1, "message": "not mine"}})
            + b"event: other\r\ndata: not json\r\n\r\n"
            + event(result_of(r, text("grüß dich"))).replace(b"\r\n", b"\n"),
            chunks=50,
        )

    script.replies["tools/call"] = stream
    async with script.session() as session:
        for _ in range(2):
            assert (await session.call("act", {}, timeout=5)).text == "grüß dich"
    assert len({r.connection for r in script.sent("tools/call")}) == 1


async def test_a_stream_that_stays_open_after_the_answer_delays_nobody() -> None:
    script = Script()
    script.replies["tools/call"] = lambda r: sse(event(result_of(r, text("done"))), end=False)
    async with script.session() as session:
        started = time.monotonic()
        for _ in range(3):
            assert (await session.call("act", {}, timeout=5)).text == "done"
        assert time.monotonic() - started < 1


async def test_pings_do_not_outlive_the_deadline_and_the_server_is_told() -> None:
    script = Script()

    async def pinging(request: Request, writer: asyncio.StreamWriter) -> Answer:
        if request.method == "POST" and request.json["method"] == "tools/call":
            writer.write(sse(b": ping\r\n\r\n", end=False))
            while True:
                await writer.drain()
                await asyncio.sleep(0.01)
                writer.write(b"a\r\n: ping\r\n\r\n\r\n")
        return await script.answer(request, writer)

    async with raw_env(pinging) as (env, client):
        script.env = env
        session = await ToolSession.open(client, CARD)
        with pytest.raises(EpisodeFailure, match=r"'act': no answer within 0\.2 s") as raised:
            await session.call("act", {}, timeout=0.2)
        assert raised.value.kind is FailureKind.TOOL_TIMEOUT
        async with asyncio.timeout(5):
            while not script.sent("notifications/cancelled"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        [cancelled] = script.sent("notifications/cancelled")
        assert cancelled.json["params"]["requestId"] == script.sent("tools/call")[0].json["id"]


async def test_a_caller_that_goes_away_cancels_the_call_at_the_server_too() -> None:
    script = Script()
    script.delay["tools/call"] = 10
    async with script.session() as session:
        call = asyncio.create_task(session.call("act", {}, timeout=30))
        await asyncio.sleep(0.05)
        call.cancel()
        await asyncio.wait({call})
        async with asyncio.timeout(5):
            while not script.sent("notifications/cancelled"):  # noqa: ASYNC110
                await asyncio.sleep(0.01)


async def test_a_stream_that_ends_before_the_answer_is_not_repeated() -> None:
    script = Script()
    script.replies["tools/call"] = lambda r: sse(b": ping\r\n\r\n")
    async with script.session() as session:
        with pytest.raises(EpisodeFailure, match="ended before the answer; the outcome is unknown") as raised:
            await session.call("act", {}, timeout=5)
    assert raised.value.kind is FailureKind.ENV_UNREACHABLE
    assert len(script.sent("tools/call")) == 1


async def test_a_broken_connection_is_asked_of_the_sandbox_and_never_repeated() -> None:
    for state, kind in (
        (SandboxState(running=True), FailureKind.ENV_UNREACHABLE),
        (SandboxState(running=False, exit_code=1), FailureKind.ENV_CRASHED),
        (SandboxState(running=False, exit_code=137, oom_killed=True), FailureKind.PROVIDER_OOM_KILLED),
        (SandboxState(running=False, exit_code=137, lost=True), FailureKind.SANDBOX_LOST),
    ):
        script = Script()
        script.replies["tools/call"] = lambda r: None
        async with script.session() as session:
            script.env.state_now = state
            script.env.log = "last words"
            with pytest.raises(EpisodeFailure) as raised:
                await session.call("act", {}, timeout=5)
        assert raised.value.kind is kind
        assert ("last words" in raised.value.reason) is not state.running
        assert len(script.sent("tools/call")) == 1


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda r: http("oops", "500 Internal Server Error"), "HTTP 500 oops"),
        (lambda r: http("<html>", content_type="text/html"), "content type text/html"),
        (lambda r: http(b"\x00\x01", content_type="application/json"), "not JSON"),
        (lambda r: http("[1]", content_type="application/json"), "not the answer"),
        (lambda r: http({"jsonrpc": "2.0", "id": "server-error", "result": {}}), "not the answer"),
        (lambda r: http({"jsonrpc": "2.0", "id": True, "result": {}}), "not the answer"),
        (lambda r: http("", "202 Accepted"), "content type none"),
        (lambda r: http(result_of(r, 3)), "not an object"),
        (lambda r: http(result_of(r, {})), "content is not a list"),
        (lambda r: http(result_of(r, {"content": ["x"]})), "content is not a list"),
        (lambda r: http({"jsonrpc": "2.0", "id": r.json["id"], "error": {"code": -32603, "message": "bug"}}), "bug"),
        (lambda r: http({"jsonrpc": "2.0", "id": r.json["id"], "error": "bug"}), "bug"),
        (lambda r: sse(b"data: {broken\n\n"), "not JSON"),
        (lambda r: b"garbage\r\n\r\n", "not HTTP"),
    ],
)
async def test_a_broken_answer_is_a_protocol_error_and_the_session_goes_on(answer: Reply, said: str) -> None:
    script = Script()
    good, script.replies["tools/call"] = script.replies["tools/call"], answer
    async with script.session() as session:
        with pytest.raises(EpisodeFailure, match=said) as raised:
            await session.call("act", {}, timeout=5)
        assert raised.value.kind is FailureKind.ENV_PROTOCOL_ERROR
        script.replies["tools/call"] = good
        assert (await session.call("act", {}, timeout=5)).text == "done"


async def test_what_the_model_did_wrong_is_a_result() -> None:
    script = Script()
    async with script.session() as session:
        deep: Any = 1
        for _ in range(200):
            deep = {"a": deep}
        for arguments in ({"x": "y" * (4 << 20)}, {"x": deep}):
            refused = await session.call("act", arguments, timeout=5)
            assert refused.is_error
            assert "act" in refused.text
        assert not script.sent("tools/call")

        script.replies["tools/call"] = lambda r: http("too large", "413 Content Too Large", connection="close")
        assert (await session.call("act", {}, timeout=5)).is_error

        invalid = {"code": -32602, "message": "Invalid arguments for act: x is required"}
        script.replies["tools/call"] = lambda r: http({"jsonrpc": "2.0", "id": r.json["id"], "error": invalid})
        refused = await session.call("act", {}, timeout=5)
        assert (refused.is_error, "x is required" in refused.text) == (True, True)

        script.replies["tools/call"] = lambda r: http(result_of(r, {**text("Unknown tool: zap"), "isError": True}))
        assert (await session.call("zap", {}, timeout=5)).is_error


async def test_odd_arguments_reach_the_env_as_json() -> None:
    script = Script()
    async with script.session() as session:
        await session.call("act", {"a": float("nan"), "b": "\ud800", "c": 10**30, "d": "\x00"}, timeout=5)
    [sent] = script.sent("tools/call")
    assert sent.json["params"] == {"name": "act", "arguments": {"a": None, "b": "\ufffd", "c": 10**30, "d": "\x00"}}


async def test_non_finite_numbers_and_broken_text_of_a_tool_never_leave_the_client() -> None:
    script = Script()
    script.replies["tools/call"] = lambda r: http(
        b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"a\xff\\ud800"}],'
        b'"structuredContent":{"x":NaN,"y":-Infinity}}}' % r.json["id"],
        content_type="application/json; charset=utf-8",
    )
    async with script.session() as session:
        result = await session.call("act", {}, timeout=5)
    assert (result.text, result.structured_content) == ("a\ufffd\ufffd", {"x": None, "y": None})


async def test_a_forgotten_session_is_opened_once_for_all_calls_and_a_second_loss_is_an_error() -> None:
    script = Script()
    known = {"new"}
    ids = iter(["old", "new", "newer"])
    script.replies["initialize"] = lambda r: http(result_of(r, {}), mcp_session_id=next(ids))

    def call(r: Request) -> bytes:
        if r.headers["mcp-session-id"] in known:
            return http(result_of(r, text("done")))
        error = {"code": -32600, "message": "Session not found"}
        return http({"jsonrpc": "2.0", "id": "server-error", "error": error}, "404 Not Found")

    script.replies["tools/call"] = call
    async with script.session() as session:
        answers = await asyncio.gather(*(session.call("act", {}, timeout=5) for _ in range(3)))
        assert [a.text for a in answers] == ["done"] * 3
        assert len(script.sent("initialize")) == 2
        known.clear()
        with pytest.raises(EpisodeFailure, match="not known") as raised:
            await session.call("act", {}, timeout=5)
        assert raised.value.kind is FailureKind.ENV_PROTOCOL_ERROR


async def test_closing_never_fails() -> None:
    for answer in (lambda r: None, lambda r: http("no", "405 Method Not Allowed"), lambda r: http("x", "500 Oops")):
        script = Script()
        script.replies["DELETE"] = answer
        async with script.session():
            pass
    script = Script()
    async with raw_env(script.answer) as (env, client):
        session = await ToolSession.open(client, CARD)
        env.port = 1
        await session.close()
        await session.close()


async def test_opening_has_a_deadline_and_names_what_it_waited_for() -> None:
    script = Script()
    script.delay["initialize"] = 10
    with pytest.raises(EpisodeFailure, match=r"MCP session at /mcp: not done after 0\.1 s") as raised:
        async with script.session(timeout=0.1):
            pass
    assert raised.value.kind is FailureKind.ENV_UNREACHABLE


@pytest.mark.parametrize(
    ("block", "shown"),
    [
        ({"type": "text", "text": "a\nb"}, "a\nb"),
        ({"type": "image", "data": "aGk=", "mimeType": "image/png"}, "[image image/png]"),
        ({"type": "resource", "resource": {"uri": "file:///x", "text": "inside"}}, "inside"),
        ({"type": "resource", "resource": {"uri": "file:///x", "blob": "aGk="}}, "[resource file:///x]"),
        ({"type": "resource_link", "uri": "file:///y", "name": "y"}, "[resource_link file:///y]"),
        ({}, "[block]"),
    ],
)
async def test_every_kind_of_block_has_a_text(block: dict[str, Any], shown: str) -> None:
    assert ToolResult([block, {"type": "text", "text": "z"}]).text == f"{shown}\nz"
