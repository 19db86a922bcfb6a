"""One OpenEnv server as the resources server sees it: its kind, its free places, and whether it is away."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from agent_env.training.nemo_gym.openenv_client import EpisodeLink, ServerFull
from agent_env.training.nemo_gym.openenv_http import fetch
from agent_env.training.nemo_gym.options import ServeOptions
from agent_env.training.nemo_gym.wire import Row, WireError

Json = Any
log = logging.getLogger("agent_env.serve")

_LOOK_WITHIN = 3.0
"""Seconds: a server that does not tell its capacity by then is away until it does."""
_TROUBLE_FOR = 2.0
"""Seconds for which a server that took no session comes after the others."""
_FIRST_HOLD, _LONGEST_HOLD = 0.5, 4.0
"""Seconds from one try to the next, doubled each time, at a server that tells its places but opened no session."""
_MOST_NAMES = 100_000
_MOST_WARNINGS = 20


class Server:
    """`look` asks it for its places; between looks those count as taken to which a session was sent since."""

    def __init__(self, url: str, env: str, options: ServeOptions) -> None:
        self.url = url.rstrip("/")
        self.sessions = 0
        """Those of ours that play there or wait for a place."""
        self.away: str | None = None
        """Why it can't be used, as last seen."""
        self.looked = False
        self.looking = False
        self._closed_to: Row | None = None
        """The row that it opened no session for: it is away until it opens one, whatever it tells of its places."""
        self._hold = _FIRST_HOLD
        self._try_at = float("-inf")
        self._trouble_at = float("-inf")
        self._env = env
        self._options = options
        self._ours: bool | None = None
        self._places = 1
        self._free = 0
        self._sent = 0
        self._unplaced = 0
        self._ended = 0
        self._asking = asyncio.Lock()
        self._names: dict[tuple[str, int], str] = {}
        self._warned: set[tuple[str, float]] = set()

    async def look(self) -> None:
        """How many places are free, and is it there at all?"""
        self.looking = True
        try:
            await self._ask(_LOOK_WITHIN)
            if self._closed_to is not None and asyncio.get_running_loop().time() >= self._try_at:
                await self._try(self._closed_to)
        except ServerFull:
            self.in_trouble()
        except (OSError, ValueError) as error:
            # What did not answer at all is on its way back when it does: it is tried at once then.
            self._hold, self._try_at = _FIRST_HOLD, float("-inf")
            self.lost(error)
        finally:
            self.looking = False
            self.looked = True

    async def _try(self, row: Row) -> None:
        """Does it open sessions again? One that nobody plays, so that no rollout waits for the answer."""
        try:
            if not await self.ours():
                await self.task_name(row)
            await (await self.open()).close()
        except WireError:
            self._opened()  # it answers, and serves another bundle now: for its sessions to tell
        except (OSError, ServerFull) as error:
            self.opens_none(row, error)

    def rank(self, now: float) -> tuple[bool, bool, int, float]:
        """The least is the best to send a session to: the most free places; where nobody has any, the shortest queue
        for its size, counting those places as free whose session ended since the last look."""
        free = self._free - self._sent if self._ours else 0
        behind = self._sent - self._ended - self._free if self._ours else self.sessions
        return (
            self.away is not None,
            now - self._trouble_at < _TROUBLE_FOR,
            -max(free, 0),
            behind / self._places,
        )

    def send(self) -> None:
        """A session is on its way there: it counts from here on, until `leave`."""
        self.sessions += 1
        self._sent += 1
        self._unplaced += 1

    def placed(self) -> None:
        """That session has its place, or gets none."""
        self._unplaced -= 1

    def leave(self) -> None:
        """A session there is over."""
        self.sessions -= 1
        self._ended += 1

    def in_trouble(self) -> None:
        """It took no session; the next one tries another server first."""
        self._trouble_at = asyncio.get_running_loop().time()

    def lost(self, error: Exception) -> None:
        """It does not answer: another may come back in its place."""
        self._ours = None
        self._names.clear()
        reason = str(error) or "no answer in time"
        if self.away is None:
            log.warning("the OpenEnv server at %s is away, and gets no session until it answers: %s", self.url, reason)
        self.away = reason

    def opens_none(self, row: Row, error: Exception) -> None:
        """A session was to be opened there for this row, and was not: that it tells its places proves nothing now."""
        now = asyncio.get_running_loop().time()
        if self._closed_to is None:
            self._hold = _FIRST_HOLD
        if now >= self._try_at:
            self._try_at = now + self._hold
            self._hold = min(self._hold * 2, _LONGEST_HOLD)
        self._closed_to = row
        self.lost(error)

    def _opened(self) -> None:
        if self._closed_to is not None:
            self._closed_to = None
            self._trouble_at = float("-inf")
            self._back()

    def _back(self) -> None:
        if self.away is not None and self._closed_to is None:
            log.info("the OpenEnv server at %s is back", self.url)
            self.away = None

    async def capacity(self) -> Json:
        """What it tells of its places, None when it tells nothing."""
        try:
            status, body = await self._fetch("GET", "/capacity", timeout=_LOOK_WITHIN)
        except (OSError, ValueError) as error:
            return {"url": self.url, "error": str(error) or "no answer in time"}
        if trouble := _trouble(status):
            return {"url": self.url, "error": trouble}
        return {**body, "url": self.url} if status == 200 and isinstance(body, dict) else None

    async def ours(self) -> bool:
        """Whether the server is one of ours: those tell their capacity, and answer a reset before the env is ready.

        Raises OSError, TimeoutError or ServerFull.
        """
        async with self._asking:
            if self._ours is None:
                await self._ask()
        return bool(self._ours)

    async def open(self) -> EpisodeLink:
        """Raises OSError, TimeoutError or ServerFull when no session was opened."""
        ours = await self.ours()
        token, most = self._options.openenv_token, self._options.max_output
        link = await EpisodeLink.connect(self.url, ours=ours, max_output=most, token=token)
        self._opened()
        return link

    async def task_name(self, row: Row) -> str | None:
        """The name of the row's task, asked before the reset of a server that answers it late. None: it doesn't say.

        Raises WireError when the server has no such task.
        """
        key = (row.split, row.index)
        if key not in self._names:
            status, answer = await self._fetch(
                "POST", f"/{self._env}/task", {"split": row.split, "index": row.index}, timeout=10.0
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

    async def _ask(self, timeout: float = 10.0) -> None:
        sent, unplaced, ended = self._sent, self._unplaced, self._ended
        status, body = await self._fetch("GET", "/capacity", timeout=timeout)
        if status in (429, 503):
            raise ServerFull(f"HTTP {status}")
        if trouble := _trouble(status):
            raise ConnectionError(trouble)
        told = body if status == 200 and isinstance(body, dict) else {}
        places = _number(told.get("places"))
        self._ours = places > 0
        self._places = max(places, 1)
        self._compare(told.get("deadlines"))
        # What was sent before the look and has no place yet either waits there in the queue or is still on its way.
        self._free = _number(told.get("free")) - max(_number(told.get("queued")), unplaced)
        self._sent -= sent
        self._ended -= ended
        self._back()

    def _compare(self, told: Json) -> None:
        """Once for each deadline of its own that is longer than what is waited for here."""
        theirs = told if isinstance(told, dict) else {}
        for name, what, flag, ours in (
            ("tool_s", "a tool call", "--tool-timeout", self._options.tool_timeout),
            ("verify_s", "grading", "--verify-timeout", self._options.verify_timeout),
        ):
            value = theirs.get(name)
            if isinstance(value, bool) or not isinstance(value, int | float) or value <= ours:
                continue
            if (name, value) not in self._warned and len(self._warned) < _MOST_WARNINGS:
                self._warned.add((name, value))
                log.warning(
                    "the OpenEnv server at %s lets %s take %g s, and is waited for %g s here: give %s %g here too",
                    *(self.url, what, value, ours, flag, value),
                )

    async def _fetch(self, method: str, path: str, body: Json = None, *, timeout: float) -> tuple[int, Json]:
        return await fetch(self.url, method, path, body, token=self._options.openenv_token, timeout=timeout)


def _trouble(status: int) -> str | None:
    """Why a server that answers so can't be used."""
    if status in (401, 403):
        return f"HTTP {status}: it wants a token (--openenv-token-file)"
    return f"HTTP {status}" if status >= 500 else None


def _number(value: Json) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
