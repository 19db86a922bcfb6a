"""Serves an ASGI app from a thread of this process, for tests that wait for other processes meanwhile."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn


@contextmanager
def serving(app: Any) -> Iterator[str]:
    """The URL of `app` on a free port of 127.0.0.1, until the end of the block."""
    config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=5, ws="websockets-sansio")
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0), backlog=512) as sock:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [sock]}, name="server of a test")
        thread.start()
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()
