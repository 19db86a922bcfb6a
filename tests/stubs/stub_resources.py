"""A resources server without anything behind it, for the tests of our trainer-side client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

Handler = Callable[[Request], Awaitable[Response]]


@dataclass
class StubResources:
    """Rewards what `submit` got: `{"answer": x}` earns x, nothing submitted earns 0."""

    seen: list[tuple[str, str | None, Any]] = field(default_factory=list)
    """(path, Cookie header, parsed body) of each request"""
    seed: Handler | None = None
    tool: Handler | None = None
    verify: Handler | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    """put into verify answers"""
    connections: set[tuple[str, int]] = field(default_factory=set)
    running: int = 0
    most: int = 0
    """rollouts between seed and verify at once"""
    _answers: dict[str, float] = field(default_factory=dict)

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/seed_session", self._seed, methods=["POST"]),
                Route("/verify", self._verify, methods=["POST"]),
                Route("/{tool}", self._tool, methods=["POST"]),
            ]
        )

    async def _note(self, request: Request) -> Any:
        body = await request.json()
        self.seen.append((request.url.path, request.headers.get("cookie"), body))
        assert request.client
        self.connections.add((request.client.host, request.client.port))
        return body

    async def _seed(self, request: Request) -> Response:
        await self._note(request)
        self.running += 1
        self.most = max(self.most, self.running)
        if self.seed:
            return await self.seed(request)
        answer = JSONResponse({})
        answer.set_cookie("session", f"s{len(self.seen)}", path="/", secure=True)
        return answer

    async def _tool(self, request: Request) -> Response:
        body = await self._note(request)
        if self.tool:
            return await self.tool(request)
        await asyncio.sleep(0)
        if request.path_params["tool"] == "submit" and isinstance(body.get("answer"), int | float):
            self._answers[request.cookies["session"]] = body["answer"]
        answer = PlainTextResponse(f"called {request.path_params['tool']}")
        answer.set_cookie("session", "rotated")
        return answer

    async def _verify(self, request: Request) -> Response:
        body = await self._note(request)
        self.running -= 1
        if self.verify:
            return await self.verify(request)
        reward = self._answers.get(request.cookies.get("session", ""), 0.0)
        return JSONResponse(
            {
                "reward": reward,
                "responses_create_params": body["responses_create_params"],
                "response": body["response"],
                "mask_sample": False,
                "episode": {"kind": None, "scores": {"grade": reward}},
            }
            | self.extra
        )
