"""A listener on 127.0.0.1 that hands each connection on to one opened inside a sandbox."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

_CHUNK = 1 << 16


class Relay:
    """Open from construction to `aclose`. Needs a running loop. `connect` opens the far end."""

    def __init__(self, connect: Callable[[], Awaitable[socket.socket]]) -> None:
        self._connect = connect
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.setblocking(False)
        self.port: int = self._listener.getsockname()[1]
        self._task = asyncio.get_running_loop().create_task(self._accept(), name=f"relay on port {self.port}")

    async def aclose(self) -> None:
        """Close the listener and every connection."""
        self._task.cancel()
        await asyncio.wait([self._task])
        self._listener.close()

    async def _accept(self) -> None:
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as connections:
            while True:
                try:
                    near, _ = await loop.sock_accept(self._listener)
                except OSError as error:
                    # No descriptor is free, most likely: the waiting peer sees its connection closed with the relay.
                    log.error("relay on port %d: it takes no more connections: %s", self.port, error)
                    return
                connections.create_task(self._serve(near))

    async def _serve(self, near: socket.socket) -> None:
        with near:
            near.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            try:
                far = await self._connect()
            except OSError:
                return  # the peer sees its connection closed, as it would if the env had closed it
            with far:
                async with asyncio.TaskGroup() as pumps:
                    pumps.create_task(_pump(near, far))
                    pumps.create_task(_pump(far, near))


async def _pump(source: socket.socket, sink: socket.socket) -> None:
    """Copy until the source ends; then the sink is told. A broken side ends both directions."""
    loop = asyncio.get_running_loop()
    try:
        while data := await loop.sock_recv(source, _CHUNK):
            await loop.sock_sendall(sink, data)
        sink.shutdown(socket.SHUT_WR)
    except OSError:
        for sock in (source, sink):
            _shut(sock)


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # it is down already
