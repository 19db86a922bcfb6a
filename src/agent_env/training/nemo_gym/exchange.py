"""One HTTP request and its answer, on bare ASGI: bodies with a limit, cookies, and answers that take long.

Clients cut a silent answer off (verifiers 0.4.0: 60 s per socket read, by default). So an answer that is slow begins
with its headers and then a space every few seconds: blanks before JSON mean nothing, and before a tool's text they do
no harm.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from agent_env.training.nemo_gym.wire import WireError

Json = Any
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
log = logging.getLogger("agent_env.serve")

JSON = b"application/json"
TEXT = b"text/plain; charset=utf-8"
_COOKIE_VALUE = re.compile(r"[A-Za-z0-9_-]{1,128}")
_ROLLOUT_PREFIX = re.compile(r"/ng-rollout/[A-Za-z0-9][A-Za-z0-9._-]*(/.*)")


class ClientLeft(Exception):
    """The client closed the connection before its request was complete or answered."""


@dataclass(frozen=True, slots=True)
class Reply:
    body: bytes
    status: int = 200
    media: bytes = JSON
    headers: tuple[tuple[bytes, bytes], ...] = ()


@dataclass(slots=True)
class Request:
    """`begun` turns true when the answer's 200 is out, after which its status can't be chosen any more."""

    method: str
    path: str
    headers: list[tuple[bytes, bytes]]
    receive: Receive
    query: str = ""
    begun: bool = False
    cookie: str = field(default="")

    @classmethod
    def of(cls, scope: Message, receive: Receive) -> Request:
        path: str = scope["path"]
        if path.startswith("/ng-rollout/") and (match := _ROLLOUT_PREFIX.fullmatch(path)):
            path = match[1]
        if len(path) > 1:
            path = path.removesuffix("/")
        return cls(scope["method"], path, scope["headers"], receive, scope["query_string"].decode("latin-1"))

    def header(self, name: bytes) -> bytes | None:
        return next((value for key, value in self.headers if key == name), None)

    def cookies(self, name: str) -> list[str]:
        """Every value sent under `name`: a client's jar may hold several, of other times or servers."""
        found = []
        for key, value in self.headers:
            if key == b"cookie":
                for pair in value.decode("latin-1").split(";"):
                    left, _, right = pair.partition("=")
                    if left.strip() == name and _COOKIE_VALUE.fullmatch(cookie := right.strip().strip('"')):
                        found.append(cookie)
        return found

    async def gone(self) -> None:
        """Returns when the client has closed the connection. For after the body was read."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def body(self, limit: int, stall: float = 60.0) -> bytes:
        """Raises WireError 413 past `limit` bytes, 408 when nothing comes for `stall` seconds (or a request that never
        ends would hold its session), ClientLeft when the client gives up."""
        announced = self.header(b"content-length")
        if announced is not None and announced.isdigit() and int(announced) > limit:
            raise _too_large(limit)
        chunks: list[bytes] = []
        size = 0
        while True:
            try:
                async with asyncio.timeout(stall):
                    message = await self.receive()
            except TimeoutError:
                raise WireError(f"the request's body stopped coming for {stall:g} s", 408) from None
            if message["type"] == "http.disconnect":
                raise ClientLeft
            chunk = message.get("body", b"")
            size += len(chunk)
            if size > limit:
                raise _too_large(limit)
            chunks.append(chunk)
            if not message.get("more_body", False):
                return chunks[0] if len(chunks) == 1 else b"".join(chunks)


@dataclass(frozen=True, slots=True)
class Patience:
    """When a slow answer begins with spaces, and how often one follows. 0: never."""

    after: float
    every: float


async def answer(
    request: Request,
    work: Awaitable[Reply | None],
    send: Send,
    cookie: bytes,
    *,
    media: bytes = JSON,
    patience: Patience,
    watch: bool = False,
) -> None:
    """Sends what `work` gives. None cuts the connection: the 200 that is out would be a lie.

    `watch`: the work is cancelled and ClientLeft raised as soon as the client is gone. Else it goes on to its end.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(request.gone()) if watch else None
    awaited: set[asyncio.Future[Any]] = {task} if gone is None else {task, gone}
    try:
        await _first_of(task, gone, awaited, patience.after or None)
        if not task.done():
            request.begun = True
            await send(_start(200, media, cookie, ()))
        while not task.done():
            await send({"type": "http.response.body", "body": b" ", "more_body": True})
            await _first_of(task, gone, awaited, patience.every)
        reply = task.result()
        if reply is not None and request.begun:
            await send({"type": "http.response.body", "body": reply.body})
        elif reply is not None:
            await send_reply(send, reply, cookie)
    finally:
        for left in awaited:
            left.cancel()
        await asyncio.wait(awaited)


async def _first_of(
    task: asyncio.Future[Reply | None],
    gone: asyncio.Future[None] | None,
    awaited: set[asyncio.Future[Any]],
    timeout: float | None,
) -> None:
    await asyncio.wait(awaited, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)
    if gone is not None and gone.done() and not task.done():
        raise ClientLeft


async def send_reply(send: Send, reply: Reply, cookie: bytes) -> None:
    length = (b"content-length", str(len(reply.body)).encode())
    await send(_start(reply.status, reply.media, cookie, (length, *reply.headers)))
    await send({"type": "http.response.body", "body": reply.body})


def detail(message: str, status: int, *headers: tuple[bytes, bytes]) -> Reply:
    """An error for people and logs, in the shape of NeMo Gym's servers."""
    return Reply(orjson.dumps({"detail": message}), status, headers=headers)


def text(message: str, status: int = 200) -> Reply:
    return Reply(message.encode("utf-8", "replace"), status, TEXT)


def _start(status: int, media: bytes, cookie: bytes, headers: tuple[tuple[bytes, bytes], ...]) -> Message:
    return {
        "type": "http.response.start",
        "status": status,
        "headers": [(b"content-type", media), (b"set-cookie", cookie), *headers],
    }


def _too_large(limit: int) -> WireError:
    return WireError(f"the request's body is larger than {limit} bytes (--max-body)", 413)
