"""Reads an OpenEnv server's Task API over HTTP: its name, version, splits and tasks (openenv 0.10.0)."""

from __future__ import annotations

import re
from types import TracebackType
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import orjson

from agent_env.errors import AgentEnvError, ConfigError
from agent_env.training.nemo_gym.rows import TaskEntry, read_entry

Json = Any

_TIMEOUT = httpx.Timeout(60.0, connect=10.0)
_PAGE = 500


def base_url(url: str) -> str:
    """`url` without its last slash. Raises ConfigError for one that is not http or https."""
    try:
        parts = urlsplit(url)
        port_ok = parts.port is None or parts.port > 0
    except ValueError:
        port_ok = False
    if not port_ok or parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"{url!r} is not a server's URL: it looks like http://127.0.0.1:8200")
    return url.rstrip("/")


class OpenEnvError(AgentEnvError):
    """An OpenEnv server does not answer, or not as it must. The message names its URL and says what to do."""


class TaskApi:
    """The Task API at `url`. Raises OpenEnvError, and ConfigError for a URL that is none."""

    def __init__(self, url: str, token: str | None = None) -> None:
        self.url = base_url(url)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._http = httpx.AsyncClient(headers=headers, timeout=_TIMEOUT, trust_env=False)

    async def __aenter__(self) -> TaskApi:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._http.aclose()

    async def environment(self) -> str:
        """The name under which the server lists its tasks."""
        names = await self._get("/list_environments")
        if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str) or not names[0]:
            raise self._odd("/list_environments", f"one environment's name is expected, it answers {_short(names)}")
        return names[0]

    async def digest(self) -> str | None:
        """The bundle's digest, which our servers give as their version; None from a server that gives another."""
        metadata = await self._get("/metadata")
        version = metadata.get("version") if isinstance(metadata, dict) else None
        return version if isinstance(version, str) and re.fullmatch("[0-9a-f]{64}", version) else None

    async def splits(self, env: str) -> list[str]:
        path = f"/{quote(env, safe='')}/splits"
        splits = await self._get(path)
        names = [split.get("name") for split in splits if isinstance(split, dict)] if isinstance(splits, list) else []
        if not names or not all(isinstance(name, str) for name in names):
            raise self._odd(path, f"a list of splits is expected, it answers {_short(splits)}")
        return [str(name) for name in names]

    async def tasks(self, env: str, split: str, start: int = 0, stop: int | None = None) -> list[TaskEntry]:
        """The tasks `start` to `stop` (not included) of `split`, fewer when there are fewer."""
        root = f"/{quote(env, safe='')}"
        total = (await self._post(f"{root}/num_tasks", {"split": split})).get("num_tasks")
        if not isinstance(total, int):
            raise self._odd(f"{root}/num_tasks", f"a number is expected, it answers {_short(total)}")
        stop = total if stop is None else min(stop, total)
        entries: list[TaskEntry] = []
        for first in range(start, stop, _PAGE):
            last = min(first + _PAGE, stop)
            path = f"{root}/task_range"
            rows = (await self._post(path, {"split": split, "start": first, "stop": last})).get("tasks")
            if not isinstance(rows, list) or len(rows) != last - first:
                raise self._odd(path, f"{last - first} tasks from {first} on are expected, it answers {_short(rows)}")
            entries += [read_entry(split, first + offset, row) for offset, row in enumerate(rows)]
        return entries

    async def _get(self, path: str) -> Json:
        return await self._request("GET", path, None)

    async def _post(self, path: str, body: Json) -> dict[str, Json]:
        answer = await self._request("POST", path, body)
        if not isinstance(answer, dict):
            raise self._odd(path, f"an object is expected, it answers {_short(answer)}")
        return answer

    async def _request(self, method: str, path: str, body: Json) -> Json:
        try:
            answer = await self._http.request(method, f"{self.url}{path}", json=body)
        except httpx.TimeoutException:
            raise OpenEnvError(f"the OpenEnv server at {self.url} does not answer {path} in time") from None
        except httpx.HTTPError as error:
            raise OpenEnvError(
                f"no OpenEnv server answers at {self.url} ({_cause(error)}): start it first, with "
                "`agent-env serve BUNDLE` for example"
            ) from None
        if answer.status_code in (401, 403):
            raise OpenEnvError(f"the OpenEnv server at {self.url} wants a token: give --openenv-token-file")
        if answer.status_code != 200:
            raise self._odd(path, f"HTTP {answer.status_code} {_short(answer.text)}")
        try:
            return orjson.loads(answer.content)
        except orjson.JSONDecodeError:
            raise self._odd(path, f"JSON is expected, it answers {_short(answer.text)}") from None

    def _odd(self, path: str, what: str) -> OpenEnvError:
        return OpenEnvError(f"{self.url}{path}: {what}; is it an OpenEnv server (openenv 0.10 or newer)?")


def _cause(error: BaseException) -> str:
    return str(error) or type(error).__name__


def _short(value: object) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 120 else f"{text[:120]}..."
