"""MCP over streamable HTTP, as much of it as calling tools needs (protocol 2025-11-25).

One POST a message; the answer is JSON or an event stream, as the server likes. Declared capabilities are none, so a
server may not ask us anything; what it says beside the answer is passed over. No GET stream, no batches, no resuming.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from typing import Any

from agent_env.env.http import EnvHttp, Exchange, HttpError, excerpt
from agent_env.env.jsontext import dump, parse
from agent_env.env.sse import EventStream

Json = Any
log = logging.getLogger(__name__)

PROTOCOL_VERSION = "2025-11-25"
MAX_REQUEST = 4 << 20
"""bytes that servers made with the official SDK take in one request; beyond it they cut the connection"""
NOTIFY_TIMEOUT = 5.0
CLOSE_TIMEOUT = 5.0
FINISH_WITHIN = 0.05
"""seconds that a stream may go on after the answer, before the connection is given up"""

_CLIENT = {"name": "agent-env", "version": "1"}


class McpError(Exception):
    """The server broke the protocol; the message says how."""


class RpcError(McpError):
    """The server answered a JSON-RPC error."""

    def __init__(self, code: Json, message: str) -> None:
        self.code = code
        super().__init__(f"{message} (code {code})")


class TooLarge(McpError):
    """The request is larger than the server takes."""


class SessionGone(McpError):
    """The server does not know the session (any more)."""


class McpChannel:
    """One MCP session. Requests may run at once; each has an id that is never used again.

    Any method may raise `HttpError`, which means that the outcome is unknown.
    """

    def __init__(self, http: EnvHttp, path: str, role: str | None = None) -> None:
        self._http = http
        self._path = path
        self._role = role if role not in (None, "", "default") else None
        self._ids = itertools.count(1)
        self._session: str | None = None
        self._version: str | None = None
        self._opening = asyncio.Lock()
        self._generation = 0
        self._background: set[asyncio.Task[None]] = set()

    async def initialize(self) -> None:
        """Open the session. `announce` must follow."""
        self._session = self._version = None
        params = {"protocolVersion": PROTOCOL_VERSION, "capabilities": {}, "clientInfo": _CLIENT}
        result, headers = await self._post_request("initialize", params, idempotent=True)
        version = result.get("protocolVersion")
        self._version = version if isinstance(version, str) else None
        self._session = headers.get("mcp-session-id")
        self._generation += 1

    async def announce(self) -> None:
        """Tell the server that the session is open. The caller holds the time limit."""
        await self.notify("notifications/initialized", timeout=None)

    async def request(self, method: str, params: Json, *, idempotent: bool = False) -> dict[str, Json]:
        """The result. A session that the server has forgotten is opened anew, once: that request was not carried out.

        When cancelled, the server is told so in the background.

        Raises:
            McpError: see its subclasses.
        """
        generation = self._generation
        try:
            return (await self._post_request(method, params, idempotent=idempotent))[0]
        except SessionGone:
            async with self._opening:
                if self._generation == generation:
                    log.info("the env forgot our MCP session: opening another")
                    await self.initialize()
                    await self.announce()
            return (await self._post_request(method, params, idempotent=idempotent))[0]

    async def notify(self, method: str, params: Json = None, *, timeout: float | None = NOTIFY_TIMEOUT) -> None:
        message = {"jsonrpc": "2.0", "method": method}
        if params is not None:
            message["params"] = params
        response = await self._http.request(
            "POST", self._path, headers=self._headers(), body=dump(message), timeout=timeout, idempotent=True
        )
        if not 200 <= response.status < 300:
            raise McpError(f"{method}: {response.excerpt}")

    async def close(self) -> None:
        """End the session. Never fails: the env may be gone already."""
        for task in self._background:
            task.cancel()
        if self._background:
            await asyncio.wait(self._background)
        if self._session is None:
            return
        try:
            response = await self._http.request(
                "DELETE", self._path, headers=self._headers(), timeout=CLOSE_TIMEOUT, idempotent=True
            )
        except (HttpError, TimeoutError) as error:
            log.debug("the MCP session could not be ended: %s", error)
            return
        if response.status not in (200, 202, 204, 404, 405):
            log.debug("the MCP session's end was answered %s", response.excerpt)

    async def _post_request(
        self, method: str, params: Json, *, idempotent: bool
    ) -> tuple[dict[str, Json], dict[str, str]]:
        request_id = next(self._ids)
        body = dump({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params})
        if len(body) > MAX_REQUEST:
            raise TooLarge(f"the request is {len(body)} bytes long, servers take {MAX_REQUEST}")
        session = self._session
        try:
            async with self._http.exchange(
                "POST", self._path, headers=self._headers(), body=body, idempotent=idempotent
            ) as exchange:
                message = await self._answer(exchange, request_id, method, session)
                return _result(message, method), dict(exchange.headers)
        except asyncio.CancelledError:
            if method != "initialize":
                self._cancel_later(request_id)
            raise

    async def _answer(self, exchange: Exchange, request_id: int, method: str, session: str | None) -> dict[str, Json]:
        if exchange.status == 404 and session is not None:
            raise SessionGone(f"{method}: the session is not known")
        if exchange.status == 413:
            raise TooLarge(f"the env takes no request of that size: {excerpt(413, await exchange.read())}")
        if not 200 <= exchange.status < 300:
            raise McpError(f"{method}: {excerpt(exchange.status, await exchange.read())}")
        if exchange.content_type == "application/json":
            body = await exchange.read()
            message = _message(body, method)
            if not _is_answer(message, request_id):
                raise McpError(f"{method}: not the answer to request {request_id}: {excerpt(exchange.status, body)}")
            assert isinstance(message, dict)
            return message
        if exchange.content_type == "text/event-stream":
            stream = EventStream()
            async for data in exchange.chunks():
                for event in stream.feed(data):
                    # An empty event is how servers open a stream that could be resumed.
                    if (
                        event.name == "message"
                        and event.data
                        and _is_answer(message := _message(event.data, method), request_id)
                    ):
                        await exchange.finish(FINISH_WITHIN)
                        assert isinstance(message, dict)
                        return message
            raise NoAnswer(f"{method}: the event stream ended before the answer; the outcome is unknown")
        kind = exchange.headers.get("content-type", "none")
        raise McpError(f"{method}: content type {kind}: {excerpt(exchange.status, await exchange.read())}")

    def _headers(self) -> list[tuple[str, str]]:
        headers = [("Accept", "application/json, text/event-stream"), ("Content-Type", "application/json")]
        if self._session is not None:
            headers.append(("Mcp-Session-Id", self._session))
        if self._version is not None:
            headers.append(("MCP-Protocol-Version", self._version))
        if self._role is not None:
            headers.append(("AgentEnv-Role", self._role))
        return headers

    def _cancel_later(self, request_id: int) -> None:
        task = asyncio.create_task(self._tell_cancelled(request_id), name=f"cancel MCP request {request_id}")
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _tell_cancelled(self, request_id: int) -> None:
        try:
            await self.notify("notifications/cancelled", {"requestId": request_id, "reason": "no longer awaited"})
        except (HttpError, McpError, TimeoutError) as error:
            log.debug("the env was not told that request %d is cancelled: %s", request_id, error)


class NoAnswer(HttpError):
    """The event stream ended without the answer. The request may have been carried out."""


def _message(data: bytes, method: str) -> Json:
    try:
        return parse(data)
    except ValueError as error:
        raise McpError(f"{method}: the answer is not JSON ({error}): {excerpt(200, data)}") from None


def _is_answer(message: Json, request_id: int) -> bool:
    return (
        isinstance(message, dict)
        and message.get("id") == request_id
        and not isinstance(message.get("id"), bool)
        and ("result" in message or "error" in message)
    )


def _result(message: dict[str, Json], method: str) -> dict[str, Json]:
    error = message.get("error")
    if error is not None:
        if isinstance(error, dict):
            raise RpcError(error.get("code"), f"{method}: {error.get('message')}")
        raise RpcError(None, f"{method}: {error}")
    result = message.get("result")
    if not isinstance(result, dict):
        raise McpError(f"{method}: the result is not an object: {str(result)[:300]}")
    return result
