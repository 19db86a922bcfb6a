"""A client of the resources server for tests: one rollout with its cookie, over httpx, nothing hidden."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx
from stubs.quick_server import quick
from stubs.stub_openenv import StubOpenEnv

from agent_env.training.nemo_gym.folder import FolderConfig
from agent_env.training.nemo_gym.options import ServeOptions
from agent_env.training.nemo_gym.server import ResourcesServer, build_server

Json = Any


def row(split: str = "train", index: Json = 0, **fields: Json) -> dict[str, Json]:
    return {"responses_create_params": {"input": "Play."}, "split": split, "index": index, **fields}


def response(*output: Json) -> dict[str, Json]:
    return {"id": "resp_1", "object": "response", "output": list(output)}


def message(text: str) -> dict[str, Json]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


async def post(url: str, path: str, body: object, cookie: str = "") -> tuple[int, dict[str, str], bytes]:
    """One connection per request, as verifiers does; httpx with hundreds of connections would be the limit."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    content = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(content)}\r\n"
    writer.write(f"{head}Cookie: {cookie}\r\n\r\n".encode() + content)
    try:
        status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        answer = await reader.read()
    finally:
        writer.close()
    return int(status.split()[1]), dict(line.split(": ", 1) for line in lines), answer


async def until(true: Callable[[], bool], limit: float = 5.0) -> None:
    """Returns once `true` is; a test that waits in vain fails."""
    async with asyncio.timeout(limit):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


class Rollout:
    """Keeps the seed's cookie as verifiers does: that one, unchanged, to the end."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.cookie: str | None = None

    async def seed(self, body: Json = None, **fields: Json) -> httpx.Response:
        answer = await self.post("/seed_session", row(**fields) if body is None else body)
        self.cookie = answer.headers["set-cookie"].split(";")[0]
        return answer

    async def call(self, tool: str, arguments: Json = None) -> httpx.Response:
        return await self.post(f"/{tool}", {} if arguments is None else arguments)

    async def verify(self, text: str = "Done.", **fields: Json) -> httpx.Response:
        return await self.post("/verify", row() | {"response": response(message(text))} | fields)

    async def post(self, path: str, body: Json, headers: Mapping[str, str] | None = None) -> httpx.Response:
        sent = dict(headers or {})
        if self.cookie:
            sent.setdefault("cookie", self.cookie)
        content = {"content": body} if isinstance(body, bytes | str) else {"json": body}
        self.http.cookies.clear()
        return await self.http.post(path, headers=sent, **content)


class Bench:
    """A resources server in front of a stub OpenEnv server."""

    def __init__(self, stub: StubOpenEnv, app: ResourcesServer, url: str, http: httpx.AsyncClient) -> None:
        self.stub = stub
        self.app = app
        self.url = url
        self.http = http

    @property
    def tally(self) -> Any:
        return self.app.sessions.tally

    def rollout(self) -> Rollout:
        return Rollout(self.http)

    async def seeded(self, **fields: Json) -> Rollout:
        rollout = self.rollout()
        answer = await rollout.seed(**fields)
        assert answer.status_code == 200, answer.text
        return rollout


@asynccontextmanager
async def bench(
    stub: StubOpenEnv | None = None, folder: Mapping[str, Json] | None = None, **options: Json
) -> AsyncIterator[Bench]:
    stub = stub or StubOpenEnv()
    async with quick(stub) as upstream:
        config = FolderConfig(**{"name": "stub_v1", "openenv_url": upstream, "env": stub.env} | dict(folder or {}))
        app = build_server(config, ServeOptions(**options))
        async with quick(app) as url, httpx.AsyncClient(base_url=url, timeout=20, verify=False) as http:
            yield Bench(stub, app, url, http)
    assert stub.running == 0, "an episode was left behind"
