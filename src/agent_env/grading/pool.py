"""Graders (`verify.py`) run in processes of a venv of their own, never in ours.

Each process gets no environment of ours, limits, an unprivileged user where we are root, and a deadline; a keeper ends
it with everything it started when it hangs, when it leaves something running, and when we are gone.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_env.errors import ConfigError, EpisodeFailure, FailureKind
from agent_env.grading.process import GraderProcess, Source, read_source
from agent_env.sandbox.layout import storage_failure
from agent_env.sandbox.supervision import Keepers
from agent_env.sandbox.venvs import ensure_venv

Json = Any

DEFAULT_REQUIREMENTS = ("agentenv-framework-protocol==0.1.379", "mcp>=1.25,<2", "httpx>=0.28,<1")

log = logging.getLogger(__name__)

_FIRST_UID = 61_184
_UIDS = 4_096
"""users without a name on most systems; each process of a pool has another one"""
_LONG_WAIT = 5.0
"""seconds in line after which a verify's wait is worth a log line"""


class GraderPool:
    """Runs graders in `workers` processes (default: one per core), started when first needed.

    Belongs to one event loop from the first `verify` on.
    """

    def __init__(
        self,
        requirements: Sequence[str] = DEFAULT_REQUIREMENTS,
        workers: int | None = None,
        *,
        env: Mapping[str, str] | None = None,
    ) -> None:
        """`env` is what graders see beside PATH, LANG, HOME, TMPDIR and the CA settings: a judge's key, say."""
        self._requirements = tuple(requirements)
        self._workers = workers or len(os.sched_getaffinity(0))
        self._env = dict(env or {})
        self._places = asyncio.Semaphore(self._workers)
        self._python: Path | None = None
        self._keepers = Keepers()
        self._idle: list[GraderProcess] = []
        self._busy: set[GraderProcess] = set()
        self._ending: set[asyncio.Task[None]] = set()
        self._started = 0
        self._waiting = 0
        self._closed = False

    async def prepare(self) -> None:
        """Build the venv and see that a grader process can run from it.

        Raises:
            ConfigError: the processes' user can't read the venv.
            EpisodeFailure: the venv can't be built.
        """
        await self._interpreter()
        try:
            process = await self._start()
        except EpisodeFailure as failure:
            raise ConfigError(failure.reason) from failure
        await process.end()

    async def verify(
        self, source: Path, mcp_url: str, run: Json | None, *, step_id: str, timeout: float
    ) -> list[dict[str, Json]]:
        """The rows that the grader returned. They are plain JSON values, but for NaN and infinities.

        Args:
            source: the `verify.py`.
            run: what its parameter `run` is made of: `{"turns": [{"number", "message", "reply"}]}`.
            timeout: seconds for this call, from when a process is free for it.

        Raises:
            EpisodeFailure: VERIFIER_ERROR or VERIFIER_TIMEOUT; SERVER_SHUTDOWN when the pool is closed meanwhile.
        """
        waited = await self._place(step_id)
        try:
            file = await _read(source, step_id)
            answer = await self._grade(file, mcp_url, run, timeout)
        finally:
            self._places.release()
        return self._rows(answer, file, step_id, timeout, waited)

    async def aclose(self) -> None:
        """End every process and wait for that. Verifies that run or wait fail."""
        self._closed = True
        for process in [*self._idle, *self._busy]:
            self._begin_end(process)
        self._idle.clear()
        for _ in range(self._workers):
            await self._places.acquire()
        for _ in range(self._workers):
            self._places.release()
        while self._ending:
            await asyncio.wait(self._ending)
        await self._keepers.aclose()

    async def _grade(self, source: Source, mcp_url: str, run: Json | None, timeout: float) -> dict[str, Json]:
        process = await self._take(source)
        self._busy.add(process)
        try:
            answer = await process.grade(source, mcp_url, run, timeout)
        except BaseException:
            await self._end(process)
            raise
        finally:
            self._busy.discard(process)
        if process.spent or self._closed:
            await self._end(process)
        else:
            self._idle.append(process)
        return answer

    async def _interpreter(self) -> Path:
        if self._python is None:
            self._python = await ensure_venv(self._requirements)
        return self._python

    async def _place(self, step_id: str) -> float:
        """Wait in line; returns for how long."""
        asked = time.monotonic()
        self._waiting += 1
        try:
            await self._places.acquire()
        finally:
            self._waiting -= 1
        waited = time.monotonic() - asked
        if waited >= _LONG_WAIT:
            log.warning(
                "step %r waited %.1f s for one of %d grader processes; %d more wait",
                step_id,
                waited,
                self._workers,
                self._waiting,
            )
        return waited

    async def _take(self, source: Source) -> GraderProcess:
        """An idle process, one that knows the grader if there is one, else a new one."""
        self._check_open()
        if self._idle:
            place = next((place for place, process in enumerate(self._idle) if process.has(source)), -1)
            return self._idle.pop(place)
        process = await self._start()
        if self._closed:
            await self._end(process)
        self._check_open()
        return process

    def _check_open(self) -> None:
        if self._closed:
            raise EpisodeFailure(FailureKind.SERVER_SHUTDOWN, "the graders were stopped")

    async def _start(self) -> GraderProcess:
        python = await self._interpreter()
        self._started += 1
        uid = _FIRST_UID + (os.getpid() * 64 + self._started) % _UIDS if os.geteuid() == 0 else -1
        try:
            return await GraderProcess.start(self._keepers, python, uid, self._env)
        except OSError as error:
            what = f"a grader process can't start (from {python}, which every user must be able to read)"
            raise storage_failure(error, what, FailureKind.VERIFIER_ERROR) from error

    async def _end(self, process: GraderProcess) -> None:
        await asyncio.shield(self._begin_end(process))

    def _begin_end(self, process: GraderProcess) -> asyncio.Task[None]:
        task = asyncio.create_task(process.end(), name="end of a grader process")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
        return task

    def _rows(
        self, answer: dict[str, Json], source: Source, step_id: str, timeout: float, waited: float
    ) -> list[dict[str, Json]]:
        if "timeout" in answer:
            place = f", at {answer['timeout']}" if answer["timeout"] else ""
            line = f" (it had waited {waited:.1f} s for its turn before)" if waited >= 1 else ""
            reason = f"step {step_id!r}: {source.name} was not done after {timeout:g} s{place}{line}"
            raise EpisodeFailure(FailureKind.VERIFIER_TIMEOUT, reason)
        if "error" in answer:
            self._check_open()
            place = f" ({answer['where']})" if answer.get("where") else ""
            packages = ", ".join(self._requirements) or "no packages"
            missing = f"; the graders' venv has {packages}" if _lacks_module(answer) else ""
            if printed := answer.get("printed"):
                log.warning("step %r: %s printed:\n%s", step_id, source.name, printed)
            reason = f"step {step_id!r}: {source.name}: {answer['error']}{place}{missing}"
            raise EpisodeFailure(FailureKind.VERIFIER_ERROR, reason)
        return list(answer["rows"])


async def _read(source: Path, step_id: str) -> Source:
    try:
        return await asyncio.to_thread(read_source, source)
    except OSError as error:
        reason = f"step {step_id!r}: {source.name} can't be read: {error.strerror}"
        raise EpisodeFailure(FailureKind.VERIFIER_ERROR, reason) from error


def _lacks_module(answer: dict[str, Json]) -> bool:
    return str(answer["error"]).startswith("raised ModuleNotFoundError")
