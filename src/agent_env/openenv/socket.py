"""Reads ahead on the websocket, so that a client that leaves ends what its session is doing.

The openenv library (0.10.0) handles one message after the other and looks at the socket only in between: a client that
gives up during a deploy would keep its place until the deploy is over. This layer keeps reading while a message is
handled; at a disconnect it calls whatever the session has left in `on_gone`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar

from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger(__name__)

_AHEAD = 16
"""messages read ahead; a client that sends more waits"""


class Watch:
    """The session's view of its socket."""

    def __init__(self) -> None:
        self.gone = False
        self.on_gone: Callable[[], None] | None = None

    def leave(self) -> None:
        self.gone = True
        if self.on_gone is not None:
            self.on_gone()


current_watch: ContextVar[Watch | None] = ContextVar("current_watch", default=None)
"""the watch of the websocket whose message is being handled"""


class ReadAhead:
    """ASGI middleware around websockets; everything else passes untouched."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self.app(scope, receive, send)
            return
        watch = Watch()
        ahead: asyncio.Queue[Message] = asyncio.Queue(_AHEAD)
        reader = asyncio.create_task(_read(receive, ahead, watch))
        token = current_watch.set(watch)
        try:
            await self.app(scope, ahead.get, send)
        finally:
            current_watch.reset(token)
            reader.cancel()
            await asyncio.wait({reader})


async def _read(receive: Receive, ahead: asyncio.Queue[Message], watch: Watch) -> None:
    while True:
        try:
            message = await receive()
        except Exception:
            log.exception("reading a websocket failed; taken for a disconnect")
            message = {"type": "websocket.disconnect", "code": 1006}
        if message["type"] == "websocket.disconnect":
            watch.leave()
        await ahead.put(message)
        if message["type"] == "websocket.disconnect":
            return
