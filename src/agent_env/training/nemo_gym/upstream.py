"""The OpenEnv servers behind this one, and how a session gets its place among them.

A new session goes to the server with the most free places. Until the reset is sent everything that passes by itself is
tried again: a full server, a connection that takes too long, a server that restarts. After it nothing is, since a
second reset would be a second episode.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from agent_env.errors import ConfigError, EpisodeFailure, FailureKind
from agent_env.training.nemo_gym.openenv_client import EpisodeLink, ServerFull
from agent_env.training.nemo_gym.openenv_list import read_servers
from agent_env.training.nemo_gym.openenv_replies import Started, TaskName
from agent_env.training.nemo_gym.openenv_server import Server
from agent_env.training.nemo_gym.options import ServeOptions
from agent_env.training.nemo_gym.wire import Row, WireError

__all__ = ["Server", "Upstream", "check_name"]

Json = Any
log = logging.getLogger("agent_env.serve")

LOOK_EVERY = 1.0
"""seconds between two looks at each server, and at the file that lists them"""
_FIRST_LOOKS = 0.5
"""Seconds that the first sessions wait for what the servers tell; who is slower gets later ones."""
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 2.0


class Upstream:
    """The servers at `urls` and those that `options.openenv_file` lists. `watch` must run beside `open`."""

    def __init__(self, urls: Sequence[str], env: str, options: ServeOptions) -> None:
        self._fixed = tuple(urls)
        self._file = Path(options.openenv_file) if options.openenv_file else None
        self._env = env
        self._options = options
        self._servers: list[Server] = []
        self._leaving: list[Server] = []
        self._turn = 0
        self._complaint: str | None = None
        self._seen = asyncio.Event()
        self._use((*urls, *options.openenv_listed))
        if not self._choosing:
            self._seen.set()

    async def watch(self) -> None:
        """Looks at every server each second, and at the file that lists them. Runs until it is cancelled.

        A single server is not looked at: there is nothing to choose.
        """
        if not self._choosing:
            return
        try:
            await self._keep_looking()
        except Exception:
            log.exception("the OpenEnv servers are looked at no more: sessions go by what was seen last")
        finally:
            self._seen.set()

    async def _keep_looking(self) -> None:
        async with asyncio.TaskGroup() as looks:
            first = [looks.create_task(server.look()) for server in self._servers]
            await asyncio.wait(first, timeout=_FIRST_LOOKS)
            self._seen.set()
            while True:
                await asyncio.sleep(LOOK_EVERY)
                await self._reread()
                for server in self._servers:
                    if not server.looking:
                        looks.create_task(server.look())

    async def open(self, row: Row) -> tuple[EpisodeLink, Started, Server]:
        """A link whose place is granted (or, on servers of others, whose session is open and whose reset is under way).

        Raises EpisodeFailure when none is to be had, WireError when the row names no task of the bundle.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        await self._seen.wait()
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
            except TimeoutError:
                refused_since, last = None, f"{server.url} does not take the connection in time"
            except OSError as error:
                server.lost(error)
                refused_since = loop.time() if refused_since is None else refused_since
                last = f"no OpenEnv server answers at {server.url}: {error}"
                if loop.time() - refused_since >= self._options.refused_for:
                    raise EpisodeFailure(FailureKind.PROVIDER_UNAVAILABLE, last) from None
            server.in_trouble()
            await asyncio.sleep(min(pause * random.uniform(0.5, 1.5), max(left, 0)))
            pause = min(pause * 2, _LONGEST_PAUSE)

    async def capacity(self) -> list[Json]:
        """What each server tells of its places; None for one that tells nothing."""
        return list(await asyncio.gather(*(server.capacity() for server in self._servers)))

    @property
    def urls(self) -> list[str]:
        """Of the servers that new sessions go to, in the order of `capacity`."""
        return [server.url for server in self._servers]

    @property
    def _choosing(self) -> bool:
        return self._file is not None or len(self._servers) > 1

    def _next(self, now: float) -> Server:
        """The best server; those that are equally good take turns."""
        known = [server for server in self._servers if server.looked] or self._servers
        self._turn += 1
        first = self._turn % len(known)
        return min((*known[first:], *known[:first]), key=lambda server: server.rank(now))

    async def _place(self, server: Server, row: Row, timeout: float) -> tuple[EpisodeLink, Started]:
        """The server counts the session from here on, until the session says that it is over."""
        server.send()
        try:
            return await self._reset(server, row, timeout)
        except BaseException:
            server.leave()
            raise
        finally:
            server.placed()

    async def _reset(self, server: Server, row: Row, timeout: float) -> tuple[EpisodeLink, Started]:
        ours = await server.ours()
        try:
            name = None if ours else await server.task_name(row)
            if name is not None:
                check_name(row, TaskName(name, row.split, row.index))
            link = await server.open()
        except TimeoutError:
            raise  # a crowd may be the cause
        except OSError as error:
            server.opens_none(row, error)
            raise
        try:
            return link, await link.reset(row.split, row.index, timeout)
        except BaseException:
            link.abort()
            raise

    # the list

    async def _reread(self) -> None:
        """Takes the file's list over. One that can't be is told once, and the last good one stays."""
        if self._file is None:
            return
        try:
            listed = await asyncio.to_thread(read_servers, self._file)
        except ConfigError as error:
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning("%s; the OpenEnv servers stay as they are", error)
            return
        self._complaint = None
        self._use((*self._fixed, *listed))

    def _use(self, urls: Iterable[str]) -> None:
        """A server that is no longer listed gets no new session, and is kept in mind as long as it has old ones."""
        wanted = tuple(dict.fromkeys(url.rstrip("/") for url in urls))
        before = {server.url: server for server in (*self._leaving, *self._servers)}
        if list(wanted) == [server.url for server in self._servers]:
            return
        if self._servers:
            for url in wanted:
                if url not in {server.url for server in self._servers}:
                    log.info("the OpenEnv server at %s is used from now on", url)
            for server in self._servers:
                if server.url not in wanted:
                    log.info("the OpenEnv server at %s gets no new sessions; %d go on", server.url, server.sessions)
        self._servers = [before.get(url) or Server(url, self._env, self._options) for url in wanted]
        self._leaving = [server for url, server in before.items() if url not in wanted and server.sessions]


def check_name(row: Row, task: TaskName) -> None:
    """Raises WireError 409 when the row was written for another task than the server plays at its place."""
    if row.name is not None and row.name != task.name.rsplit("/", 1)[-1]:
        raise WireError(
            f"task_id: the row is for the task {row.name!r}, but split {row.split!r}, index {row.index} of the served "
            f"bundle is {task.name!r}; write the rows again for this bundle",
            409,
        )
