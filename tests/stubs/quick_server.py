"""An ASGI app behind uvicorn's own protocols on this loop, started and stopped in milliseconds.

uvicorn.Server looks at its flags every tenth of a second, which a few hundred tests can't afford.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from uvicorn.server import ServerState


@asynccontextmanager
async def quick(app: Any, port: int = 0) -> AsyncIterator[str]:
    """The URL of `app`, after its lifespan's start-up; its shutdown comes at the end."""
    inbox: asyncio.Queue[Any] = asyncio.Queue()
    outbox: asyncio.Queue[Any] = asyncio.Queue()
    lifespan = asyncio.create_task(app({"type": "lifespan", "state": {}}, inbox.get, outbox.put))
    await inbox.put({"type": "lifespan.startup"})
    assert (await outbox.get())["type"] == "lifespan.startup.complete"
    config = uvicorn.Config(
        app,
        lifespan="off",
        log_config=None,
        access_log=False,
        http="httptools",
        ws="websockets-sansio",
        timeout_keep_alive=300,
    )
    config.load()
    state = ServerState()
    # With the protocol left 0, asyncio would not set TCP_NODELAY, and every answer would take 40 ms.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen(1024)

    def protocol() -> Any:
        return config.http_protocol_class(config=config, server_state=state, app_state={})  # type: ignore[call-arg]

    server = await asyncio.get_running_loop().create_server(protocol, sock=listener, backlog=1024)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.close()
        await inbox.put({"type": "lifespan.shutdown"})
        assert (await outbox.get())["type"] == "lifespan.shutdown.complete"
        await lifespan
        for connection in list(state.connections):
            connection.shutdown()
        if state.tasks:
            _, left = await asyncio.wait(state.tasks, timeout=3)
            for task in left:
                task.cancel()
            await asyncio.gather(*left, return_exceptions=True)
