"""Chat completions of an OpenAI-compatible endpoint, with tools, not streamed."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from agent_env.commands.seat import ToolCall
from agent_env.errors import AgentEnvError, ConfigError

Json = Any

TRIES = 4
LONGEST_PAUSE = 30.0
"""seconds between two tries, whatever the endpoint asks for"""
_AGAIN = frozenset({408, 409, 429, 500, 502, 503, 504})
_HOPELESS = frozenset({401, 403, 404})
"""a wrong key, model or URL"""
_SHOWN = 300


class ModelFailed(AgentEnvError):
    """The endpoint gave no usable answer to one request."""


class EndpointRefuses(AgentEnvError):
    """The endpoint will answer no request of this command."""


@dataclass(frozen=True, slots=True)
class Reply:
    text: str
    calls: tuple[ToolCall, ...]


class ChatModel:
    """One model. Requests may run at once.

    Args:
        base_url: up to the `/v1`; `/chat/completions` is added.
        key: sent as bearer token; None: none is sent.
        arguments: more fields of every request, such as `temperature`.
        timeout: seconds for one answer.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        *,
        key: str | None = None,
        arguments: Mapping[str, Json] | None = None,
        timeout: float = 600.0,
    ) -> None:
        try:
            url = httpx.URL(base_url)
        except httpx.InvalidURL as error:
            raise ConfigError(f"--base-url {base_url}: {error}") from None
        if url.scheme not in ("http", "https") or not url.host:
            raise ConfigError(f"--base-url {base_url}: write a URL like http://127.0.0.1:8000/v1")
        self.name = name
        self.url = f"{base_url.rstrip('/')}/chat/completions"
        self._arguments = dict(arguments or {})
        self._timeout = timeout
        self._answered = False
        self._http = httpx.AsyncClient(
            headers={"Authorization": f"Bearer {key}"} if key else None,
            timeout=httpx.Timeout(None, connect=min(timeout, 10.0)),
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=256),
            trust_env=url.host not in ("127.0.0.1", "localhost", "::1"),
        )

    async def aclose(self) -> None:
        await self._http.aclose()

    async def reply(self, messages: Sequence[Mapping[str, Json]], tools: Sequence[Mapping[str, Json]]) -> Reply:
        """The model's next message. `tools` are function tools as rows hold them.

        Raises:
            EndpointRefuses: nobody listens there, or the key, the model or the path is wrong; told by the first
                request only.
            ModelFailed: no usable answer after a few tries.
        """
        body = {"model": self.name, "messages": list(messages), **self._arguments}
        if tools:
            body["tools"] = [_chat_tool(tool) for tool in tools]
        answer = await self._post(body)
        self._answered = True
        return _read(answer)

    async def _post(self, body: Mapping[str, Json]) -> Json:
        for tried in range(1, TRIES + 1):
            pause = min(LONGEST_PAUSE, 0.5 * 2**tried) * random.uniform(0.5, 1.0)
            try:
                async with asyncio.timeout(self._timeout):
                    response = await self._http.post(self.url, content=_dumps(body), headers=_JSON)
            except TimeoutError:
                raise ModelFailed(f"{self.url}: no answer within {self._timeout:g} s (--request-timeout)") from None
            except httpx.TransportError as error:
                if tried == TRIES:
                    raise self._failed(str(error) or type(error).__name__, error) from None
            else:
                if response.is_success:
                    return _json(self.url, response)
                if response.status_code not in _AGAIN or tried == TRIES:
                    raise self._refused(response)
                pause = min(LONGEST_PAUSE, _retry_after(response) or pause)
            await asyncio.sleep(pause)
        raise AssertionError("the last try returns or raises")

    def _failed(self, why: str, error: httpx.TransportError) -> AgentEnvError:
        nobody = isinstance(error, httpx.ConnectError | httpx.ConnectTimeout) and not self._answered
        if nobody:
            return EndpointRefuses(f"no model answers at {self.url}: {why}: check --base-url")
        return ModelFailed(f"{self.url}: {why}")

    def _refused(self, response: httpx.Response) -> AgentEnvError:
        why = f"{self.url}: HTTP {response.status_code}: {_detail(response)}"
        if response.status_code in _HOPELESS and not self._answered:
            return EndpointRefuses(f"{why}: check --model, --base-url and the key (--api-key-var)")
        return ModelFailed(why)


_JSON = {"Content-Type": "application/json"}


def _dumps(body: Mapping[str, Json]) -> bytes:
    return json.dumps(body).encode()  # escapes carry what UTF-8 can't, such as half of a surrogate pair


def _chat_tool(tool: Mapping[str, Json]) -> dict[str, Json]:
    function = {key: tool[key] for key in ("name", "description", "parameters") if key in tool}
    return {"type": "function", "function": function}


def _json(url: str, response: httpx.Response) -> Json:
    try:
        return response.json()
    except ValueError:
        raise ModelFailed(f"{url}: the answer is not JSON: {_short(response.text)}") from None


def _read(answer: Json) -> Reply:
    try:
        message = answer["choices"][0]["message"]
        text = _text(message.get("content"))
        calls = tuple(_call(call) for call in message.get("tool_calls") or ())
    except (KeyError, IndexError, TypeError, AttributeError):
        raise ModelFailed(f"the answer is no chat completion: {_short(json.dumps(answer))}") from None
    return Reply(text, calls)


def _text(content: Json) -> str:
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _call(call: Mapping[str, Json]) -> ToolCall:
    function = call["function"]
    raw = function.get("arguments")
    arguments = raw if isinstance(raw, str) else json.dumps({} if raw is None else raw)
    return ToolCall(str(function["name"]), arguments, str(call.get("id") or ""))


def _detail(response: httpx.Response) -> str:
    try:
        error = response.json().get("error")
    except (ValueError, AttributeError):
        error = None
    message = error.get("message") if isinstance(error, dict) else error
    return _short(message if isinstance(message, str) else response.text)


def _retry_after(response: httpx.Response) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.replace(".", "", 1).isdigit() else None


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
