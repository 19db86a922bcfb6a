"""HTTP/1.1 to one env, over connections that its sandbox opens.

Small on purpose: kept-alive connections, bodies whole or as a stream, no proxies, cookies or TLS. A request whose
outcome is unknown is never sent twice; one that changes nothing may be, when a kept connection turns out to be closed.
Time limits are wall clock: an env that keeps sending comments does not outlive them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

import h11

from agent_env.sandbox.base import Sandbox

MAX_BODY = 256 << 20
"""bytes of one answer"""
READ_SIZE = 1 << 18
FRESH_FOR = 1.0
"""seconds for which an idle connection is trusted with a request that must not be sent twice: servers close idle ones
after two seconds or more"""
MAX_REDIRECTS = 3

Headers = Iterable[tuple[str, str]]


class HttpError(Exception):
    """A request failed; the message says how."""


class NoConnection(HttpError):
    """Nothing was sent: the env does not accept connections."""


class ConnectionLost(HttpError):
    """The connection ended before the answer did. The request may have been carried out."""


class BadAnswer(HttpError):
    """What came back is not HTTP/1.1, or is larger than the limit."""


@dataclass(frozen=True, slots=True)
class Response:
    """A whole answer. Header names are lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def content_type(self) -> str:
        """Without parameters, lower case."""
        return _content_type(self.headers)

    @property
    def excerpt(self) -> str:
        """Status and the start of the body, for messages."""
        return excerpt(self.status, self.body)


class Exchange:
    """An answer under way."""

    def __init__(self, connection: _Connection, status: int, headers: Mapping[str, str]) -> None:
        self._connection = connection
        self.status = status
        self.headers = headers

    @property
    def content_type(self) -> str:
        return _content_type(self.headers)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        total = 0
        while (data := await self._connection.body_part()) is not None:
            total += len(data)
            if total > MAX_BODY:
                raise BadAnswer(f"the answer is larger than {MAX_BODY} bytes")
            yield data

    async def read(self) -> bytes:
        return b"".join([part async for part in self.chunks()])

    async def finish(self, within: float) -> None:
        """Read what is left, if it comes soon, so that the connection can be used again."""
        try:
            async with asyncio.timeout(within):
                async for _ in self.chunks():
                    pass
        except (TimeoutError, HttpError):
            return


class EnvHttp:
    """Requests to one sandbox. Each request in flight has a connection of its own."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._idle: list[_Connection] = []
        self._closed = False

    async def request(
        self,
        method: str,
        path: str,
        *,
        headers: Headers = (),
        body: bytes = b"",
        timeout: float | None,
        idempotent: bool = False,
    ) -> Response:
        """Send a request and read the whole answer.

        Args:
            path: from the root, with the query.
            idempotent: carrying it out twice is as good as once.

        Raises:
            TimeoutError: no whole answer within `timeout` seconds.
            HttpError: see its subclasses.
        """
        async with asyncio.timeout(timeout):
            async with self.exchange(method, path, headers=headers, body=body, idempotent=idempotent) as exchange:
                return Response(exchange.status, exchange.headers, await exchange.read())

    @asynccontextmanager
    async def exchange(
        self, method: str, path: str, *, headers: Headers = (), body: bytes = b"", idempotent: bool = False
    ) -> AsyncIterator[Exchange]:
        """Send a request and hand out the answer once its headers are there. The caller holds the time limit."""
        for _ in range(MAX_REDIRECTS + 1):
            connection, status, answer_headers = await self._send(method, path, headers, body, idempotent)
            exchange = Exchange(connection, status, answer_headers)
            try:
                if status not in (307, 308):
                    yield exchange
                    return
                await exchange.read()
                path = self._redirected(answer_headers.get("location", ""))
            finally:
                self._release(connection)
        raise BadAnswer(f"more than {MAX_REDIRECTS} redirects, the last to {path}")

    async def aclose(self) -> None:
        """Close the idle connections; those in use are closed when their request ends."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()

    async def _send(
        self, method: str, path: str, headers: Headers, body: bytes, idempotent: bool
    ) -> tuple[_Connection, int, dict[str, str]]:
        head = [("Host", self.sandbox.authority), *headers]
        if body or method in ("POST", "PUT", "PATCH"):
            head.append(("Content-Length", str(len(body))))
        while True:
            connection = self._take_idle(idempotent) or await self._connect()
            try:
                status, answer_headers = await connection.send(method, path, head, body)
            except ConnectionLost:
                connection.close()
                if idempotent and connection.used and not connection.answered:
                    # It was kept alive and the env closed it meanwhile; a new one will tell.
                    continue
                raise
            except BaseException:
                connection.close()
                raise
            return connection, status, answer_headers

    def _take_idle(self, idempotent: bool) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and (idempotent or time.monotonic() - connection.idle_since < FRESH_FOR):
                connection.used = True
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        try:
            socket = await self.sandbox.connect()
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise NoConnection(f"can't connect: {why}") from error
        try:
            reader, writer = await asyncio.open_connection(sock=socket, limit=READ_SIZE)
        except BaseException:
            socket.close()
            raise
        return _Connection(reader, writer)

    def _release(self, connection: _Connection) -> None:
        if not self._closed and connection.make_ready():
            self._idle.append(connection)
        else:
            connection.close()

    def _redirected(self, location: str) -> str:
        parts = urlsplit(location)
        if not parts.path or (parts.hostname not in (None, "127.0.0.1", "localhost") and location):
            raise BadAnswer(f"redirected to {location!r}")
        return parts.path + (f"?{parts.query}" if parts.query else "")


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.CLIENT)
        self.used = False
        self.answered = False
        self.idle_since = 0.0

    @property
    def usable(self) -> bool:
        """Open, and nothing came in that nobody asked for."""
        return not (self._reader.at_eof() or self._writer.transport.is_closing() or self._http.trailing_data[0])

    async def send(
        self, method: str, path: str, headers: list[tuple[str, str]], body: bytes
    ) -> tuple[int, dict[str, str]]:
        """Status and headers of the answer."""
        self.answered = False
        try:
            data = self._http.send(h11.Request(method=method, target=path, headers=headers)) or b""
            if body:
                data += self._http.send(h11.Data(data=body)) or b""
            data += self._http.send(h11.EndOfMessage()) or b""
        except h11.LocalProtocolError as error:
            raise BadAnswer(f"{method} {path!r} can't be sent: {error}") from error
        writing: OSError | None = None
        try:
            self._writer.write(data)
            await self._writer.drain()
        except OSError as error:
            # The env may have answered (413, say) and closed before it took all: look before giving up.
            writing = error
        while True:
            try:
                event = await self._event()
            except ConnectionLost:
                if writing is not None:
                    raise ConnectionLost(f"the connection broke while sending: {writing}") from writing
                raise
            if isinstance(event, h11.Response):
                return event.status_code, {
                    name.decode("latin-1"): value.decode("latin-1") for name, value in event.headers
                }

    async def body_part(self) -> bytes | None:
        """The next piece of the body; None at its end."""
        while True:
            if self._http.their_state is not h11.SEND_BODY:
                return None
            event = await self._event()
            if isinstance(event, h11.Data):
                return bytes(event.data)
            if isinstance(event, h11.EndOfMessage):
                return None

    def make_ready(self) -> bool:
        """Prepare for the next request; False when the connection can't take one."""
        if self._http.our_state is not h11.DONE or self._http.their_state is not h11.DONE:
            return False
        self._http.start_next_cycle()
        self.idle_since = time.monotonic()
        return self.usable

    def close(self) -> None:
        self._writer.transport.abort()

    async def _event(self) -> h11.Event:
        ended = False
        while True:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                if ended:
                    raise ConnectionLost(_lost(self.answered)) from error
                raise BadAnswer(f"not HTTP/1.1: {error}") from error
            if event is h11.NEED_DATA:
                try:
                    data = await self._reader.read(READ_SIZE)
                except OSError as error:
                    raise ConnectionLost(f"{_lost(self.answered)}: {error}") from error
                ended = not data
                self.answered = self.answered or bool(data)
                self._http.receive_data(data)
            elif isinstance(event, h11.ConnectionClosed) or event is h11.PAUSED:
                raise ConnectionLost(_lost(self.answered))
            else:
                assert isinstance(event, h11.Event)
                return event


def excerpt(status: int, body: bytes, limit: int = 300) -> str:
    """`HTTP <status>` and the start of the body, on one line."""
    text = " ".join(body[: limit * 4].decode(errors="replace").split())
    return f"HTTP {status}" + (f" {text[:limit]}" if text else " without a body")


def _content_type(headers: Mapping[str, str]) -> str:
    return headers.get("content-type", "").partition(";")[0].strip().lower()


def _lost(answered: bool) -> str:
    return "the connection ended in the middle of the answer" if answered else "the connection ended without an answer"
