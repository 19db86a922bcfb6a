"""Tasks that outlive the request that began them, and their owner."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")
log = logging.getLogger("agent_env.serve")


class Background:
    """Owns tasks until they end; `aclose` cancels those left and awaits them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work`, which goes on to its end when the caller is cancelled."""
        return await asyncio.shield(self.start(work))

    async def aclose(self, timeout: float) -> None:
        """Waits `timeout` seconds for what is running, then cancels it."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout)
        left = list(self._tasks)
        for task in left:
            task.cancel()
        for outcome in await asyncio.gather(*left, return_exceptions=True):
            if isinstance(outcome, Exception):
                log.error("a task ended with %r while the server closed", outcome)
