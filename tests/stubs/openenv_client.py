"""A client of our OpenEnv server over its websocket, thin enough to see every field."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import websockets


class Client:
    """One session. `reset` and `call` answer with the observation frame's data."""

    def __init__(self, socket: Any, timeout: float) -> None:
        self._socket = socket
        self._timeout = timeout

    async def ask(self, kind: str, /, **data: Any) -> dict[str, Any]:
        await self._socket.send(json.dumps({"type": kind, "data": data}))
        async with asyncio.timeout(self._timeout):
            reply: dict[str, Any] = json.loads(await self._socket.recv())
        assert reply["type"] == "observation", reply
        return reply["data"]  # type: ignore[no-any-return]

    async def reset(self, **data: Any) -> dict[str, Any]:
        return await self.ask("reset", **data)

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        return await self.ask("step", type="call_tool", tool_name=name, arguments=arguments)


@asynccontextmanager
async def connected(url: str, *, timeout: float = 60.0) -> AsyncIterator[Client]:
    async with websockets.connect(url.replace("http", "ws", 1) + "/ws", proxy=None, max_size=None) as socket:
        yield Client(socket, timeout)
