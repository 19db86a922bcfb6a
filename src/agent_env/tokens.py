"""Bearer tokens (RFC 6750): read from a file, asked for by our servers, compared in constant time."""

from __future__ import annotations

import base64
import hmac
import ipaddress
from collections.abc import Collection, Iterable, MutableMapping
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Receive, Scope, Send

from agent_env.errors import ConfigError

CHALLENGE = (b"www-authenticate", b"Bearer")
"""the header of a 401"""
PASSWORD = (b"www-authenticate", b'Basic realm="the token is the password, any name will do"')
"""the same of a page, from which on a browser asks its user"""
NEEDED = "a bearer token is needed (--token-file)"
LEAST = 8
"""characters of a token: shorter ones are guessed, and logs could not keep them out"""
_BODY = b'{"detail":"' + NEEDED.encode() + b'"}'


def read_token(path: str | None, flag: str = "--token-file") -> str | None:
    """The token in a file that was given with `flag`. A ConfigError names the file."""
    if path is None:
        return None
    try:
        text = Path(path).read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't read the token: {error}") from None
    if not text:
        raise ConfigError(f"{path}: no token stands in it; make one with: openssl rand -hex 32 > {path}")
    return check_token(text, f"{path} ({flag})")


def check_token(text: str, where: str = "token") -> str:
    """Raises ConfigError, which says where it stood and never what it is."""
    if not text or any(not 32 < ord(character) < 127 for character in text):
        raise ConfigError(f"{where}: a token is one line of visible ASCII characters")
    if len(text) < LEAST:
        raise ConfigError(f"{where}: a token has at least {LEAST} characters; make one with: openssl rand -hex 32")
    return text


def refuse_strangers(host: str, token: str | None) -> None:
    """Raises ConfigError for an address that others can reach when no token keeps them out."""
    if token is None and not _is_loopback(host):
        raise ConfigError(f"--host {host}: everybody there could play episodes: give --token-file too")


def allowed(headers: Iterable[tuple[bytes, bytes]], token: str | None, *, page: bool = False) -> bool:
    """Whether a request with these headers (names in lower case) carries the token. The scheme's case is free.

    `page`: it may be the password of a Basic login as well, which is all that browsers offer. Not for what changes
    anything: a browser sends that login along with the requests of strangers' pages too.
    """
    if token is None:
        return True
    given = next((value for name, value in headers if name == b"authorization"), b"")
    scheme, _, credentials = given.partition(b" ")
    if page and scheme.lower() == b"basic":
        scheme, credentials = b"bearer", _password(credentials)
    return hmac.compare_digest(credentials.strip(), token.encode()) and scheme.lower() == b"bearer"


def _password(credentials: bytes) -> bytes:
    try:
        return base64.b64decode(credentials, validate=True).partition(b":")[2]
    except ValueError:
        return b""


class TokenNeeded:
    """ASGI middleware: 401 to every HTTP request and every websocket's handshake without the token, but for the `free`
    paths. People read the `pages` in a browser."""

    def __init__(self, app: ASGIApp, token: str, free: Collection[str], pages: Collection[str] = ()) -> None:
        self._app = app
        self._token = token
        self._free = frozenset(free)
        self._pages = frozenset(pages)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = "" if scope["type"] == "lifespan" else _path(scope)
        page = path in self._pages
        if scope["type"] == "lifespan" or path in self._free or allowed(scope["headers"], self._token, page=page):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await _refuse(send, "http.response", PASSWORD if page else CHALLENGE)
        elif "websocket.http.response" in (scope.get("extensions") or {}):
            await receive()
            await _refuse(send, "websocket.http.response")
        else:
            await receive()
            await send({"type": "websocket.close", "code": 1008, "reason": NEEDED})


async def _refuse(send: Send, kind: str, challenge: tuple[bytes, bytes] = CHALLENGE) -> None:
    length = (b"content-length", str(len(_BODY)).encode())
    headers = [(b"content-type", b"application/json"), length, challenge]
    await send({"type": f"{kind}.start", "status": 401, "headers": headers})
    await send({"type": f"{kind}.body", "body": _BODY})


def _path(scope: MutableMapping[str, Any]) -> str:
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", "")) if scope["type"] == "http" else ""


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
