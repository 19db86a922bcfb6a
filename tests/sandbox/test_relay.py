from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from agent_env.sandbox.relay import Relay

pytestmark = pytest.mark.anyio


@asynccontextmanager
async def relayed(server: asyncio.Server) -> AsyncIterator[Relay]:
    address = server.sockets[0].getsockname()

    async def connect() -> socket.socket:
        sock = socket.socket()
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, address)
        except BaseException:
            sock.close()
            raise
        return sock

    relay = Relay(connect)
    try:
        yield relay
    finally:
        await relay.aclose()


async def shout(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answers after the peer has said all: what half-closed connections are for."""
    said = await reader.read()
    writer.write(said.upper())
    writer.close()
    await writer.wait_closed()


async def test_bytes_go_both_ways_and_a_half_closed_connection_still_answers() -> None:
    async with await asyncio.start_server(shout, "127.0.0.1", 0) as server, relayed(server) as relay:
        reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
        writer.write(b"hello " * 100_000)
        writer.write_eof()
        assert await reader.read() == b"HELLO " * 100_000
        writer.close()
        await writer.wait_closed()


async def test_many_connections_are_served_at_once() -> None:
    async with await asyncio.start_server(shout, "127.0.0.1", 0) as server, relayed(server) as relay:

        async def one(number: int) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            writer.write(b"n%d" % number)
            writer.write_eof()
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            return answer

        assert await asyncio.gather(*(one(n) for n in range(50))) == [b"N%d" % n for n in range(50)]


async def test_a_far_end_that_refuses_closes_the_near_one_and_the_relay_goes_on() -> None:
    server = await asyncio.start_server(shout, "127.0.0.1", 0)
    async with relayed(server) as relay:
        server.close()
        for _ in range(2):
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            assert await reader.read() == b""
            writer.close()
            await writer.wait_closed()


async def test_closing_it_ends_what_is_open() -> None:
    async with await asyncio.start_server(shout, "127.0.0.1", 0) as server:
        async with relayed(server) as relay:
            reader, writer = await asyncio.open_connection("127.0.0.1", relay.port)
            writer.write(b"never finished")
            await asyncio.sleep(0.05)
        assert await reader.read() == b""
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", relay.port)
        writer.close()
        await writer.wait_closed()
