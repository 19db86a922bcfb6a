"""Single HTTP requests to an OpenEnv server: what its Task API and `/capacity` say.

A few requests in a server's life, so each has its own connection; an HTTP library would cost more at start than it
saves.
"""

from __future__ import annotations

import asyncio
from typing import Any
from urllib.parse import urlsplit

import h11
import orjson

Json = Any
_MOST = 16 * 1024 * 1024


async def fetch(
    url: str, method: str, path: str, body: Json = None, *, token: str | None = None, timeout: float = 10.0
) -> tuple[int, Json]:
    """Status and parsed body (None when it is not JSON). Raises OSError or TimeoutError when nobody answers."""
    parts = urlsplit(url)
    payload = b"" if body is None else orjson.dumps(body)
    headers = [("Host", parts.netloc), ("Connection", "close"), ("Content-Length", str(len(payload)))]
    if body is not None:
        headers.append(("Content-Type", "application/json"))
    if token:
        headers.append(("Authorization", f"Bearer {token}"))
    secure = parts.scheme == "https"
    request = h11.Request(method=method, target=(parts.path.rstrip("/") + path) or "/", headers=headers)
    async with asyncio.timeout(timeout):
        reader, writer = await asyncio.open_connection(
            parts.hostname, parts.port or (443 if secure else 80), ssl=secure or None
        )
        try:
            connection = h11.Connection(h11.CLIENT)
            writer.write(connection.send(request) or b"")
            if payload:
                writer.write(connection.send(h11.Data(data=payload)) or b"")
            writer.write(connection.send(h11.EndOfMessage()) or b"")
            return await _answer(connection, reader)
        except h11.ProtocolError as error:
            raise ConnectionError(f"not an HTTP answer: {error}") from error
        finally:
            writer.close()


async def _answer(connection: h11.Connection, reader: asyncio.StreamReader) -> tuple[int, Json]:
    status, content = 0, bytearray()
    while True:
        event = connection.next_event()
        if event is h11.NEED_DATA:
            connection.receive_data(await reader.read(65536))
        elif isinstance(event, h11.Response):
            status = event.status_code
        elif isinstance(event, h11.Data):
            content += event.data
            if len(content) > _MOST:
                raise ConnectionError(f"the answer is longer than {_MOST} bytes")
        elif isinstance(event, h11.EndOfMessage):
            return status, _json(bytes(content))
        elif isinstance(event, h11.ConnectionClosed):
            raise ConnectionError("the connection was closed before the answer was complete")


def _json(content: bytes) -> Json:
    try:
        return orjson.loads(content)
    except orjson.JSONDecodeError:
        return None
