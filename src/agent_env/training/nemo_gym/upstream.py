"""The OpenEnv servers behind this one: which kind each is, and how a session gets its place.

Until the reset is sent everything that passes by itself is tried again: a full server, a connection that takes too
long, a server that restarts. After it nothing is, since a second reset would be a second episode.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.training.nemo_gym.openenv_client import EpisodeLink, ServerFull
from agent_env.training.nemo_gym.openenv_http import fetch
from agent_env.training.nemo_gym.openenv_replies import Started, TaskName
from agent_env.training.nemo_gym.options import ServeOptions
from agent_env.training.nemo_gym.wire import Row, WireError

Json = Any
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0
_MOST_NAMES = 100_000


class Server:
    """One OpenEnv server."""

    def __init__(self, url: str, env: str, options: ServeOptions) -> None:
        self.url = url.rstrip("/")
        self.sessions = 0
        """Those that play there or wait for a place."""
        self.trouble_at = float("-inf")
        """When it last took no session."""
        self._env = env
        self._options = options
        self._ours: bool | None = None
        self._places = 1
        self._asking = asyncio.Lock()
        self._names: dict[tuple[str, int], str] = {}

    async def ours(self) -> bool:
        """Whether the server is one of ours: those tell their capacity, and answer a reset before the env is ready."""
        async with self._asking:
            if self._ours is None:
                status, body = await fetch(self.url, "GET", "/capacity", token=self._options.openenv_token)
                places = body.get("places") if status == 200 and isinstance(body, dict) else None
                self._ours = isinstance(places, int) and places > 0
                self._places = places if isinstance(places, int) and places > 0 else 1
            return self._ours

    @property
    def load(self) -> float:
        return self.sessions / self._places

    def forget(self) -> None:
        """The server went away: another may come back in its place."""
        self._ours = None
        self._names.clear()

    async def capacity(self) -> Json:
        try:
            status, body = await fetch(self.url, "GET", "/capacity", token=self._options.openenv_token, timeout=3)
        except (OSError, TimeoutError) as error:
            return {"url": self.url, "error": str(error) or "no answer in time"}
        return {"url": self.url, **body} if status == 200 and isinstance(body, dict) else None

    async def open(self) -> EpisodeLink:
        return await EpisodeLink.connect(
            self.url,
            ours=await self.ours(),
            max_output=self._options.max_output,
            token=self._options.openenv_token,
        )

    async def task_name(self, row: Row) -> str | None:
        """The name of the row's task, asked before the reset of a server that answers it late. None: it doesn't say.

        Raises WireError when the server has no such task.
        """
        key = (row.split, row.index)
        if key not in self._names:
            body = {"split": row.split, "index": row.index}
            status, answer = await fetch(
                self.url, "POST", f"/{self._env}/task", body, token=self._options.openenv_token
            )
            if status in (400, 422):
                raise WireError(f"split, index: the bundle has no task {row.index} in split {row.split!r}", 409)
            task = answer.get("task", answer) if status == 200 and isinstance(answer, dict) else None
            if not isinstance(task, dict) or not isinstance(task.get("name"), str):
                return None
            if len(self._names) >= _MOST_NAMES:
                self._names.clear()
            self._names[key] = task["name"]
        return self._names[key]


class Upstream:
    def __init__(self, urls: Sequence[str], env: str, options: ServeOptions) -> None:
        self._servers = [Server(url, env, options) for url in urls]
        self._options = options

    async def open(self, row: Row) -> tuple[EpisodeLink, Started, Server]:
        """A link whose place is granted (or, on servers of others, whose session is open and whose reset is under way).

        Raises EpisodeFailure when none is to be had, WireError when the row names no task of the bundle.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        refused_since: float | None = None
        pause, last = _FIRST_PAUSE, ""
        while True:
            left = self._options.reset_timeout - (loop.time() - began)
            if left <= 0:
                waited = f"waited {loop.time() - began:.0f} s for a place (--reset-timeout)"
                raise EpisodeFailure(FailureKind.CAPACITY, f"{waited}{last and ': ' + last}")
            server = self._next(loop.time())
            try:
                return (*await self._place(server, row, left), server)
            except ServerFull as full:
                refused_since, last = None, f"{server.url} is full: {full}"
                server.trouble_at = loop.time()
            except TimeoutError:
                refused_since, last = None, f"{server.url} does not take the connection in time"
                server.trouble_at = loop.time()
            except OSError as error:
                server.forget()
                server.trouble_at = loop.time()
                refused_since = loop.time() if refused_since is None else refused_since
                last = f"no OpenEnv server answers at {server.url}: {error}"
                if loop.time() - refused_since >= self._options.refused_for:
                    raise EpisodeFailure(FailureKind.PROVIDER_UNAVAILABLE, last) from None
            await asyncio.sleep(min(pause * random.uniform(0.5, 1.5), max(left, 0)))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def capacity(self) -> list[Json]:
        """What each server tells of its places; None for one that tells nothing."""
        return list(await asyncio.gather(*(server.capacity() for server in self._servers)))

    def _next(self, now: float) -> Server:
        """The least used server; one that took no session of late only when the others didn't either."""
        return min(
            self._servers,
            key=lambda server: (
                server.trouble_at if now - server.trouble_at < _LONGEST_PAUSE else 0.0,
                server.load,
            ),
        )

    async def _place(self, server: Server, row: Row, timeout: float) -> tuple[EpisodeLink, Started]:
        """The server counts the session from here on, until the session says that it is over."""
        server.sessions += 1
        try:
            return await self._reset(server, row, timeout)
        except BaseException:
            server.sessions -= 1
            raise

    async def _reset(self, server: Server, row: Row, timeout: float) -> tuple[EpisodeLink, Started]:
        ours = await server.ours()
        name = None if ours else await server.task_name(row)
        if name is not None:
            check_name(row, TaskName(name, row.split, row.index))
        link = await server.open()
        try:
            return link, await link.reset(row.split, row.index, timeout)
        except BaseException:
            link.abort()
            raise


def check_name(row: Row, task: TaskName) -> None:
    """Raises WireError 409 when the row was written for another task than the server plays at its place."""
    if row.name is not None and row.name != task.name.rsplit("/", 1)[-1]:
        raise WireError(
            f"task_id: the row is for the task {row.name!r}, but split {row.split!r}, index {row.index} of the served "
            f"bundle is {task.name!r}; write the rows again for this bundle",
            409,
        )
