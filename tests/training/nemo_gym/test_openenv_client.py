from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve

from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.training.nemo_gym.openenv_client import EpisodeLink, ServerFull
from agent_env.training.nemo_gym.wire import WireError

pytestmark = pytest.mark.anyio


def observation(fields: Any = None, **data: Any) -> dict[str, Any]:
    return {"type": "observation", "data": {"observation": fields or {}, "reward": None, "done": False, **data}}


def error(code: str, message: str) -> dict[str, Any]:
    return {"type": "error", "data": {"code": code, "message": message}}


@asynccontextmanager
async def link(
    answer: Callable[[Any], Any], *, ours: bool = True, max_output: int = 1 << 20
) -> AsyncIterator[EpisodeLink]:
    """A link to a server that answers each message with what `answer` gives: an object, text, or None for silence."""

    async def handle(socket: ServerConnection) -> None:
        async for text in socket:
            reply = answer(json.loads(text))
            if isinstance(reply, int):
                await socket.close(reply)
            elif reply is not None:
                await socket.send(reply if isinstance(reply, str) else json.dumps(reply))

    async with serve(handle, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        opened = await EpisodeLink.connect(url, ours=ours, max_output=max_output)
        try:
            yield opened
        finally:
            await opened.close()


async def failure(work: Any) -> EpisodeFailure:
    with pytest.raises(EpisodeFailure) as caught:
        await work
    return caught.value


async def test_a_reply_that_was_not_awaited_to_its_end_is_never_taken_for_the_next() -> None:
    async with link(lambda message: None) as opened:
        first = await failure(opened.call("look", "{}", 0.05))
        assert first.kind is FailureKind.TOOL_TIMEOUT
        second = await failure(opened.call("look", "{}", 5))
        assert second.kind is FailureKind.PROVIDER_UNAVAILABLE
        assert "not awaited to its end" in second.reason


async def test_a_cancelled_wait_leaves_the_link_dead_too() -> None:
    async with link(lambda message: None) as opened:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await opened.call("look", "{}", 5)
        assert "not awaited to its end" in (await failure(opened.end_turn("", 5))).reason


async def test_a_closed_link_says_so_and_can_be_closed_again() -> None:
    async with link(lambda message: observation()) as opened:
        await opened.close()
        await opened.close()
        assert "closed" in (await failure(opened.call("look", "{}", 5))).reason


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        ("not json", FailureKind.ENV_PROTOCOL_ERROR, "not JSON"),
        ('{"type":"observation"}', FailureKind.ENV_PROTOCOL_ERROR, "no data"),
        ("[]", FailureKind.ENV_PROTOCOL_ERROR, "no data"),
        ('{"type":"observation","data":{"reward":NaN}}', FailureKind.ENV_PROTOCOL_ERROR, "not JSON"),
        (error("EXECUTION_ERROR", "boom"), FailureKind.ENV_PROTOCOL_ERROR, "boom"),
        (error("SESSION_ERROR", "x"), FailureKind.ENV_PROTOCOL_ERROR, "SESSION_ERROR"),
        (observation({"failure": {"kind": "env_crashed", "reason": "r"}}), FailureKind.ENV_CRASHED, "r"),
        (observation({"failure": {"kind": "of a later version", "reason": "r"}}), FailureKind.ENV_UNREACHABLE, "r"),
        (observation({"failure": {"kind": None, "reason": "r"}}), FailureKind.ENV_UNREACHABLE, "r"),
        (observation(metadata={"status": "error", "error": "X: y"}), FailureKind.ENV_UNREACHABLE, "X: y"),
        (observation({"metadata": {"status": "error", "error": "X: y"}}), FailureKind.ENV_UNREACHABLE, "X: y"),
        (1000, FailureKind.PROVIDER_UNAVAILABLE, "closed the session (1000)"),
        (1012, FailureKind.SERVER_SHUTDOWN, "was stopped"),
        (1001, FailureKind.SERVER_SHUTDOWN, "was stopped"),
    ],
)  # fmt: skip
async def test_what_goes_wrong_in_a_call_has_a_kind(reply: Any, kind: FailureKind, said: str) -> None:
    async with link(lambda message: reply) as opened:
        failed = await failure(opened.call("look", "{}", 5))
        assert failed.kind is kind
        assert said in failed.reason


async def test_a_full_server_is_told_from_a_failure_even_when_it_closes_at_once() -> None:
    async def handle(socket: ServerConnection) -> None:
        await socket.send(json.dumps({"type": "error", "data": {"code": "CAPACITY_REACHED", "message": "8 of 8"}}))

    async with serve(handle, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        for ours in (True, False):
            opened = await EpisodeLink.connect(url, ours=ours, max_output=1000)
            await asyncio.sleep(0.05)
            with pytest.raises(ServerFull, match="8 of 8"):
                await opened.reset("train", 0, 5)
            await opened.close()


async def test_an_output_past_every_bound_is_a_failure_that_names_the_flag() -> None:
    async with link(lambda message: observation({"result": {"data": "x" * 2_000_000}}), max_output=1000) as opened:
        failed = await failure(opened.call("look", "{}", 5))
        assert (failed.kind, "--max-output" in failed.reason) == (FailureKind.ENV_PROTOCOL_ERROR, True)


async def test_an_output_of_control_characters_at_the_limit_gets_through() -> None:
    text = "\x1b" * 1_000_000
    result = {"content": [{"type": "text", "text": text}], "data": text}
    async with link(lambda message: observation({"result": result}), max_output=1_000_000) as opened:
        assert (await opened.call("look", "{}", 5)).text == text


async def test_our_reset_tells_the_task_its_turns_and_the_bundle() -> None:
    task = {"id": "tasks/a", "name": "a", "split": "train", "index": 3}
    fields = {"task": task, "turns": 2, "status": "starting", "failure": None, "bundle": {"name": "b", "digest": "d"}}
    asked = []
    async with link(lambda message: asked.append(message) or observation(fields)) as opened:
        started = await opened.reset("train", 3, 5)
    assert asked == [{"type": "reset", "data": {"split": "train", "index": 3, "ready": False}}]
    assert started.task is not None
    assert (started.task.name, started.turns, started.digest) == ("a", 2, "d")


async def test_a_reset_that_the_server_refuses_is_the_rows_fault() -> None:
    async with link(lambda message: error("EXECUTION_ERROR", "no index 9")) as opened:
        with pytest.raises(WireError, match="no index 9") as caught:
            await opened.reset("train", 9, 5)
        assert caught.value.status == 409


@pytest.mark.parametrize(
    ("answer", "raised"),
    [("HTTP/1.1 503 Busy\r\n\r\n", ServerFull), ("HTTP/1.1 404 No\r\n\r\n", OSError), ("", OSError)],
)
async def test_an_upgrade_that_is_refused_can_be_told_apart(answer: str, raised: type[Exception]) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer.encode())
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    async with server:
        with pytest.raises(raised):
            await EpisodeLink.connect(
                f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", ours=True, max_output=1000
            )
