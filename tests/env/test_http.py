from __future__ import annotations

import asyncio
import time

import pytest
from stubs.raw_env import Request, http, raw_env, sse

from agent_env.env import http as http_module
from agent_env.env.http import BadAnswer, ConnectionLost, EnvHttp, NoConnection

pytestmark = pytest.mark.anyio


async def ok(request: Request, writer: asyncio.StreamWriter) -> bytes:
    return http("fine")


async def test_one_connection_serves_requests_one_after_the_other() -> None:
    async with raw_env(ok) as (env, client):
        for _ in range(3):
            response = await client.request("GET", "/x?a=1", timeout=5)
            assert (response.status, response.body) == (200, b"fine")
    assert env.connections == 1
    assert {request.path for request in env.requests} == {"/x?a=1"}
    assert env.requests[0].headers["host"] == env.authority


async def test_requests_at_once_have_connections_of_their_own() -> None:
    async def slow(request: Request, writer: asyncio.StreamWriter) -> bytes:
        await asyncio.sleep(0.1)
        return http("fine")

    async with raw_env(slow) as (env, client):
        await asyncio.gather(*(client.request("POST", "/", body=b"x", timeout=5) for _ in range(4)))
    assert env.connections == 4


async def test_a_body_may_be_chunked_or_end_with_the_connection() -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> bytes | None:
        if request.path == "/chunked":
            return sse(b"x" * 100_000, chunks=7)
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nto the end")
        await writer.drain()
        writer.write_eof()
        return None

    async with raw_env(answer) as (_, client):
        assert (await client.request("GET", "/chunked", timeout=5)).body == b"x" * 100_000
        assert (await client.request("GET", "/closing", timeout=5)).body == b"to the end"


async def test_redirects_307_and_308_keep_method_and_body() -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> bytes:
        if request.path == "/mcp/":
            return http("", "307 Temporary Redirect", location=f"http://{request.headers['host']}/mcp?x=1")
        if request.path == "/loop":
            return http("", "308 Permanent Redirect", location="/loop")
        if request.path == "/away":
            return http("", "307 Temporary Redirect", location="http://elsewhere.example/mcp")
        return http(request.body)

    async with raw_env(answer) as (env, client):
        assert (await client.request("POST", "/mcp/", body=b"payload", timeout=5)).body == b"payload"
        assert [(r.method, r.path) for r in env.requests] == [("POST", "/mcp/"), ("POST", "/mcp?x=1")]
        for path in ("/loop", "/away"):
            with pytest.raises(BadAnswer, match="redirect"):
                await client.request("GET", path, timeout=5)


async def test_the_deadline_is_wall_clock_even_while_bytes_come() -> None:
    async def dripping(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            writer.write(b"1\r\n:\r\n")
            await writer.drain()
            await asyncio.sleep(0.01)

    async with raw_env(dripping) as (_, client):
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            await client.request("GET", "/", timeout=0.2)
        assert time.monotonic() - started < 1


async def test_a_connection_that_a_deadline_cut_is_not_used_again() -> None:
    async def late(request: Request, writer: asyncio.StreamWriter) -> bytes:
        await asyncio.sleep(0.2 if request.path == "/late" else 0)
        return http(request.path)

    async with raw_env(late) as (_, client):
        with pytest.raises(TimeoutError):
            await client.request("GET", "/late", timeout=0.05)
        assert (await client.request("GET", "/next", timeout=5)).body == b"/next"


async def test_a_kept_connection_that_was_closed_is_replaced_for_a_request_that_may_be_repeated() -> None:
    async def once(request: Request, writer: asyncio.StreamWriter) -> bytes | None:
        # The second request of a connection finds it closed without a byte of an answer.
        return http("fine") if sum(r.connection == request.connection for r in env.requests) == 1 else None

    async with raw_env(once) as (env, client):
        for _ in range(3):
            assert (await client.request("GET", "/", timeout=5, idempotent=True)).status == 200
    assert len(env.requests) == 5


async def test_a_request_that_must_not_be_repeated_never_is() -> None:
    async def once(request: Request, writer: asyncio.StreamWriter) -> bytes | None:
        return http("fine") if request.path == "/first" else None

    async with raw_env(once) as (env, client):
        await client.request("GET", "/first", timeout=5)
        with pytest.raises(ConnectionLost, match="without an answer"):
            await client.request("POST", "/call", body=b"x", timeout=5)
        with pytest.raises(ConnectionLost, match="without an answer"):
            await client.request("POST", "/call", body=b"x", timeout=5)
    assert [r.path for r in env.requests] == ["/first", "/call", "/call"]


async def test_a_request_that_must_not_be_repeated_trusts_no_connection_that_was_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_module, "FRESH_FOR", 0.0)
    async with raw_env(ok) as (env, client):
        await client.request("POST", "/", timeout=5)
        await client.request("POST", "/", timeout=5)
        assert env.connections == 2
        await client.request("GET", "/", timeout=5, idempotent=True)
        assert env.connections == 2


async def test_an_answer_that_breaks_off_is_a_lost_connection() -> None:
    async def broken(request: Request, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        await writer.drain()
        writer.write_eof()

    async with raw_env(broken) as (_, client):
        with pytest.raises(ConnectionLost, match="in the middle"):
            await client.request("GET", "/", timeout=5, idempotent=True)


@pytest.mark.parametrize(
    "garbage",
    [
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 twohundred OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nX: " + b"y" * 200_000 + b"\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00",
    ],
)
async def test_what_is_not_http_is_called_that(garbage: bytes) -> None:
    async def answer(request: Request, writer: asyncio.StreamWriter) -> bytes:
        return garbage

    async with raw_env(answer) as (_, client):
        with pytest.raises((BadAnswer, ConnectionLost)):
            await client.request("GET", "/", timeout=1)


async def test_an_answer_beyond_the_limit_is_refused_and_the_limit_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_module, "MAX_BODY", 1000)

    async def big(request: Request, writer: asyncio.StreamWriter) -> bytes:
        return http(b"x" * 1001)

    async with raw_env(big) as (_, client):
        with pytest.raises(BadAnswer, match="1000"):
            await client.request("GET", "/", timeout=5)


async def test_an_early_answer_to_a_body_that_is_not_read_is_still_an_answer() -> None:
    over = asyncio.Event()

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(http("too large", "413 Content Too Large", connection="close"))
        await writer.drain()
        await reader.read()
        writer.close()
        await writer.wait_closed()
        over.set()

    server = await asyncio.start_server(refuse, "127.0.0.1", 0)
    async with raw_env(ok) as (env, client):
        env.port = server.sockets[0].getsockname()[1]
        assert (await client.request("POST", "/", body=b"x" * (1 << 20), timeout=5)).status == 413
    await over.wait()
    server.close()


async def test_nobody_listening_is_no_connection() -> None:
    async with raw_env(ok) as (env, _):
        pass
    with pytest.raises(NoConnection, match="Connection refused"):
        await EnvHttp(env).request("GET", "/", timeout=5)  # type: ignore[arg-type]


async def test_a_header_that_can_not_be_sent_is_refused_before_anything_is() -> None:
    async with raw_env(ok) as (env, client):
        with pytest.raises(BadAnswer, match="can't be sent"):
            await client.request("GET", "/a b", timeout=5)
    assert not env.requests
