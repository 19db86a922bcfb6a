"""HTTP/1.1 requests as verifiers 0.4.0 sends them, at a fraction of its cost: `h11` on asyncio streams.

By default every request has a connection of its own, as there; `pooled` keeps connections for the next request. The
time limit is per connect, write and read, not for the whole answer: a server that keeps sending is never cut off.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlsplit

import h11

from agent_env.errors import AgentEnvError, ConfigError

_READ = 64 * 1024
_PATH_SAFE = "/?&=:@!$'()*+,;~%-._"


class TransportError(AgentEnvError):
    """A request got no whole answer. `text` is what verifiers makes of it as a tool's result."""

    def __init__(self, message: str, text: str) -> None:
        self.text = text
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    headers: tuple[tuple[str, str], ...]
    """names in lower case"""
    body: bytes

    @property
    def ok(self) -> bool:
        return 200 <= self.status < 300

    @property
    def text(self) -> str:
        """The body in the charset that the content type names, else UTF-8."""
        content_type = next((value for name, value in self.headers if name == "content-type"), "")
        charset = content_type.lower().partition("charset=")[2].split(";")[0].strip("\"' ") or "utf-8"
        try:
            return self.body.decode(charset, "replace")
        except LookupError:
            return self.body.decode("utf-8", "replace")


class _Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.h11 = h11.Connection(h11.CLIENT, max_incomplete_event_size=256 * 1024)

    def close(self) -> None:
        self.writer.close()


class Http:
    """Requests to one server. Raises ConfigError for a bad URL, TransportError for an answer that does not come."""

    def __init__(
        self, url: str, *, timeout: float = 600.0, headers: Mapping[str, str] | None = None, pooled: bool = False
    ) -> None:
        self.url = url.rstrip("/")
        try:
            parts = urlsplit(self.url)
            port = parts.port
        except ValueError:
            raise ConfigError(f"{url!r} is not a server's URL") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{url!r} is not a server's URL: it looks like http://127.0.0.1:9100")
        self._timeout = timeout
        self._host = parts.hostname
        self._port = port or (443 if parts.scheme == "https" else 80)
        self._tls = ssl.create_default_context() if parts.scheme == "https" else None
        self._root = parts.path
        self._headers = [
            ("Host", parts.netloc.rpartition("@")[2]),
            ("Accept", "*/*"),
            ("User-Agent", "agent-env"),
            *(headers or {}).items(),
            ("Content-Type", "application/json"),
        ]
        self._pooled = pooled
        self._idle: list[_Connection] = []

    async def check(self) -> None:
        """Raises TransportError that names the URL when nothing listens there."""
        try:
            (await self._connect()).close()
        except TransportError as error:
            raise TransportError(f"no server answers at {self.url}: {error}; start it first", error.text) from None

    async def post(self, path: str, body: bytes, cookie: str | None = None) -> Answer:
        """`path` begins with a slash; it is quoted but for URL syntax, as httpx does."""
        return await self._request("POST", path, body, cookie)

    async def get(self, path: str) -> Answer:
        return await self._request("GET", path, b"", None)

    async def _request(self, method: str, path: str, body: bytes, cookie: str | None) -> Answer:
        connection = self._reusable() or await self._connect()
        try:
            answer = await self._exchange(connection, method, path, body, cookie)
        except BaseException:
            connection.close()
            raise
        if self._pooled and connection.h11.our_state is h11.DONE and connection.h11.their_state is h11.DONE:
            connection.h11.start_next_cycle()
            self._idle.append(connection)
        else:
            connection.close()
        return answer

    async def aclose(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def _reusable(self) -> _Connection | None:
        while self._idle:
            connection = self._idle.pop()
            if not connection.reader.at_eof():
                return connection
            connection.close()
        return None

    async def _connect(self) -> _Connection:
        try:
            async with asyncio.timeout(self._timeout):
                return _Connection(*await asyncio.open_connection(self._host, self._port, ssl=self._tls))
        except TimeoutError:
            raise TransportError(f"no connection within {self._timeout:g} s", "") from None
        except OSError as error:
            raise TransportError(str(error), "All connection attempts failed") from None

    async def _exchange(
        self, connection: _Connection, method: str, path: str, body: bytes, cookie: str | None
    ) -> Answer:
        headers = [*self._headers, ("Content-Length", str(len(body)))]
        if cookie:
            headers.append(("Cookie", cookie))
        target = quote(f"{self._root}{path}", safe=_PATH_SAFE)
        events = (h11.Request(method=method, target=target, headers=headers), h11.Data(body), h11.EndOfMessage())
        connection.writer.write(b"".join(connection.h11.send(event) or b"" for event in events))
        try:
            async with asyncio.timeout(self._timeout):
                await connection.writer.drain()
            return await self._receive(connection)
        except TimeoutError:
            raise TransportError(f"no answer within {self._timeout:g} s", "") from None
        except (OSError, h11.RemoteProtocolError) as error:
            raise TransportError(
                f"the connection was lost: {error}", "Server disconnected without sending a response."
            ) from None

    async def _receive(self, connection: _Connection) -> Answer:
        head: h11.Response | None = None
        parts: list[bytes] = []
        while True:
            event = connection.h11.next_event()
            if event is h11.NEED_DATA:
                async with asyncio.timeout(self._timeout):
                    connection.h11.receive_data(await connection.reader.read(_READ))
            elif isinstance(event, h11.Response):
                head = event
            elif isinstance(event, h11.Data):
                parts.append(bytes(event.data))
            elif isinstance(event, h11.EndOfMessage) and head is not None:
                headers = tuple((name.decode("latin-1"), value.decode("latin-1")) for name, value in head.headers)
                return Answer(head.status_code, headers, b"".join(parts))
            elif not isinstance(event, h11.InformationalResponse):
                raise h11.RemoteProtocolError("it ended before the answer")


def cookie_header(answer: Answer) -> str | None:
    """The `Cookie` header made of an answer's `Set-Cookie`s: names and values only, deleted ones left out.

    Raises ValueError when one name comes with two paths or domains: verifiers can't tell which is meant, either.
    """
    found: dict[str, tuple[str, str]] = {}
    for name, value in answer.headers:
        if name != "set-cookie":
            continue
        pair, *attributes = (part.strip() for part in value.split(";"))
        key, _, content = pair.partition("=")
        place = ";".join(sorted(part for part in attributes if part.lower().startswith(("path=", "domain="))))
        if any(part.lower().replace(" ", "") == "max-age=0" for part in attributes):
            continue
        if key in found and found[key][1] != place:
            raise ValueError(f"the cookie {key} is set twice, for different paths or domains")
        found[key] = (content, place)
    return "; ".join(f"{key}={content}" for key, (content, _) in found.items()) or None
