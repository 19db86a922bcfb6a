"""Policies and models at the turns of real episodes."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from stubs.quick_server import quick
from stubs.runtimes import a_runtime, outcomes_of
from stubs.stub_bundle import stub_task, write_stub_bundle

from agent_env.bundle import Bundle, load_bundle
from agent_env.commands.chat import ChatModel, EndpointRefuses
from agent_env.commands.episodes import play_tasks
from agent_env.commands.outcomes import Outcome, Status
from agent_env.commands.players import ModelPlayer, policy_player
from agent_env.commands.selection import choose
from agent_env.episode import Deadlines, plan_bundle
from agent_env.training.nemo_gym.rows import NO_FURTHER_PROMPT

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

POLICIES = """
import asyncio

SEEN = []
ASLEEP = asyncio.Event()

async def half(play):
    await play.call("submit", {"value": 0.5})
    play.say("first thoughts")
    play.say("done")

async def looks(play):
    SEEN.append((play.row, play.prompt, play.tools, play.rng.random()))

async def wrong(play):
    SEEN.append([await play.call(*call) for call in [
        ("nope", {}), ("add", "[]"), ("add", '{"a": NaN}'), ("add", '{"a": '), ("fail", {"message": "no"}),
        ("add", ""), ("add", {"a": 1, "b": 2}), ("end_turn", {"response": "x"})]])

async def raises(play):
    raise ValueError("no idea")

async def crashes(play):
    try:
        await play.call("crash", {})
    except Exception:
        raise ValueError("something") from None

async def both(play):
    await play.call("submit", {"value": 0.25})
    SEEN.append(await play.call("end_turn", {"response": "one"}))
    await play.call("submit", {"value": 0.75})
    SEEN.append(await play.call("end_turn", {"response": "two"}))
    SEEN.append(await play.call("end_turn", {"response": 3}))
    SEEN.append(await play.call("end_turn", "["))
    play.say("last words")

async def stops_early(play):
    play.say("that is all")

async def sleeps(play):
    ASLEEP.set()
    await asyncio.sleep(600)
"""


@pytest.fixture
def policies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    (tmp_path / "a_players_module.py").write_text(POLICIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "a_players_module", raising=False)
    import a_players_module

    return a_players_module


def bundle(folder: Path, *, prompts: tuple[str, ...] = ("Submit the value.",), **more: Any) -> Bundle:
    return load_bundle(write_stub_bundle(folder / "stub-v1", tasks={"t": stub_task(0.3, prompts=prompts)}, **more))


async def by_policy(loaded: Bundle, name: str, **more: Any) -> Outcome:
    (outcome,) = await outcomes_of(loaded, policy_player(f"a_players_module:{name}"), **more)
    return outcome


async def test_a_policy_plays_and_its_last_words_end_the_turn(tmp_path: Path, policies: Any) -> None:
    outcome = await by_policy(bundle(tmp_path), "half")
    assert (outcome.status, outcome.scores, outcome.turns, outcome.calls) == (Status.BELOW_ONE, {"grade": 0.5}, 1, 1)
    roles = [message["role"] for message in outcome.messages]
    assert roles == ["system", "user", "assistant", "tool", "assistant", "assistant"]
    assert outcome.messages[2]["tool_calls"][0]["function"] == {"name": "submit", "arguments": '{"value": 0.5}'}
    assert outcome.messages[-1]["content"] == "done"
    assert set(outcome.timings) >= {"wait_s", "deploy_s", "load_s", "turn_s", "verify_s", "teardown_s"}


async def test_it_sees_the_row_of_its_task(tmp_path: Path, policies: Any) -> None:
    loaded = bundle(tmp_path)
    for _ in range(2):
        await by_policy(loaded, "looks")
    (row, prompt, tools, first), (_, _, _, second) = policies.SEEN
    assert (row["split"], row["index"], row["task_id"]) == ("train", 0, "t")
    assert row["responses_create_params"]["input"][0]["content"] == "You test stubs."
    assert prompt == "Submit the value."
    assert tools[0]["name"] == "echo"
    assert {"type", "name", "description", "parameters", "strict"} == set(tools[0])
    assert "end_turn" not in [tool["name"] for tool in tools]
    assert first == second, "its random numbers are the row's own"


async def test_what_it_does_wrong_is_told_and_never_fails_the_task(tmp_path: Path, policies: Any) -> None:
    outcome = await by_policy(bundle(tmp_path), "wrong")
    assert outcome.status is Status.BELOW_ONE
    nope, array, nan, cut, refused, missing, added, ended = policies.SEEN[0]
    assert nope == "error: unknown tool 'nope'"
    assert "must be a JSON object, got list" in array
    assert "invalid JSON" in nan
    assert "invalid JSON" in cut
    assert "no" in refused
    assert "Error executing tool add" in missing
    assert json.loads(added) == {"sum": 3}
    assert ended == "error: unknown tool 'end_turn'", "a task of one turn does not offer it"


async def test_a_policy_that_raises_fails_the_task_and_says_where(tmp_path: Path, policies: Any) -> None:
    outcome = await by_policy(bundle(tmp_path), "raises")
    assert (outcome.status, outcome.kind) == (Status.FAILED, "policy")
    assert outcome.reason is not None
    assert outcome.reason.startswith("ValueError: no idea (a_players_module.py:")


async def test_what_the_env_failed_is_the_envs_whatever_the_policy_makes_of_it(tmp_path: Path, policies: Any) -> None:
    outcome = await by_policy(bundle(tmp_path), "crashes")
    assert (outcome.status, outcome.kind) == (Status.FAILED, "env_crashed")


async def test_a_policy_is_not_waited_for_when_the_episode_has_failed(tmp_path: Path, policies: Any) -> None:
    outcome = await by_policy(bundle(tmp_path), "sleeps", deadlines=Deadlines(turn=0.5))
    assert (outcome.status, outcome.kind) == (Status.FAILED, "turn_expired")


async def test_nor_when_its_time_is_up_and_the_env_has_that_scored(tmp_path: Path, policies: Any) -> None:
    loaded = bundle(tmp_path, settings='on_turn_timeout = "score"')
    outcome = await by_policy(loaded, "sleeps", deadlines=Deadlines(turn=0.5))
    assert (outcome.status, outcome.scores) == (Status.BELOW_ONE, {"grade": 0.0})


async def test_end_turn_leads_a_policy_to_the_next_prompt(tmp_path: Path, policies: Any) -> None:
    loaded = bundle(tmp_path, prompts=("First.", "Second."))
    outcome = await by_policy(loaded, "both")
    assert (outcome.scores, outcome.turns, outcome.calls) == ({"grade": 0.75}, 2, 2)
    text = "end_turn: response must be a text."
    assert policies.SEEN[:3] == ["Second.", NO_FURTHER_PROMPT, text]
    assert "invalid JSON" in policies.SEEN[3]
    said = [m["content"] for m in outcome.messages if m["role"] in ("user", "assistant") and m["content"]]
    assert said == ["First.", "one", "Second.", "last words"]


async def test_turns_that_a_policy_leaves_get_no_reply(tmp_path: Path, policies: Any) -> None:
    outcome = await by_policy(bundle(tmp_path, prompts=("First.", "Second.")), "stops_early")
    assert (outcome.status, outcome.turns) == (Status.BELOW_ONE, 2)


async def test_a_task_without_a_prompt_needs_no_player(tmp_path: Path) -> None:
    steps = [step for step in stub_task(0.3) if step["type"] not in ("deploy_agent", "prompt_agent")]
    loaded = load_bundle(write_stub_bundle(tmp_path / "b", tasks={"graded": steps, "bare": steps[:2]}))
    outcomes = {o.task: o for o in await outcomes_of(loaded, None)}
    assert (outcomes["graded"].status, outcomes["graded"].scores) == (Status.BELOW_ONE, {"grade": 0.0})
    assert (outcomes["bare"].status, outcomes["bare"].turns) == (Status.UNSCORED, 0)


async def test_a_task_that_is_not_run_here_has_failed_with_the_reason(tmp_path: Path, policies: Any) -> None:
    steps = [*stub_task(0.3), {"id": "stop", "type": "review"}]
    loaded = load_bundle(write_stub_bundle(tmp_path / "b", tasks={"t": steps}))
    outcome = await by_policy(loaded, "half")
    assert (outcome.status, outcome.kind) == (Status.FAILED, "unsupported")
    assert outcome.reason is not None
    assert outcome.reason.startswith("tasks/t.json: step 'stop': step type 'review' is not run here")


async def test_a_step_that_failed_without_ending_the_task_fails_it_all_the_same(tmp_path: Path, policies: Any) -> None:
    steps = stub_task(0.3)
    steps[1]["directives"][0]["args"] = {"value": "bad"}
    steps[1]["fail_task_on_error"] = False
    outcome = await by_policy(load_bundle(write_stub_bundle(tmp_path / "b", tasks={"t": steps})), "half")
    assert (outcome.status, outcome.scores) == (Status.FAILED, {"grade": 0.5})
    assert outcome.failed_steps[0]["step_id"] == "load"


async def test_cancelled_tasks_say_so_and_leave_nothing(tmp_path: Path, policies: Any) -> None:
    loaded = bundle(tmp_path)
    outcomes: list[Outcome] = []
    async with a_runtime(loaded) as runtime:
        player = policy_player("a_players_module:sleeps")
        tasks = choose(loaded, plan_bundle(loaded)).tasks
        playing = asyncio.create_task(play_tasks(tasks, runtime, player, outcomes.append))
        async with asyncio.timeout(20):
            await policies.ASLEEP.wait()
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing
    assert [outcome.status for outcome in outcomes] == [Status.CANCELLED]


# --- models


class Model:
    """Replies in turn; keeps what it was asked."""

    def __init__(self, *replies: dict[str, Any] | Response) -> None:
        self.replies = list(replies)
        self.bodies: list[dict[str, Any]] = []

    async def answer(self, request: Request) -> Response:
        self.bodies.append(json.loads(await request.body()))
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, Response):
            return reply
        return JSONResponse({"choices": [{"message": {"role": "assistant", **reply}}]})

    @asynccontextmanager
    async def player(self, **more: Any) -> AsyncIterator[ModelPlayer]:
        app = Starlette(routes=[Route("/v1/chat/completions", self.answer, methods=["POST"])])
        async with quick(app) as url:
            yield ModelPlayer(ChatModel("m", f"{url}/v1"), **{"max_turns": 10, **more})


def calls(*pairs: tuple[str, Any]) -> dict[str, Any]:
    return {
        "content": None,
        "tool_calls": [
            {"id": f"c{n}", "type": "function", "function": {"name": name, "arguments": arguments}}
            for n, (name, arguments) in enumerate(pairs)
        ],
    }


async def by_model(loaded: Bundle, model: Model, **more: Any) -> Outcome:
    async with model.player(**more) as player:
        (outcome,) = await outcomes_of(loaded, player)
    return outcome


async def test_a_model_calls_tools_and_its_reply_ends_the_turn(tmp_path: Path) -> None:
    model = Model(calls(("add", '{"a": 1, "b": 2}'), ("submit", '{"value": 1}')), {"content": "Done."})
    outcome = await by_model(bundle(tmp_path), model)
    assert (outcome.status, outcome.scores, outcome.calls) == (Status.PASSED, {"grade": 1.0}, 2)
    first, second = model.bodies
    assert [m["role"] for m in first["messages"]] == ["system", "user"]
    assert first["tools"][0]["function"]["name"] == "echo"
    assert [m["role"] for m in second["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    assert second["messages"][3]["tool_call_id"] == "c0"
    assert json.loads(second["messages"][3]["content"]) == {"sum": 3}


async def test_a_model_that_calls_wrongly_is_told_and_goes_on(tmp_path: Path) -> None:
    model = Model(calls(("add", "{"), ("nope", "{}")), calls(("submit", '{"value": 0.5}')), {"content": ""})
    outcome = await by_model(bundle(tmp_path), model)
    assert outcome.scores == {"grade": 0.5}
    told = [message["content"] for message in model.bodies[1]["messages"] if message["role"] == "tool"]
    assert "invalid JSON" in told[0]
    assert told[1] == "error: unknown tool 'nope'"


async def test_the_conversation_goes_on_over_the_turns(tmp_path: Path) -> None:
    steps = stub_task(0.3, prompts=("First.", "Second.", "Third."))
    steps[4]["system_prompt"] = "You are somebody else."
    loaded = load_bundle(write_stub_bundle(tmp_path / "b", tasks={"t": steps}))
    model = Model({"content": "One."}, {"content": "Two."}, {"content": "Three."})
    outcome = await by_model(loaded, model)
    assert outcome.turns == 3
    last = [(m["role"], m["content"]) for m in model.bodies[-1]["messages"]]
    assert last == [
        ("system", "You test stubs."),
        ("user", "First."),
        ("assistant", "One."),
        ("user", "You are somebody else.\n\nSecond."),
        ("assistant", "Two."),
        ("user", "You test stubs.\n\nThird."),
    ]


@pytest.mark.parametrize(("task_cap", "flag", "turns"), [(2, 10, 2), (None, 3, 3)])
async def test_the_cap_of_model_turns_ends_the_turn(
    tmp_path: Path, task_cap: int | None, flag: int, turns: int
) -> None:
    steps = stub_task(0.3)
    if task_cap is not None:
        steps[3]["max_turns"] = task_cap
    loaded = load_bundle(write_stub_bundle(tmp_path / "b", tasks={"t": steps}))
    model = Model(calls(("submit", '{"value": 0.5}')))
    outcome = await by_model(loaded, model, max_turns=flag)
    assert (outcome.status, outcome.scores, outcome.calls) == (Status.BELOW_ONE, {"grade": 0.5}, turns)
    assert len(model.bodies) == turns


async def test_tools_that_no_client_can_name_are_called_by_an_alias(tmp_path: Path) -> None:
    tools = [{"name": "a.b", "inputSchema": {"type": "object", "required": None}}]
    loaded = bundle(tmp_path, env_vars={"STUB_TOOLS": json.dumps(tools)})
    model = Model(calls(("a_b", '{"x": 1}')), {"content": "ok"})
    await by_model(loaded, model)
    parameters = {"type": "object", "properties": {}}
    assert model.bodies[0]["tools"][0]["function"] == {"name": "a_b", "description": "", "parameters": parameters}
    assert model.bodies[1]["messages"][-1]["content"] == '{"x": 1}'


async def test_an_endpoint_that_fails_a_request_fails_the_task(tmp_path: Path) -> None:
    model = Model(calls(("submit", '{"value": 1}')), JSONResponse({"error": {"message": "too long"}}, 400))
    outcome = await by_model(bundle(tmp_path), model)
    assert (outcome.status, outcome.kind, outcome.scores) == (Status.FAILED, "model", {})
    assert outcome.reason is not None
    assert outcome.reason.endswith("HTTP 400: too long")


async def test_an_endpoint_that_refuses_ends_the_run(tmp_path: Path) -> None:
    loaded = load_bundle(write_stub_bundle(tmp_path / "b"))
    async with Model(JSONResponse({"error": {"message": "bad key"}}, 401)).player() as player:
        with pytest.raises(EndpointRefuses, match="bad key"):
            await outcomes_of(loaded, player)
