from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from starlette.responses import JSONResponse, PlainTextResponse
from stubs.judge import Answer, StubJudge, completion

from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.grading import judge as module
from agent_env.grading.judge import Judge, JudgeSettings

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST_PAUSE", 0.01)


@asynccontextmanager
async def asking(*answers: Answer, **settings: Any) -> AsyncIterator[tuple[Judge, StubJudge]]:
    stub = StubJudge(*answers)
    async with stub.serving() as url:
        judge = Judge(JudgeSettings(base_url=url, **{"model": "m", **settings}))
        try:
            yield judge, stub
        finally:
            await judge.aclose()


async def ask(judge: Judge, **more: Any) -> str:
    usual: dict[str, Any] = {"base_url": None, "model": None, "schema": {"type": "object"}, "timeout": 5.0}
    return await judge.ask("Judge it.", **{**usual, **more})


async def test_the_answer_is_the_messages_text() -> None:
    async with asking("fine", key="k") as (judge, stub):
        assert await ask(judge, arguments={"reasoning_effort": "low"}) == "fine"
    (body,) = stub.bodies
    assert body["model"] == "m"
    assert body["messages"] == [{"role": "user", "content": "Judge it."}]
    assert body["reasoning_effort"] == "low"
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert stub.headers[0]["authorization"] == "Bearer k"


async def test_content_in_parts_and_content_that_is_none_are_texts() -> None:
    async with asking(completion([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])) as (judge, _):
        assert await ask(judge) == "ab"
    async with asking(completion(None)) as (judge, _):
        assert await ask(judge) == ""


async def test_the_operators_endpoint_and_model_win_over_the_tasks() -> None:
    async with asking("fine") as (judge, stub):
        await ask(judge, base_url="http://127.0.0.1:1/v1", model="theirs")
    assert stub.bodies[0]["model"] == "m"


async def test_the_key_goes_to_no_endpoint_that_a_task_chose() -> None:
    stub = StubJudge("fine")
    async with stub.serving() as url:
        judge = Judge(JudgeSettings(base_url=None, model=None, key="secret"))
        assert await ask(judge, base_url=url, model="theirs") == "fine"
        await judge.aclose()
    assert "authorization" not in stub.headers[0]
    assert stub.bodies[0]["model"] == "theirs"


async def test_the_key_is_not_shown() -> None:
    assert "secret" not in repr(JudgeSettings(key="secret"))


async def test_a_busy_endpoint_is_asked_again() -> None:
    busy = JSONResponse({"error": "busy"}, status_code=429, headers={"Retry-After": "0"})
    async with asking(busy, PlainTextResponse("down", status_code=502), "fine") as (judge, stub):
        assert await ask(judge) == "fine"
    assert len(stub.bodies) == 3


async def test_an_endpoint_without_response_format_is_asked_without() -> None:
    refuses = JSONResponse({"error": {"message": "response_format is not supported"}}, status_code=400)
    async with asking(refuses, "fine") as (judge, stub):
        assert await ask(judge) == "fine"
    assert ["response_format" in body for body in stub.bodies] == [True, False]


@pytest.mark.parametrize(
    ("answer", "why", "asked"),
    [
        (JSONResponse({"error": {"message": "no such model"}}, status_code=404), "HTTP 404: .*no such model", 1),
        (PlainTextResponse("go away", status_code=401), "HTTP 401: go away", 1),
        (PlainTextResponse("oh", status_code=500), "HTTP 500: oh", 3),
        (JSONResponse({"choices": []}), "the answer is no chat completion", 1),
        (PlainTextResponse("hello"), "the answer is no chat completion: hello", 1),
    ],
)
async def test_a_judge_that_gives_no_answer_masks_and_says_what_came(answer: Any, why: str, asked: int) -> None:
    async with asking(answer) as (judge, stub):
        with pytest.raises(EpisodeFailure, match=why) as caught:
            await ask(judge)
        assert caught.value.kind is FailureKind.JUDGE_FAILED
    assert len(stub.bodies) == asked


async def test_nobody_there_is_a_failed_judge() -> None:
    judge = Judge(JudgeSettings(base_url="http://127.0.0.1:1/v1", model="m"))
    with pytest.raises(EpisodeFailure, match=r"http://127\.0\.0\.1:1/v1") as caught:
        await ask(judge)
    assert caught.value.kind is FailureKind.JUDGE_FAILED
    await judge.aclose()


async def test_an_answer_that_does_not_come_has_a_deadline() -> None:
    async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with await asyncio.start_server(hear, "127.0.0.1", 0) as silent:
        port = silent.sockets[0].getsockname()[1]
        judge = Judge(JudgeSettings(base_url=f"http://127.0.0.1:{port}/v1", model="m"))
        with pytest.raises(EpisodeFailure, match=r"no answer within 0\.2 s"):
            await ask(judge, timeout=0.2)
        await judge.aclose()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (JudgeSettings(), "no judge is set: give its endpoint as AGENT_ENV_JUDGE_BASE_URL"),
        (JudgeSettings(base_url="ftp://x"), "is no URL like"),
        (JudgeSettings(base_url="nowhere"), "is no URL like"),
        (JudgeSettings(base_url="http://x/v1"), "no judge model is set"),
    ],
)
async def test_what_is_missing_is_named(settings: JudgeSettings, why: str) -> None:
    assert why in (Judge(settings).problem(base_url=None, model=None) or "")
    with pytest.raises(EpisodeFailure) as caught:
        await ask(Judge(settings))
    assert caught.value.kind is FailureKind.JUDGE_FAILED


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("BASE_URL", "http://j/v1"), ("MODEL", "big"), ("API_KEY", "")):
        monkeypatch.setenv(f"AGENT_ENV_JUDGE_{name}", value)
    assert JudgeSettings.from_environment() == JudgeSettings("http://j/v1", "big", None)
