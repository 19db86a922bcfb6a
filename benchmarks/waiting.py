"""Waiting until a side has done everything that its last episode left it to do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import orjson

from agent_env.training.nemo_gym.transport import Http
from benchmarks.processes import Failed

_LONGEST = 120.0


async def quiet(url: str) -> None:
    """Until an OpenEnv server of ours runs, starts and queues nothing: teardown is over and spares are there."""
    http = Http(url, pooled=True)
    try:
        async with asyncio.timeout(_LONGEST):
            while _busy(orjson.loads((await http.get("/capacity")).body)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    except TimeoutError:
        raise Failed(f"{url} is still busy after {_LONGEST:g} s") from None
    finally:
        await http.aclose()


def _busy(capacity: dict[str, Any]) -> bool:
    return bool(capacity["running"] or capacity["queued"] or capacity["starting"])


async def until(true: Callable[[], bool], what: str) -> None:
    """`true` may block: it runs in a thread."""
    try:
        async with asyncio.timeout(_LONGEST):
            while not await asyncio.to_thread(true):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise Failed(f"waited {_LONGEST:g} s for {what}") from None
