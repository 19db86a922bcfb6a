"""An env's card: what it calls itself, where its endpoints are, and the sign that it is ready."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from agent_env.env.failures import death, last_lines
from agent_env.env.http import EnvHttp, HttpError, Response
from agent_env.env.jsontext import parse
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.base import Sandbox

Json = Any

CARD_PATH = "/.well-known/agent-env.json"
CARD_TIMEOUT = 10.0
"""seconds for one answer; an env whose tool blocks its loop answers late"""
_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.05
_LOOK_EVERY = 0.2
"""seconds between looks whether its process is still there, which some providers have to ask a daemon for"""


@dataclass(frozen=True, slots=True)
class Extension:
    """An operation beside MCP, called by plain HTTP."""

    uri: str
    verb: str
    path: str


@dataclass(frozen=True, slots=True)
class Card:
    """The card, read."""

    name: str
    mcp_path: str = "/mcp"
    data_path: str = "/agentenv"
    operations: tuple[str, ...] | None = None
    """data methods that it serves; None when the card does not say, which means all"""
    extensions: Mapping[str, Extension] = field(default_factory=dict)
    """by uri"""
    raw: Mapping[str, Json] = field(default_factory=dict)


class NotReady(Exception):
    """What answered is no card (yet)."""


async def wait_ready(
    sandbox: Sandbox, *, timeout: float, expected_name: str | None = None, http: EnvHttp | None = None
) -> Card:
    """Ask for the card until it comes.

    Args:
        timeout: seconds from now.
        expected_name: the name it must carry.
        http: what to ask with; it stays open.

    Raises:
        EpisodeFailure: DEPLOY_TIMEOUT with the last reason; ENV_CRASHED, PROVIDER_OOM_KILLED or SANDBOX_LOST as soon
            as its process is gone; DEPLOY_FAILED when it carries another name.
    """
    last = "it was not asked yet"
    given, http = http, http or EnvHttp(sandbox)
    pause = _FIRST_PAUSE
    look_at = started = time.monotonic()
    try:
        async with asyncio.timeout(timeout):
            while True:
                try:
                    response = await http.request("GET", CARD_PATH, timeout=CARD_TIMEOUT, idempotent=True)
                    card = read_card(response)
                    break
                except (HttpError, NotReady) as error:
                    last = str(error)
                except TimeoutError:
                    last = f"the card did not come within {CARD_TIMEOUT:g} s"
                if (now := time.monotonic()) >= look_at:
                    look_at = now + _LOOK_EVERY
                    state = await sandbox.state()
                    if not state.running:
                        raise await death(sandbox, state, f"starting, {now - started:.1f} s in")
                await asyncio.sleep(pause)
                pause = min(pause * 1.5, _LONGEST_PAUSE)
    except TimeoutError:
        reason = f"the env was not ready after {timeout:g} s: {last}{await last_lines(sandbox)}"
        raise EpisodeFailure(FailureKind.DEPLOY_TIMEOUT, reason) from None
    finally:
        if given is None:
            await http.aclose()
    if expected_name is not None and card.name != expected_name:
        raise EpisodeFailure(
            FailureKind.DEPLOY_FAILED, f"the env's card is named {card.name!r}, the bundle calls it {expected_name!r}"
        )
    return card


def read_card(response: Response) -> Card:
    """Raises `NotReady` when the answer is no card."""
    if response.status != 200:
        raise NotReady(f"{CARD_PATH} answered {response.excerpt}")
    try:
        raw = parse(response.body)
    except ValueError:
        raise NotReady(f"{CARD_PATH} is not JSON: {response.excerpt}") from None
    name = raw.get("name") if isinstance(raw, dict) else None
    if not isinstance(name, str) or not name:
        raise NotReady(f"{CARD_PATH} has no name: {response.excerpt}")
    capabilities = raw.get("capabilities")
    capabilities = capabilities if isinstance(capabilities, dict) else {}
    operations = capabilities.get("operations")
    return Card(
        name=name,
        mcp_path=_mcp_path(raw.get("additionalInterfaces")),
        data_path=_path(raw.get("url")) or "/agentenv",
        operations=tuple(map(str, operations)) if isinstance(operations, list) else None,
        extensions=_extensions(capabilities.get("extensions")),
        raw=raw,
    )


def _mcp_path(interfaces: Json) -> str:
    for entry in interfaces if isinstance(interfaces, list) else []:
        if isinstance(entry, dict) and entry.get("transport") == "mcp" and (path := _path(entry.get("url"))):
            return path
    return "/mcp"


def _extensions(entries: Json) -> dict[str, Extension]:
    found: dict[str, Extension] = {}
    for entry in entries if isinstance(entries, list) else []:
        if not isinstance(entry, dict) or not isinstance(uri := entry.get("uri"), str):
            continue
        params = entry["params"] if isinstance(entry.get("params"), dict) else {}
        methods = params["methods"] if isinstance(params.get("methods"), dict) else {}
        name, method = next(iter(methods.items()), ("", {}))
        method = method if isinstance(method, dict) else {}
        path = (
            _path(method.get("endpoint")) or _path(params.get("endpoint")) or (f"/agentenv/ext/{name}" if name else "")
        )
        if path:
            found[uri] = Extension(uri, str(method.get("method") or "POST").upper(), path)
    return found


def _path(url: Json) -> str:
    """Path and query of an absolute or relative URL; empty when there is none."""
    if not isinstance(url, str) or not url:
        return ""
    parts = urlsplit(url)
    path = parts.path if parts.path.startswith("/") else f"/{parts.path}"
    return path + (f"?{parts.query}" if parts.query else "")
