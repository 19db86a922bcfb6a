"""A server on raw sockets that answers as a test says, byte by byte, and a sandbox around it."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agent_env.env.http import EnvHttp
from agent_env.sandbox.base import SandboxState


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: Mapping[str, str]
    """names in lower case"""
    body: bytes
    connection: int
    """the how-manieth connection it came on"""

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = bytes | None
"""bytes to send; None: close the connection"""
Handler = Callable[[Request, asyncio.StreamWriter], Awaitable[Answer]]


def http(body: bytes | str | dict[str, Any], status: str = "200 OK", **headers: str) -> bytes:
    """A whole answer; a dict is sent as JSON. `content_type=...` sets that header."""
    if isinstance(body, dict):
        body, headers = json.dumps(body).encode(), {"content_type": "application/json", **headers}
    data = body.encode() if isinstance(body, str) else body
    lines = [f"HTTP/1.1 {status}", f"Content-Length: {len(data)}"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


def sse(data: bytes, *, chunks: int = 1, end: bool = True, **headers: str) -> bytes:
    """The bytes of an event stream, in that many chunks of the chunked encoding."""
    lines = ["HTTP/1.1 200 OK", "Content-Type: text/event-stream", "Transfer-Encoding: chunked"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    size = max(1, -(-len(data) // chunks))
    parts = [data[at : at + size] for at in range(0, len(data), size)]
    encoded = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in parts)
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + encoded + (b"0\r\n\r\n" if end else b"")


@dataclass
class RawEnv:
    """A `Sandbox` as far as the env client needs one."""

    port: int
    state_now: SandboxState = field(default_factory=lambda: SandboxState(running=True))
    log: str = ""
    requests: list[Request] = field(default_factory=list)
    connections: int = 0
    id: str = "raw"

    @property
    def authority(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def connect(self) -> socket.socket:
        connection = socket.socket()
        connection.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
        except BaseException:
            connection.close()
            raise
        return connection

    async def state(self) -> SandboxState:
        return self.state_now

    async def logs(self, limit: int = 65_536) -> str:
        return self.log[-limit:]


@asynccontextmanager
async def raw_env(handler: Handler) -> AsyncIterator[tuple[RawEnv, EnvHttp]]:
    """Serve with `handler`; ends with every connection closed."""
    env = RawEnv(port=0)
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        env.connections += 1
        number = env.connections
        try:
            while request := await _read_request(reader, number):
                env.requests.append(request)
                answer = await handler(request, writer)
                if answer is None:
                    return
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            writer.transport.abort()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    env.port = server.sockets[0].getsockname()[1]
    client = EnvHttp(env)  # type: ignore[arg-type]
    try:
        yield env, client
    finally:
        await client.aclose()
        server.close()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


async def _read_request(reader: asyncio.StreamReader, connection: int) -> Request | None:
    head = await reader.readuntil(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    body = await reader.readexactly(int(headers.get("content-length", "0")))
    return Request(method, path, headers, body, connection)
