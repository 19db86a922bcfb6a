"""A model written as a function, behind a streaming OpenAI-compatible chat completions endpoint on a free port."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from clients.in_thread import serving
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

PIECE = 7
"""characters a streamed piece has, so that clients must join what belongs together"""


@dataclass(frozen=True)
class Call:
    """One tool call; `arguments` is the text as a model writes it, JSON or not."""

    name: str
    arguments: str = "{}"

    @classmethod
    def of(cls, name: str, arguments: Any) -> Call:
        return cls(name, json.dumps(arguments))


@dataclass(frozen=True)
class Reply:
    """One assistant message."""

    content: str = ""
    calls: tuple[Call, ...] = ()
    finish_reason: str | None = None
    """default: `tool_calls` with calls, else `stop`"""


@dataclass(frozen=True)
class Refusal(Exception):
    """What the endpoint answers in place of a message."""

    status: int
    message: str


@dataclass(frozen=True)
class Conversation:
    """A request for the next assistant message."""

    messages: tuple[Mapping[str, Any], ...]
    tools: tuple[Mapping[str, Any], ...]
    body: Mapping[str, Any] = field(repr=False)

    @property
    def system(self) -> str:
        return "\n".join(_text(m) for m in self.messages if m["role"] in ("system", "developer"))

    @property
    def prompt(self) -> str:
        return "\n".join(_text(m) for m in self.messages if m["role"] == "user")

    @property
    def turn(self) -> int:
        """Assistant messages so far."""
        return sum(m["role"] == "assistant" for m in self.messages)

    @property
    def results(self) -> list[str]:
        """What the tool calls answered, in order."""
        return [_text(m) for m in self.messages if m["role"] == "tool"]


Policy = Callable[[Conversation], Reply]
"""May take its time: it runs in a thread."""


def script(*replies: Reply | Refusal) -> Policy:
    """Says these one after the other, whatever is answered, and then `Done.`"""

    def say(conversation: Conversation) -> Reply:
        reply = replies[conversation.turn] if conversation.turn < len(replies) else Reply("Done.")
        if isinstance(reply, Refusal):
            raise reply
        return reply

    return say


class ScriptedModel:
    """Answers each conversation by the policy of its prompt; keeps every request.

    Args:
        policies: by the user's prompt, so that rows need no mark of their own.
        default: for prompts that are not among them.
    """

    def __init__(self, policies: Mapping[str, Policy] | None = None, default: Policy | None = None) -> None:
        self.policies = dict(policies or {})
        self.default = default
        self.requests: list[Conversation] = []
        self.url = ""

    def conversations(self, prompt: str) -> list[Conversation]:
        """The requests with this prompt, in order; the last one holds most of the rollout."""
        return [request for request in self.requests if request.prompt == prompt]

    @contextmanager
    def serving(self) -> Iterator[ScriptedModel]:
        """Listen on 127.0.0.1 in a thread; `url` is the base URL for clients."""
        app = Starlette(routes=[Route("/v1/chat/completions", self._complete, methods=["POST"])])
        with serving(app) as url:
            self.url = f"{url}/v1"
            yield self

    async def _complete(self, request: Request) -> Response:
        body = await request.json()
        conversation = Conversation(tuple(body["messages"]), tuple(body.get("tools") or ()), body)
        self.requests.append(conversation)
        policy = self.policies.get(conversation.prompt, self.default)
        try:
            if policy is None:
                raise Refusal(400, f"no policy is scripted for the prompt {conversation.prompt!r}")
            reply = await run_in_threadpool(policy, conversation)
        except Refusal as refusal:
            error = {"message": refusal.message, "type": "invalid_request_error", "code": None, "param": None}
            return JSONResponse({"error": error}, refusal.status)
        message = _message(reply)
        if not body.get("stream"):
            choice = {"index": 0, "message": message, "finish_reason": _finish(reply)}
            return JSONResponse(_envelope(body, "chat.completion", [choice]) | {"usage": _USAGE})
        return StreamingResponse(_stream(body, reply, message), media_type="text/event-stream")


_USAGE = {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110}


async def _stream(body: Mapping[str, Any], reply: Reply, message: Mapping[str, Any]) -> AsyncIterator[bytes]:
    head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time())}
    for delta in _deltas(message):
        yield _event(_envelope(body, "chat.completion.chunk", [_choice(delta, None)]) | head)
    yield _event(_envelope(body, "chat.completion.chunk", [_choice({}, _finish(reply))]) | head)
    if (body.get("stream_options") or {}).get("include_usage"):
        yield _event(_envelope(body, "chat.completion.chunk", []) | head | {"usage": _USAGE})
    yield b"data: [DONE]\n\n"


def _deltas(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    yield {"role": "assistant", "content": ""}
    for piece in _pieces(message.get("content") or ""):
        yield {"content": piece}
    for index, call in enumerate(message.get("tool_calls", ())):
        function = call["function"]
        opening = {"index": index, "id": call["id"], "type": "function"}
        yield {"tool_calls": [opening | {"function": {"name": function["name"], "arguments": ""}}]}
        for piece in _pieces(function["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def _message(reply: Reply) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.content or None}
    if reply.calls:
        message["tool_calls"] = [
            {
                "id": f"call_{uuid.uuid4().hex[:8]}",
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in reply.calls
        ]
    return message


def _envelope(body: Mapping[str, Any], kind: str, choices: Sequence[Any]) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": body.get("model"),
        "choices": list(choices),
    }


def _choice(delta: Mapping[str, Any], finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "delta": delta, "finish_reason": finish_reason}


def _finish(reply: Reply) -> str:
    return reply.finish_reason or ("tool_calls" if reply.calls else "stop")


def _pieces(text: str) -> Iterator[str]:
    return (text[start : start + PIECE] for start in range(0, len(text), PIECE))


def _event(chunk: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(chunk).encode() + b"\n\n"


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content") or ""
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
