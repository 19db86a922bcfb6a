"""A small OpenEnv server for the writer's tests: Task API over HTTP, one session per `/ws`, nothing deployed."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket
from stubs.quick_server import quick

SUBMIT = {
    "name": "submit",
    "description": "Submits an answer.",
    "input_schema": {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]},
}
END_TURN = {
    "name": "end_turn",
    "description": "Ends the turn.",
    "input_schema": {"type": "object", "properties": {"response": {"type": "string"}}},
}


def task(name: str, **fields: Any) -> dict[str, Any]:
    """One Task API row, `index` left to the listing."""
    return {
        "id": name,
        "name": name,
        "prompt": f"Do {name}.",
        "system_prompt": "Be brief.",
        "agent": "default-agent",
        "toolset": "t1",
        "turns": 1,
    } | fields


@dataclass
class StubTaskApi:
    env: str = "demo-v1"
    splits: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    tools: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"t1": [SUBMIT]})
    """by toolset, or by task name, without end_turn"""
    digest: str = "d" * 64
    turns: int = 1
    """what playing shows, for rows that tell no turns"""
    reset_answer: dict[str, Any] | None = None
    """sent in place of the observation that a reset gives"""
    told: bool = True
    """False: rows carry neither toolset nor turns, as the original's"""
    token: str | None = None
    played: list[tuple[str, int]] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/list_environments", self._list),
                Route("/metadata", self._metadata),
                Route("/{env}/splits", self._splits),
                Route("/{env}/num_tasks", self._num_tasks, methods=["POST"]),
                Route("/{env}/task_range", self._task_range, methods=["POST"]),
                WebSocketRoute("/ws", self._socket),
            ]
        )

    async def _list(self, request: Request) -> JSONResponse:
        if self.token and request.headers.get("authorization") != f"Bearer {self.token}":
            return JSONResponse({"detail": "no token"}, 401)
        return JSONResponse([self.env])

    async def _metadata(self, request: Request) -> JSONResponse:
        return JSONResponse({"name": self.env, "version": self.digest})

    async def _splits(self, request: Request) -> JSONResponse:
        return JSONResponse([{"name": name, "type": "validation"} for name in self.splits])

    async def _num_tasks(self, request: Request) -> JSONResponse:
        return JSONResponse({"num_tasks": len(self.splits[(await request.json())["split"]])})

    async def _task_range(self, request: Request) -> JSONResponse:
        body = await request.json()
        rows = [{"index": index, **row} for index, row in enumerate(self.splits[body["split"]])]
        if not self.told:
            rows = [{k: v for k, v in row.items() if k not in ("toolset", "turns")} for row in rows]
        return JSONResponse({"tasks": rows[body["start"] : body["stop"]]})

    async def _socket(self, websocket: WebSocket) -> None:
        await websocket.accept()
        current: dict[str, Any] = {}
        turn = 0
        while True:
            message = await websocket.receive_json()
            data = message.get("data", {})
            self.actions.append(data.get("tool_name") or data.get("type") or message["type"])
            if message["type"] == "close":
                await websocket.close()
                return
            if message["type"] == "reset":
                current = self.splits[data["split"]][data["index"]]
                self.played.append((data["split"], data["index"]))
                answer = self.reset_answer or {"type": "observation", "data": {"observation": {}, "done": False}}
            elif data["type"] == "list_tools":
                tools = self.tools[current["name"] if current["name"] in self.tools else current["toolset"]]
                answer = {"type": "observation", "data": {"observation": {"tools": [*tools, END_TURN]}, "done": False}}
            else:
                turn += 1
                answer = {"type": "observation", "data": {"observation": {}, "done": turn >= self.turns}}
            await websocket.send_json(answer)
            if answer["type"] == "error":
                await websocket.close()
                return


@contextlib.contextmanager
def served(app: ASGIApp) -> Iterator[str]:
    """Runs an ASGI app on a loop in a thread of its own, for tests that aren't async; its URL."""
    started: queue.Queue[tuple[str, Callable[[], object]]] = queue.Queue()

    async def serve() -> None:
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        async with quick(app) as url:
            started.put((url, lambda: loop.call_soon_threadsafe(stop.set)))
            await stop.wait()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    url, stop = started.get(timeout=10)
    try:
        yield url
    finally:
        stop()
        thread.join(10)
