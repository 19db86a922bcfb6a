"""Plays the start of one task over `/ws` to learn which tools the env offers the model: reset, list_tools, close."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from agent_env.training.nemo_gym.rows import END_TURN, TaskEntry
from agent_env.training.nemo_gym.taskapi import OpenEnvError

Json = Any

_MAX_FRAME = 100 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Probed:
    """What one played task showed."""

    tools: tuple[dict[str, Json], ...]
    """`{name, description, input_schema}`, as the env gives them"""
    turns: int | None
    """as the task's entry says, else whether one `end_turn` led to another prompt: 1, or 2 for "several" """


async def probe(url: str, task: TaskEntry, *, token: str | None = None, timeout: float) -> Probed:
    """Deploys the task's env once. Raises OpenEnvError that names the task when that fails."""
    headers = {"Authorization": f"Bearer {token}"} if token else None
    address = "ws" + url.removeprefix("http") + "/ws"
    try:
        async with asyncio.timeout(timeout):
            async with connect(
                address,
                additional_headers=headers,
                compression=None,
                max_size=_MAX_FRAME,
                ping_timeout=None,
                proxy=None,
            ) as socket:
                return await _play(socket, task, url)
    except TimeoutError:
        raise OpenEnvError(f"the task {task.label} did not start within {timeout:g} s at {url}") from None
    except ConnectionClosed as error:
        raise OpenEnvError(f"{url} closed the session of the task {task.label}: {error}") from None
    except (OSError, InvalidHandshake, InvalidURI) as error:
        raise OpenEnvError(f"no OpenEnv session can be opened at {address}: {error}") from None


async def _play(socket: ClientConnection, task: TaskEntry, url: str) -> Probed:
    await _exchange(socket, {"type": "reset", "data": {"split": task.split, "index": task.index}}, task, url)
    listed = await _exchange(socket, {"type": "step", "data": {"type": "list_tools"}}, task, url)
    tools = listed["observation"].get("tools")
    if not isinstance(tools, list) or not all(isinstance(tool, dict) and "name" in tool for tool in tools):
        raise OpenEnvError(f"{url} lists no tools for the task {task.label}")
    turns = task.turns
    if turns is None:
        action = {"type": "call_tool", "tool_name": END_TURN, "arguments": {"response": ""}}
        ended = await _exchange(socket, {"type": "step", "data": action}, task, url, may_end=True)
        turns = 1 if ended.get("done") else 2
    await socket.send(orjson.dumps({"type": "close"}).decode())
    return Probed(tuple(tools), turns)


async def _exchange(
    socket: ClientConnection, message: Json, task: TaskEntry, url: str, *, may_end: bool = False
) -> dict[str, Json]:
    await socket.send(orjson.dumps(message).decode())
    try:
        answer = orjson.loads(await socket.recv())
    except orjson.JSONDecodeError:
        raise OpenEnvError(f"{url} answers something that is not JSON on /ws") from None
    data = answer.get("data") if isinstance(answer, dict) else None
    if not isinstance(data, dict):
        raise OpenEnvError(f"{url} answers an unknown message on /ws: is it an OpenEnv server?")
    if answer.get("type") == "error":
        if data.get("code") == "CAPACITY_REACHED":
            raise OpenEnvError(
                f"the OpenEnv server at {url} is full, and the task {task.label} must be played once: "
                "write when it has a free place"
            )
        raise OpenEnvError(f"{url} refuses the task {task.label}: {data.get('message')} ({data.get('code')})")
    observation = data.get("observation")
    data["observation"] = observation if isinstance(observation, dict) else {}
    if data.get("done") and not (may_end and _failure(data) is None):
        raise OpenEnvError(f"the task {task.label} can't be played: {_failure(data) or 'it ended at once'}")
    return data


def _failure(data: dict[str, Json]) -> str | None:
    """Why the environment failed the episode, from the declared fields or else the metadata."""
    failure = data["observation"].get("failure")
    if isinstance(failure, dict):
        return f"{failure.get('kind')}: {failure.get('reason')}"
    metadata = data.get("metadata") or data["observation"].get("metadata") or {}
    return str(metadata.get("error")) if metadata.get("status") == "error" else None
