"""Random requests and random frames: no 500, nothing hangs, nothing is left."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
import websockets
from stubs.serving import serving
from stubs.stub_bundle import write_stub_bundle

from agent_env.openenv import build_app

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.timeout(1800)]

REQUESTS = int(os.environ.get("AGENT_ENV_FUZZ_REQUESTS", "400"))
AT_ONCE = 8

VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    2**70,
    1.5,
    "",
    "x",
    "\x00",
    "\u202e",
    [],
    [[]],
    {},
    {"a": None},
    "train",
    "all",
    1,
]
KEYS = ["type", "data", "split", "index", "ready", "seed", "episode_id", "tool_name", "arguments", "session_id", "id"]
PATHS = [
    *("/health", "/capacity", "/status", "/metrics"),
    *("/metadata", "/schema", "/state", "/list_environments", "/reset", "/step", "/mcp", "/ws"),
    *("/stub-v1/splits", "/stub-v1/tasks", "/stub-v1/num_tasks", "/stub-v1/task", "/stub-v1/task_range", "/none/tasks"),
    *("/", "//", "/%00", "/stub-v1/", "/docs", "/openapi.json"),
]
METHODS = ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"]


def junk(rng: Random, depth: int = 0) -> Any:
    if depth > 3 or rng.random() < 0.5:
        return rng.choice(VALUES)
    if rng.random() < 0.5:
        return [junk(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(KEYS): junk(rng, depth + 1) for _ in range(rng.randrange(5))}


def frame(rng: Random) -> str | bytes:
    """Half of them close to what the protocol has, half anything."""
    roll = rng.random()
    if roll < 0.05:
        return bytes(rng.randrange(256) for _ in range(rng.randrange(40)))
    if roll < 0.1:
        return rng.choice(["", "{", "[" * 5000, '{"type":"reset","data":{"index":1e400}}', "\ud7ff", "null", "NaN"])
    if roll < 0.25:
        return json.dumps(junk(rng))
    if roll < 0.4:
        return json.dumps({"type": rng.choice(["reset", "step", "state", "mcp", "close", "x"]), "data": junk(rng)})
    if roll < 0.6:
        data = {
            "split": rng.choice(["train", "all", "no"]),
            "index": rng.choice([0, 1, 9, "0"]),
            "ready": rng.random() < 0.5,
        }
        return json.dumps({"type": "reset", "data": data})
    tool = rng.choice(["echo", "submit", "fail", "crash", "end_turn", "no_such", "", "look"])
    return json.dumps(
        {"type": "step", "data": {"type": "call_tool", "tool_name": tool, "arguments": rng.choice(ARGUMENTS)}}
    )


ARGUMENTS: list[Any] = [
    {},
    {"text": "x"},
    {"value": 1},
    {"message": "\x00"},
    {"response": []},
    {"value": None},
    [],
    None,
    3,
]


async def requests(url: str, rng: Random, number: int) -> None:
    async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
        for _ in range(number):
            body = json.dumps(junk(rng)) if rng.random() < 0.8 else rng.choice(["", "{", "\x00", "[" * 3000])
            answer = await http.request(rng.choice(METHODS), url + rng.choice(PATHS), content=body.encode())
            assert answer.status_code != 500, (answer.request.method, answer.request.url, body, answer.text)


async def frames(url: str, rng: Random, number: int) -> None:
    """Sessions of a few frames each; some leave in the middle of a message's handling."""
    sent = 0
    while sent < number:
        async with websockets.connect(url.replace("http", "ws") + "/ws", proxy=None, close_timeout=2) as socket:
            for _ in range(min(rng.randrange(1, 8), number - sent)):
                sent += 1
                try:
                    await socket.send(frame(rng))
                    if rng.random() < 0.15:
                        socket.transport.abort()
                        break
                    async with asyncio.timeout(60):
                        reply = json.loads(await socket.recv())
                except websockets.ConnectionClosed:
                    break
                assert reply["type"] in ("observation", "state", "error", "mcp"), reply


async def test_random_requests_and_frames_break_nothing(tmp_path: Path) -> None:
    seed = int(os.environ.get("AGENT_ENV_FUZZ_SEED", Random().randrange(10**6)))
    print(f"AGENT_ENV_FUZZ_SEED={seed}")
    path = write_stub_bundle(tmp_path / "stub-v1")
    app = await asyncio.to_thread(build_app, path, sandbox="process", max_concurrent_envs=4)
    share = REQUESTS // (2 * AT_ONCE)
    async with serving(app) as url:
        async with asyncio.TaskGroup() as group:
            for number in range(AT_ONCE):
                group.create_task(requests(url, Random(seed + number), share))
                group.create_task(frames(url, Random(seed + 100 + number), share))
        capacity = app.state.hub.runtime.capacity
        async with asyncio.timeout(60):
            while capacity.snapshot()["running"] or capacity.snapshot()["queued"]:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        async with httpx.AsyncClient(trust_env=False) as http:
            assert (await http.get(f"{url}/health")).json()["status"] == "healthy"
    hub = app.state.hub
    assert hub.started == hub.scored + sum(hub.failed.values())
