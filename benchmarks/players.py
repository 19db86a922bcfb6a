"""The clients of the measurements, the same for both sides: OpenEnv sessions over a websocket, rollouts over HTTP."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from websockets.asyncio.client import ClientConnection, connect

from agent_env.policies import Play
from benchmarks.processes import Failed

Json = Any


@dataclass(slots=True)
class Episode:
    """Seconds of one OpenEnv episode's phases."""

    reset: float = 0.0
    calls: list[float] = field(default_factory=list)
    end: float = 0.0


class Session:
    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def reset(self, split: str = "all", index: int = 0) -> Json:
        return _playing(await self._ask("reset", {"split": split, "index": index}))

    async def call(self, tool: str, arguments: Json) -> Json:
        data = {"type": "call_tool", "tool_name": tool, "arguments": arguments}
        return _playing(await self._ask("step", data))

    async def _ask(self, kind: str, data: Json) -> Json:
        await self._socket.send(json.dumps({"type": kind, "data": data}))
        return json.loads(await self._socket.recv())


@asynccontextmanager
async def session(url: str) -> AsyncIterator[Session]:
    where = f"{url.replace('http', 'ws', 1)}/ws"
    async with connect(where, compression=None, max_size=None, ping_interval=None, proxy=None) as socket:
        yield Session(socket)


async def episode(url: str, calls: int) -> Episode:
    """One whole episode of the echo bundle, timed by phase. Raises Failed unless it is scored 1."""
    times = Episode()
    async with session(url) as seat:
        times.reset = await timed(seat.reset())
        for number in range(calls):
            times.calls.append(await timed(seat.call("echo", {"text": f"{number}"})))
        began = time.perf_counter()
        ended = await seat.call("end_turn", {"response": "done"})
        times.end = time.perf_counter() - began
    if ended["data"].get("reward") != 1.0:
        raise Failed(f"an episode at {url} ended with {json.dumps(ended)[:300]}")
    return times


async def timed(awaited: Awaitable[Any]) -> float:
    began = time.perf_counter()
    await awaited
    return time.perf_counter() - began


async def echo_once(play: Play) -> None:
    """The policy of a rollout that costs what every rollout costs."""
    await play.call("echo", {"text": "hello"})
    play.say("done")


def _playing(answer: Json) -> Json:
    data = answer.get("data") or {}
    metadata = data.get("metadata") or {}
    if answer.get("type") != "observation" or metadata.get("status") == "error":
        raise Failed(f"the server answered {json.dumps(answer)[:400]}")
    return answer
