"""An OpenEnv server without sandboxes for the resources server's tests: real sockets, and knobs for each fault.

`foreign=True` makes it answer as agentenv-framework 0.9.1364 does: no `/capacity`, no queue, a reset answered only when
the env is ready, failures in `metadata` alone, and a client that leaves is noticed only between messages.

    python tests/stubs/stub_openenv.py --port 8200 --places 96 --episode 5
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

Json = Any

TOOLS: list[Json] = [
    {
        "name": "look",
        "description": "Looks.",
        "input_schema": {"type": "object", "properties": {"at": {"type": "string"}}},
    },
    {"name": "fail", "description": "Fails.", "input_schema": {"type": "object", "properties": {}}},
]
END_TURN = {
    "name": "end_turn",
    "description": "Ends the turn.",
    "input_schema": {"type": "object", "properties": {"response": {"type": "string"}}},
}


@dataclass(frozen=True)
class Knobs:
    """Seconds, and faults by phase: `reset` (before the place's answer), `start`, `tool`, `verify`."""

    start_s: float = 0.0
    tool_s: float = 0.0
    verify_s: float = 0.0
    reward: Json = 0.75
    scores: Json = field(default_factory=lambda: {"grade": 0.75})
    prompts: tuple[str, ...] = ("Play.",)
    tools: list[Json] = field(default_factory=lambda: TOOLS)
    output: Callable[[str, Json], Json] | None = None
    """(tool, arguments) -> the observation's `result`, or a text"""
    fail: dict[str, tuple[str, str]] = field(default_factory=dict)
    """phase -> (kind, reason)"""
    drop: frozenset[str] = frozenset()
    """phases in which the socket is cut"""
    name: str | None = None
    """the task's name in place of `<split>-<index, four digits>`"""


@dataclass
class StubOpenEnv:
    knobs: Knobs = field(default_factory=Knobs)
    places: int = 8
    queue: int = 1024
    foreign: bool = False
    splits: dict[str, int] = field(default_factory=lambda: {"train": 2000, "eval": 200})
    env: str = "stub-v1"
    digest: str = "d" * 64
    by_index: dict[int, Knobs] = field(default_factory=dict)
    token: str | None = None
    keep: bool = True
    """False: what is asked is not noted down, for long runs"""
    refuse_all: bool = False
    """every websocket is told CAPACITY_REACHED"""
    shut: bool = False
    """every websocket is refused"""
    refused: int = 0
    deadlines: Json = None
    """what `/capacity` tells of them"""

    running: int = 0
    most_running: int = 0
    sessions: int = 0
    resets: list[tuple[str, int]] = field(default_factory=list)
    calls: list[tuple[str, Json]] = field(default_factory=list)
    replies: list[str] = field(default_factory=list)
    """what each end_turn handed in"""
    ended: int = 0
    requests: list[str] = field(default_factory=list)
    frames: list[str] = field(default_factory=list)
    open_sockets: set[_Socket] = field(default_factory=set)
    _waiting: deque[asyncio.Future[None]] = field(default_factory=deque)

    def set(self, **changes: Json) -> None:
        self.knobs = replace(self.knobs, **changes)

    async def kill(self) -> None:
        """Every session's connection breaks."""
        for open_socket in list(self.open_sockets):
            open_socket.killed.set()
        while self.open_sockets:  # noqa: ASYNC110
            await asyncio.sleep(0.005)

    async def __call__(self, scope: Json, receive: Json, send: Json) -> None:
        if scope["type"] == "websocket":
            await _Socket(self, receive, send).serve(dict(scope["headers"]))
        elif scope["type"] == "http":
            await self._http(scope, receive, send)
        else:
            while True:
                kind = (await receive())["type"]
                await send({"type": f"{kind}.complete"})
                if kind == "lifespan.shutdown":
                    return

    async def _http(self, scope: Json, receive: Json, send: Json) -> None:
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        self.requests.append(f"{scope['method']} {scope['path']}")
        status, answer = self._answer(scope["path"], json.loads(body or b"{}"))
        content = json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(content)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": content})

    def _answer(self, path: str, body: Json) -> tuple[int, Json]:
        if path == "/capacity" and not self.foreign:
            free = self.places - self.running
            told = {"places": self.places, "running": self.running, "free": free, "queued": len(self._waiting)}
            return 200, told if self.deadlines is None else {**told, "deadlines": self.deadlines}
        if path == f"/{self.env}/task":
            if body.get("index", -1) not in range(self.splits.get(body.get("split"), 0)):
                return 400, {"detail": "Invalid task index"}
            return 200, {"task": self.task(body["split"], body["index"])}
        return 404, {"detail": "Not Found"}

    def task(self, split: str, index: int) -> Json:
        name = self.by_index.get(index, self.knobs).name or f"{split}-{index:04d}"
        return {"id": f"tasks/{name}", "name": name, "split": split, "index": index}

    async def take(self) -> bool:
        if self.running >= self.places:
            if len(self._waiting) >= self.queue:
                return False
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():
                    self.release()
                elif turn in self._waiting:
                    self._waiting.remove(turn)
                raise
            return True
        self._begin()
        return True

    def _begin(self) -> None:
        self.running += 1
        self.most_running = max(self.most_running, self.running)

    def release(self) -> None:
        self.running -= 1
        self.ended += 1
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                self._begin()
                turn.set_result(None)
                return


class _Dropped(Exception):
    pass


class _Socket:
    def __init__(self, stub: StubOpenEnv, receive: Json, send: Json) -> None:
        self.stub = stub
        self.receive = receive
        self.send = send
        self.holds = False
        self.knobs = stub.knobs
        self.task: Json = None
        self.ready_at = 0.0
        self.turn = 0
        self.failed: tuple[str, str] | None = None
        self.ended = False
        self.killed = asyncio.Event()

    async def serve(self, headers: dict[bytes, bytes]) -> None:
        await self.receive()
        if self.stub.token and headers.get(b"authorization") != f"Bearer {self.stub.token}".encode():
            await self.send({"type": "websocket.close", "code": 1008})
            return
        stub = self.stub
        if stub.shut:
            stub.refused += 1
            await self.send({"type": "websocket.close", "code": 1008})
            return
        await self.send({"type": "websocket.accept"})
        full = stub.sessions >= stub.places + (0 if stub.foreign else stub.queue)
        if stub.refuse_all or full:
            await self._error("CAPACITY_REACHED", "Server at capacity")
            await self.send({"type": "websocket.close", "code": 1000})
            return
        stub.sessions += 1
        stub.open_sockets.add(self)
        try:
            await self._serve()
        finally:
            stub.sessions -= 1
            stub.open_sockets.discard(self)
            if self.holds:
                stub.release()

    async def _serve(self) -> None:
        ahead: asyncio.Queue[Json] = asyncio.Queue()
        gone = self.killed

        async def read() -> None:
            while not gone.is_set():
                message = await self.receive()
                await ahead.put(message)
                if message["type"] == "websocket.disconnect":
                    gone.set()

        reader = asyncio.create_task(read())
        watch = asyncio.create_task(gone.wait())
        try:
            while True:
                coming = asyncio.create_task(ahead.get())
                await asyncio.wait({coming, watch}, return_when=asyncio.FIRST_COMPLETED)
                if not coming.done() or coming.result()["type"] == "websocket.disconnect":
                    coming.cancel()
                    return
                message = coming.result()
                work = asyncio.create_task(self._handle(message.get("text") or message["bytes"].decode()))
                await asyncio.wait({work} if self.stub.foreign else {work, watch}, return_when=asyncio.FIRST_COMPLETED)
                if not work.done():
                    work.cancel()
                    await asyncio.wait({work})
                    return
                if work.exception() is not None:
                    if isinstance(work.exception(), _Dropped):
                        await self.send({"type": "websocket.close", "code": 1011})
                        return
                    work.result()
        finally:
            reader.cancel()
            watch.cancel()
            await asyncio.wait({reader, watch})
            with contextlib.suppress(Exception):
                await self.send({"type": "websocket.close", "code": 1011})

    async def _handle(self, text: str) -> None:
        if self.stub.keep:
            self.stub.frames.append(text)
        message = json.loads(text)
        if message["type"] == "state":
            await self._send("state", {"episode_id": None, "step_count": 0})
        elif message["type"] == "reset":
            await self._reset(message["data"])
        elif message["data"]["type"] == "list_tools":
            await self._list_tools()
        else:
            await self._call(message["data"]["tool_name"], message["data"]["arguments"])

    async def _reset(self, data: Json) -> None:
        stub = self.stub
        split, index = data["split"], data["index"]
        if index not in range(stub.splits.get(split, 0)):
            reason = f"there is no task {index} in split {split!r}"
            if stub.foreign:
                await self._observe({}, done=True, metadata={"status": "error", "error": f"IndexError: {reason}"})
            else:
                await self._error("EXECUTION_ERROR", reason)
            return
        self.knobs = stub.by_index.get(index, stub.knobs)
        self.task = stub.task(split, index)
        if stub.keep:
            stub.resets.append((split, index))
        self._drop("reset")
        if not self.holds:
            self.holds = await stub.take()
        self.ready_at = asyncio.get_running_loop().time() + self.knobs.start_s
        if await self._failing("reset"):
            return
        told = {"prompt": self.knobs.prompts[0], "system_prompt": None, "task": self.task}
        if stub.foreign or data.get("ready", True):
            await self._until_ready()
            if await self._failing("start"):
                return
        if stub.foreign:
            await self._observe({}, metadata=told)
            return
        bundle = {"name": stub.env, "digest": stub.digest}
        more = {
            "turns": len(self.knobs.prompts),
            "status": "starting",
            "failure": None,
            "bundle": bundle,
            "wait_s": 0.0,
        }
        await self._observe({**told, **more}, metadata=told)

    async def _until_ready(self) -> None:
        await asyncio.sleep(max(self.ready_at - asyncio.get_running_loop().time(), 0))
        self._drop("start")

    async def _list_tools(self) -> None:
        await self._until_ready()
        if not await self._failing("start"):
            await self._observe({"tools": [*self.knobs.tools, END_TURN]})

    async def _call(self, tool: str, arguments: Json) -> None:
        if self.failed or self.ended:
            await self._fail(*(self.failed or ("cancelled", "the episode has ended; call reset")), tool=tool)
            return
        if tool == "end_turn":
            await self._end_turn(arguments.get("response", ""))
            return
        if self.stub.keep:
            self.stub.calls.append((tool, arguments))
        await asyncio.sleep(self.knobs.tool_s)
        self._drop("tool")
        if await self._failing("tool", tool):
            return
        if all(tool != known["name"] for known in self.knobs.tools):
            await self._tool_error(tool, "tool_not_found", f"no tool {tool!r}")
        elif tool == "fail":
            await self._tool_error(tool, "execution_error", "it failed")
        else:
            output = self.knobs.output(tool, arguments) if self.knobs.output else json.dumps({"saw": arguments})
            await self._observe({"tool_name": tool, "result": _result(output), "error": None, "failure": None})

    async def _end_turn(self, response: str) -> None:
        if self.stub.keep:
            self.stub.replies.append(response)
        self.turn += 1
        if self.turn < len(self.knobs.prompts):
            prompt = self.knobs.prompts[self.turn]
            result = {"prompt": prompt, "system_prompt": None} if self.stub.foreign else _result(prompt)
            await self._observe({"tool_name": "end_turn", "result": result, "error": None})
            return
        await asyncio.sleep(self.knobs.verify_s)
        self._drop("verify")
        if await self._failing("verify", "end_turn"):
            return
        self.ended = True
        metadata = {"scores": self.knobs.scores, "task": self.task}
        fields: Json = {"tool_name": "end_turn", "result": None, "error": None}
        if not self.stub.foreign:
            episode = {"id": "episode-1", "turns_played": self.turn, "timings": {"deploy_s": 0.5, "verify_s": 0.25}}
            metadata["episode"] = episode
            fields |= {"scores": self.knobs.scores, "status": "done", "episode": episode, "failure": None}
        await self._observe(fields, done=True, reward=self.knobs.reward, metadata=metadata)

    def _drop(self, phase: str) -> None:
        if phase in self.knobs.drop:
            raise _Dropped

    async def _failing(self, phase: str, tool: str | None = None) -> bool:
        if phase not in self.knobs.fail:
            return False
        self.failed = self.knobs.fail[phase]
        await self._fail(*self.failed, tool=tool)
        return True

    async def _fail(self, kind: str, reason: str, tool: str | None = None) -> None:
        if self.stub.foreign and tool not in (None, "end_turn") and kind in ("timeout", "transport_error"):
            await self._tool_error(str(tool), kind, reason)
            return
        failure = {"kind": kind, "reason": reason}
        metadata = {"status": "error", "error": f"{kind}: {reason}", "task": self.task}
        if self.stub.foreign:
            await self._observe({}, done=True, metadata=metadata)
        else:
            fields = {"status": "error", "failure": failure, "tools": []}
            await self._observe(fields, done=True, metadata={**metadata, "failure": failure})

    async def _tool_error(self, tool: str, kind: str, message: str) -> None:
        await self._observe({"tool_name": tool, "result": None, "error": {"error_type": kind, "message": message}})

    async def _observe(self, fields: Json, *, done: bool = False, reward: Json = None, metadata: Json = None) -> None:
        data = {"observation": fields, "reward": reward, "done": done}
        await self._send("observation", data if metadata is None else {**data, "metadata": metadata})

    async def _error(self, code: str, message: str) -> None:
        await self._send("error", {"code": code, "message": message})

    async def _send(self, kind: str, data: Json) -> None:
        await self.send({"type": "websocket.send", "text": json.dumps({"type": kind, "data": data})})


def _result(output: Json) -> Json:
    if not isinstance(output, str):
        return output
    content = [{"type": "text", "text": output}]
    return {"content": content, "structured_content": None, "meta": None, "data": output, "is_error": False}


def main() -> None:
    import argparse

    import uvicorn

    parser = argparse.ArgumentParser()
    parser.add_argument("--port", type=int, default=8200)
    parser.add_argument("--places", type=int, default=96)
    parser.add_argument("--episode", type=float, default=0.0, help="seconds from reset to ready")
    given = parser.parse_args()
    stub = StubOpenEnv(Knobs(start_s=given.episode), places=given.places)
    uvicorn.run(stub, port=given.port, log_level="error", ws="websockets-sansio")


if __name__ == "__main__":
    main()
