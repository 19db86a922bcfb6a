"""A judge's endpoint that answers as it is told to, and keeps what it was asked."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from stubs.quick_server import quick

Answer = Response | str | Callable[[dict[str, Any]], Response | str]


class StubJudge:
    """`answers` are given in turn, the last one for ever. A text is the reply of the model."""

    def __init__(self, *answers: Answer) -> None:
        self.answers = list(answers)
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.url = ""

    @property
    def prompts(self) -> list[str]:
        return [body["messages"][-1]["content"] for body in self.bodies]

    async def _answer(self, request: Request) -> Response:
        self.bodies.append(json.loads(await request.body()))
        self.headers.append(dict(request.headers))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer) and not isinstance(answer, Response):
            answer = answer(self.bodies[-1])
        return completion(answer) if isinstance(answer, str) else answer

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """Its base URL."""
        app = Starlette(routes=[Route("/v1/chat/completions", self._answer, methods=["POST"])])
        async with quick(app) as url:
            self.url = f"{url}/v1"
            yield self.url


def completion(text: Any) -> Response:
    return JSONResponse({"choices": [{"message": {"role": "assistant", "content": text}}]})


def verdicts(*scores: float, first: int = 1) -> str:
    rows: Sequence[dict[str, Any]] = [
        {"number": number, "justification": f"because {number}", "score": score}
        for number, score in enumerate(scores, first)
    ]
    return json.dumps({"verdicts": rows})
