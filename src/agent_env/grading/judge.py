"""A judge: a model behind any OpenAI-compatible endpoint.

Where it is comes from the operator (`AGENT_ENV_JUDGE_BASE_URL`, `_MODEL`, `_API_KEY`) or, second, from the task. The
key goes to the operator's endpoint alone: a bundle must not choose who gets it.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx

from agent_env.errors import EpisodeFailure, FailureKind

Json = Any

TRIES = 3
LONGEST_PAUSE = 20.0
"""seconds between two tries, whatever the endpoint asks for"""
_AGAIN = frozenset({408, 409, 429, 500, 502, 503, 504})
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_SHOWN = 300


@dataclass(frozen=True, slots=True)
class JudgeSettings:
    """What the operator says of the judge; each wins over what a task says."""

    base_url: str | None = None
    """up to the `/v1`"""
    model: str | None = None
    key: str | None = field(default=None, repr=False)

    @classmethod
    def from_environment(cls) -> JudgeSettings:
        names = ("BASE_URL", "MODEL", "API_KEY")
        base_url, model, key = (os.environ.get(f"AGENT_ENV_JUDGE_{name}") or None for name in names)
        return cls(base_url, model, key)


class Judge:
    """Asks the judge. Belongs to one event loop from its first question on."""

    def __init__(self, settings: JudgeSettings | None = None) -> None:
        self.settings = settings or JudgeSettings.from_environment()
        self._clients: dict[bool, httpx.AsyncClient] = {}

    def problem(self, *, base_url: str | None, model: str | None) -> str | None:
        """Why a task that names these can't be judged."""
        base_url = self.settings.base_url or base_url
        if base_url is None:
            return "no judge is set: give its endpoint as AGENT_ENV_JUDGE_BASE_URL (and AGENT_ENV_JUDGE_API_KEY)"
        try:
            url = httpx.URL(base_url)
        except httpx.InvalidURL as error:
            return f"the judge's endpoint {base_url!r}: {error}"
        if url.scheme not in ("http", "https") or not url.host:
            return f"the judge's endpoint {base_url!r} is no URL like http://127.0.0.1:8000/v1"
        if (self.settings.model or model) is None:
            return "no judge model is set: name it as AGENT_ENV_JUDGE_MODEL, or as the step's default_model"
        return None

    async def ask(
        self,
        prompt: str,
        *,
        base_url: str | None,
        model: str | None,
        schema: Json,
        timeout: float,
        arguments: Mapping[str, Json] | None = None,
    ) -> str:
        """The judge's answer to one message. `base_url` and `model` are the task's; `timeout` is in seconds, in all.

        Raises:
            EpisodeFailure: JUDGE_FAILED with the endpoint's answer.
        """
        if why := self.problem(base_url=base_url, model=model):
            raise EpisodeFailure(FailureKind.JUDGE_FAILED, why)
        url = f"{(self.settings.base_url or base_url or '').rstrip('/')}/chat/completions"
        body: dict[str, Json] = {
            "model": self.settings.model or model,
            "messages": [{"role": "user", "content": prompt}],
            **(arguments or {}),
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "verdicts", "schema": schema, "strict": True},
            },
        }
        try:
            async with asyncio.timeout(timeout):
                return _content(url, await self._post(url, body))
        except TimeoutError:
            raise _failed(f"{url}: no answer within {timeout:g} s") from None

    async def aclose(self) -> None:
        clients, self._clients = list(self._clients.values()), {}
        for client in clients:
            await client.aclose()

    async def _post(self, url: str, body: dict[str, Json]) -> httpx.Response:
        for tried in range(1, TRIES + 1):
            pause = min(LONGEST_PAUSE, 0.5 * 2**tried) * random.uniform(0.5, 1.0)
            try:
                response = await self._client(url).post(url, json=body, headers=self._headers())
            except httpx.TransportError as error:
                if tried == TRIES:
                    raise _failed(f"{url}: {str(error) or type(error).__name__}") from error
            else:
                if response.is_success:
                    return response
                if response.status_code == 400 and "response_format" in body and _about_format(response):
                    del body["response_format"]
                    continue
                if response.status_code not in _AGAIN or tried == TRIES:
                    raise _failed(f"{url}: HTTP {response.status_code}: {_short(response.text)}")
                pause = min(LONGEST_PAUSE, _retry_after(response) or pause)
            await asyncio.sleep(pause)
        raise _failed(f"{url}: refused with and without response_format")

    def _client(self, url: str) -> httpx.AsyncClient:
        outside = httpx.URL(url).host not in _LOOPBACK
        if outside not in self._clients:
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            timeout = httpx.Timeout(None, connect=10.0)
            self._clients[outside] = httpx.AsyncClient(limits=limits, timeout=timeout, trust_env=outside)
        return self._clients[outside]

    def _headers(self) -> dict[str, str]:
        """The key only where the operator named the endpoint."""
        if self.settings.key and self.settings.base_url:
            return {"Authorization": f"Bearer {self.settings.key}"}
        return {}


def _content(url: str, response: httpx.Response) -> str:
    try:
        content = response.json()["choices"][0]["message"]["content"]
    except (ValueError, KeyError, IndexError, TypeError):
        raise _failed(f"{url}: the answer is no chat completion: {_short(response.text)}") from None
    if isinstance(content, list):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _about_format(response: httpx.Response) -> bool:
    text = response.text.lower()
    return "response_format" in text or "json_schema" in text or "structured output" in text


def _retry_after(response: httpx.Response) -> float | None:
    value = response.headers.get("Retry-After", "")
    return float(value) if value.replace(".", "", 1).isdigit() else None


def _failed(reason: str) -> EpisodeFailure:
    return EpisodeFailure(FailureKind.JUDGE_FAILED, reason)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SHOWN else f"{line[:_SHOWN]}..."
