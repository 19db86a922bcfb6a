"""Requests that the light clients don't make: typed seeds, closes, and a socket whose answer is read by hand."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager
from typing import Any

from stubs.gym_client import Bench


def typed(session_id: str = "s1", rollout_id: str = "r1", **fields: Any) -> dict[str, Any]:
    return {
        "resources_session_id": session_id,
        "episode_id": {"rollout_id": rollout_id, "attempt": 0},
        "task_id": {"taskset": "t", "task_id": "0"},
        "task_data": {"split": "train", "index": 0},
    } | fields


def closing(session_id: str = "s1") -> dict[str, Any]:
    return {"resources_session_id": session_id, "episode_id": {"rollout_id": "r1", "attempt": 0}}


@asynccontextmanager
async def request(b: Bench, path: str, body: Any, cookie: str | None = None) -> Any:
    """A request over a bare socket, its answer still to be read."""
    host, port = b.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(content)}\r\n"
    writer.write(f"{head}{f'Cookie: {cookie}' if cookie else 'X: y'}\r\n\r\n".encode() + content)
    try:
        yield reader
    finally:
        writer.close()
