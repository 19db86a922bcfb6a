"""The data plane (JSON-RPC at `/agentenv`) and the extensions of an env: how a step sets an episode up."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from agent_env.env.card import Card, Extension
from agent_env.env.failures import env_failure
from agent_env.env.http import EnvHttp, HttpError, Response
from agent_env.env.jsontext import dump, parse
from agent_env.errors import EpisodeFailure, FailureKind

Json = Any

RESET_TIMEOUT = 30.0
ADD_TIMEOUT = 120.0
GET_TIMEOUT = 30.0
EXTENSION_TIMEOUT = 30.0

_METHOD_NOT_FOUND = -32601
_HEADERS = (("Accept", "*/*"), ("Content-Type", "application/json"))
_TRIES = 3
"""of an extension call that says it was not applied and may be repeated"""


class NotServed(EpisodeFailure):
    """The env does not serve that data method. A LOAD_FAILED."""


async def data_reset(http: EnvHttp, *, card: Card | None = None, timeout: float = RESET_TIMEOUT) -> None:
    """Drop the env's data. Raises `EpisodeFailure`, as all of these do."""
    await _call(http, card, "data/reset", {}, timeout, idempotent=True)


async def data_add(
    http: EnvHttp, parts: Sequence[Json], *, card: Card | None = None, timeout: float = ADD_TIMEOUT
) -> None:
    """Load parts: text, data or file parts of the env protocol. What a failed call had taken stays taken."""
    await _call(http, card, "data/add", {"parts": list(parts)}, timeout, idempotent=False)


async def data_get(
    http: EnvHttp, *, card: Card | None = None, write_namespace: str | None = None, timeout: float = GET_TIMEOUT
) -> list[Json]:
    """The env's data, as parts. Non-finite numbers stay floats."""
    params = {} if write_namespace is None else {"write_namespace": write_namespace}
    result = await _call(http, card, "data/get", params, timeout, idempotent=True)
    parts = result.get("parts") if isinstance(result, dict) else None
    if not isinstance(parts, list):
        raise EpisodeFailure(FailureKind.ENV_PROTOCOL_ERROR, f"data/get: the result has no parts: {_short(result)}")
    return parts


async def call_extension(
    http: EnvHttp, card: Card, uri: str, args: Json, *, timeout: float = EXTENSION_TIMEOUT
) -> Json:
    """Call the first method of an extension. Repeated only when the env says that it did nothing and may be repeated.

    Raises:
        EpisodeFailure: LOAD_FAILED with the env's message; LOAD_TIMEOUT; ENV_UNREACHABLE and the kinds of a dead env;
            ENV_PROTOCOL_ERROR.
    """
    extension = card.extensions.get(uri)
    if extension is None:
        advertised = ", ".join(card.extensions) or "none"
        raise EpisodeFailure(
            FailureKind.LOAD_FAILED,
            f"the card of {card.name!r} does not advertise {uri!r} (it advertises: {advertised})",
        )
    deadline = time.monotonic() + timeout
    for tries_left in reversed(range(_TRIES)):
        response = await _send_extension(http, extension, args, max(0.001, deadline - time.monotonic()), timeout)
        if response.status < 400:
            return _json(response, uri)
        message, may_repeat = _refusal(response)
        if not (may_repeat and tries_left):
            break
    raise EpisodeFailure(FailureKind.LOAD_FAILED, f"{uri}: {message}")


async def _call(
    http: EnvHttp, card: Card | None, method: str, params: Json, timeout: float, *, idempotent: bool
) -> Json:
    if card is not None and card.operations is not None and method not in card.operations:
        raise NotServed(FailureKind.LOAD_FAILED, f"{method}: the card of {card.name!r} says it is not served")
    body = _dump({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}, method)
    path = card.data_path if card is not None else "/agentenv"
    response = await _exchange(http, method, "POST", path, body, timeout, timeout, idempotent=idempotent)
    if response.status != 200:
        raise EpisodeFailure(FailureKind.ENV_PROTOCOL_ERROR, f"{method}: {response.excerpt}")
    message = _json(response, method)
    if not isinstance(message, dict) or ("result" not in message and "error" not in message):
        raise EpisodeFailure(FailureKind.ENV_PROTOCOL_ERROR, f"{method}: no JSON-RPC answer: {response.excerpt}")
    error = message.get("error")
    if error is None:
        return message.get("result")
    code = error.get("code") if isinstance(error, dict) else None
    if code == _METHOD_NOT_FOUND:
        raise NotServed(FailureKind.LOAD_FAILED, f"{method}: the env does not serve it")
    text = error.get("message") if isinstance(error, dict) else error
    detail = error.get("data") if isinstance(error, dict) else None
    more = f" {_short(detail)}" if detail else ""
    raise EpisodeFailure(FailureKind.LOAD_FAILED, f"{method}: {text} (code {code}){more}")


async def _send_extension(http: EnvHttp, extension: Extension, args: Json, left: float, timeout: float) -> Response:
    if extension.verb == "GET":
        query = urlencode(args if isinstance(args, dict) else {}, doseq=True)
        joint = "&" if "?" in extension.path else "?"
        path = f"{extension.path}{joint}{query}" if query else extension.path
        return await _exchange(http, extension.uri, "GET", path, b"", left, timeout, idempotent=True)
    body = _dump(args if args is not None else {}, extension.uri)
    return await _exchange(http, extension.uri, extension.verb, extension.path, body, left, timeout, idempotent=False)


async def _exchange(
    http: EnvHttp, what: str, verb: str, path: str, body: bytes, left: float, timeout: float, *, idempotent: bool
) -> Response:
    headers = _HEADERS if body else _HEADERS[:1]
    try:
        return await http.request(verb, path, headers=headers, body=body, timeout=left, idempotent=idempotent)
    except TimeoutError:
        raise EpisodeFailure(FailureKind.LOAD_TIMEOUT, f"{what}: no answer within {timeout:g} s") from None
    except HttpError as error:
        raise await env_failure(http.sandbox, what, error) from error


def _refusal(response: Response) -> tuple[str, bool]:
    """(message, whether it may be repeated) of a 4xx or 5xx answer, which may carry no error object at all."""
    try:
        body = parse(response.body)
    except ValueError:
        body = None
    error = body.get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return response.excerpt, False
    hint = f" ({error['hint']})" if error.get("hint") else ""
    message = f"HTTP {response.status} {error.get('code')}: {error.get('message')}{hint}"
    return message, error.get("retryable") is True and error.get("applied") == "no"


def _json(response: Response, what: str) -> Json:
    try:
        return parse(response.body, keep_non_finite=True)
    except ValueError as error:
        reason = f"{what}: the answer is not JSON ({error}): {response.excerpt}"
        raise EpisodeFailure(FailureKind.ENV_PROTOCOL_ERROR, reason) from None


def _dump(value: Json, what: str) -> bytes:
    try:
        return dump(value)
    except ValueError as error:
        raise EpisodeFailure(FailureKind.LOAD_FAILED, f"{what}: the arguments {error}") from None


def _short(value: Json) -> str:
    text = str(value)
    return text if len(text) <= 300 else f"{text[:300]}..."
