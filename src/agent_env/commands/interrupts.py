"""Running a command's coroutine so that Ctrl-C ends it in order."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from agent_env.commands.http import ended_by_signals

T = TypeVar("T")


def run_to_end(work: Coroutine[Any, Any, T]) -> T:
    """Run it. SIGINT and SIGTERM cancel it once and leave it the time to tear down.

    Raises:
        KeyboardInterrupt: it was ended by such a signal.
    """
    return asyncio.run(_watched(work))


async def _watched(work: Coroutine[Any, Any, T]) -> T:
    task = asyncio.ensure_future(work)
    interrupted = False

    def interrupt(number: int, frame: None) -> None:
        nonlocal interrupted
        words = "still removing what was started" if interrupted else "interrupted: removing what was started"
        if not interrupted:
            interrupted = True
            task.cancel()
        with contextlib.suppress(OSError):  # nobody may be left to read it
            print(words, file=sys.stderr, flush=True)

    with ended_by_signals(interrupt):
        await asyncio.wait({task})
    if interrupted and task.cancelled():
        raise KeyboardInterrupt
    return task.result()
