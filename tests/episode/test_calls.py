from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from stubs.stage import AGENT, ASK, ENV, GRADE, a_bundle, staged

from agent_env.episode import EpisodeError
from agent_env.episode.calls import EXCERPT, ModelCalls, excerpt

pytestmark = pytest.mark.integration


def openai(*calls: tuple[str, Any], text: str = "") -> dict[str, Any]:
    made = [
        {"id": str(n), "type": "function", "function": {"name": name, "arguments": arguments}}
        for n, (name, arguments) in enumerate(calls)
    ]
    return {"role": "assistant", "content": text or None, "tool_calls": made}


def anthropic(*calls: tuple[str, Any], text: str = "") -> dict[str, Any]:
    blocks = [{"type": "tool_use", "id": str(n), "name": name, "input": given} for n, (name, given) in enumerate(calls)]
    return {"role": "assistant", "content": [{"type": "text", "text": text}, *blocks]}


def everything(name: str) -> bool:
    return True


def test_nothing_is_checked_before_a_message_is_recorded() -> None:
    calls = ModelCalls()
    calls.take("add", {"a": 1})
    calls.check_done()


@pytest.mark.parametrize(
    "message",
    [
        openai(("add", '{"a": 1}'), ("look", "")),
        openai(("add", {"a": 1}), ("look", None)),
        anthropic(("add", {"a": 1}), ("look", {})),
    ],
)
def test_each_call_of_a_message_runs_once_in_any_order(message: dict[str, Any]) -> None:
    calls = ModelCalls()
    calls.record(message, known=everything)
    with pytest.raises(EpisodeError, match="have not run: add, look"):
        calls.check_done()
    calls.take("look", {})
    with pytest.raises(EpisodeError, match="no such call of 'look'"):
        calls.take("look", {})
    with pytest.raises(EpisodeError, match="no such call of 'add'"):
        calls.take("add", {"a": 2})
    calls.take("add", {"a": 1})
    calls.check_done()


def test_arguments_that_are_no_json_may_run_as_any() -> None:
    calls = ModelCalls()
    calls.record(openai(("add", "{oops"), ("look", "[1]")), known=everything)
    calls.take("add", {"a": 9})
    calls.take("look", {})


def test_a_text_makes_no_calls() -> None:
    calls = ModelCalls()
    calls.record("All done.", known=everything, model="m", usage={"tokens": 3})
    assert calls.said == "All done."
    assert calls.log == [{"model": "m", "usage": {"tokens": 3}}]
    with pytest.raises(EpisodeError):
        calls.take("add", {})
    calls.check_done()


def test_calls_of_tools_that_the_turn_has_not_are_passed_over() -> None:
    calls = ModelCalls()
    calls.record(openai(("no_such", "{}")), known=lambda name: False)
    calls.check_done()


def test_the_said_text_is_joined_from_blocks() -> None:
    calls = ModelCalls()
    calls.record(anthropic(text="Let me see."), known=everything)
    assert calls.said == "Let me see."
    calls.record(openai(text="Hm."), known=everything)
    assert calls.said == "Hm."


def test_long_texts_are_cut() -> None:
    assert excerpt("short") == "short"
    assert excerpt({"a": 1}) == {"a": 1}
    assert excerpt("x" * 5000) == "x" * EXCERPT + "... (5000 characters)"
    assert isinstance(excerpt({"a": "x" * 5000}), str)


@pytest.mark.anyio
async def test_a_turn_holds_its_player_to_what_the_model_said(tmp_path: Path) -> None:
    async with staged(a_bundle(tmp_path / "b", ENV, AGENT, ASK, GRADE)) as start:
        episode = await start()
        turn = await episode.next_turn()
        await turn.record_model_call(openai(("submit", json.dumps({"value": 0.5})), ("no_such", "{}")), model="m")
        async with turn.tools() as tools:
            with pytest.raises(EpisodeError, match="no such call of 'submit'"):
                await tools.call("submit", {"value": 1.0})
            assert (await tools.call("no_such", {})).is_error
            with pytest.raises(EpisodeError, match="have not run: submit"):
                await turn.record_model_call("done")
            with pytest.raises(EpisodeError, match="have not run: submit"):
                await turn.end("done")
            assert not turn.over
            assert not (await tools.call("submit", {"value": 0.5})).is_error
        await turn.record_model_call("done")
        await turn.end("done")
        assert await episode.result() == {"grade": 0.5}
        with pytest.raises(EpisodeError, match="over"):
            await turn.record_model_call("more")


@pytest.mark.anyio
async def test_a_turn_whose_time_is_up_ends_whatever_was_still_to_be_called(tmp_path: Path) -> None:
    late = {**ASK, "timeout_seconds": 0.3}
    bundle = a_bundle(tmp_path / "b", ENV, AGENT, late, GRADE, settings='on_turn_timeout = "score"')
    async with staged(bundle) as start:
        episode = await start()
        turn = await episode.next_turn()
        await turn.record_model_call(openai(("submit", "{}")))
        assert await episode.result() == {"grade": 0.0}
