"""Running an ASGI app under uvicorn on a socket that is bound first."""

from __future__ import annotations

import asyncio
import errno
import gc
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from agent_env.errors import AgentEnvError, ConfigError

_YOUNG = 10_000
"""objects, less those that are gone again, after which the newest are searched for cycles"""


def bind(host: str, port: int) -> socket.socket:
    """A bound stream socket, not yet listening.

    Raises:
        ConfigError: the host is no address, or the port is out of range.
        AgentEnvError: the port is in use, or may not be bound.
    """
    if not 0 <= port <= 65535:
        raise ConfigError(f"--port {port}: ports are 0 to 65535")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise ConfigError(f"--host {host}: {error.strerror}") from None
    sock = socket.socket(family, kind, protocol)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise AgentEnvError(
                f"port {port} on {host} is in use by another process: choose another --port, or 0 for a free one"
            ) from None
        raise AgentEnvError(f"can't listen on {host} port {port}: {error.strerror}") from None
    return sock


def url_of(sock: socket.socket) -> str:
    host, port = sock.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def search_seldom() -> None:
    """Makes Python's search for cycles cheap for a server that has started. To look through what the libraries made at
    their import takes a fifth of a second, again and again; and to look after each 700 objects, as is the default, an
    eighth of a server's processor time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, *gc.get_threshold()[1:])


@contextmanager
def ended_by_signals(handle_exit: Callable[[int, None], None]) -> Iterator[None]:
    """SIGINT and SIGTERM end the server inside; unlike uvicorn's own, they don't end the process a second time."""
    loop = asyncio.get_running_loop()
    caught = (signal.SIGINT, signal.SIGTERM)
    for number in caught:
        loop.add_signal_handler(number, handle_exit, number, None)
    try:
        yield
    finally:
        for number in caught:
            loop.remove_signal_handler(number)


def run_app(app: Any, sock: socket.socket, what: str) -> None:
    """Serve until SIGINT or SIGTERM; prints the URL once requests are answered. Raises AgentEnvError when it can't."""
    import uvicorn

    class Server(uvicorn.Server):
        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            with ended_by_signals(self.handle_exit):
                yield

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets=sockets)
            search_seldom()
            if self.started:
                print(f"{what} at {url_of(sock)}", flush=True)

    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        backlog=4096,
        ws_per_message_deflate=False,
        timeout_graceful_shutdown=10,
    )
    server = Server(config)
    server.run(sockets=[sock])
    if not server.started:
        raise AgentEnvError("the server could not start: see the log above")
