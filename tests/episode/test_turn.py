from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from stubs.stage import AGENT, ASK, ENV, GRADE, Steps, a_bundle, another_env, staged

from agent_env.bundle import load_bundle
from agent_env.env.tools import Tool
from agent_env.episode import Deadlines, EpisodeFailure, EpisodeSpec
from agent_env.errors import FailureKind

pytestmark = pytest.mark.integration

SHOP = {"id": "shop", "type": "deploy_env", "env_id": "shop"}


def tools(*names: str) -> dict[str, str]:
    return {"STUB_TOOLS": json.dumps([{"name": name, "inputSchema": {"type": "object"}} for name in names])}


@pytest.mark.anyio
async def test_tools_are_listed_and_called_through_a_context(tmp_path: Path) -> None:
    async with staged(a_bundle(tmp_path / "b", ENV, AGENT, ASK, GRADE)) as start:
        episode = await start()
        turn = await episode.next_turn()
        assert (turn.agent, turn.step_id, turn.prompt, turn.skills) == ("default-agent", "ask", "Do it.", ())
        async with turn.tools() as t:
            assert all(isinstance(tool, Tool) for tool in t.list())
            result = await t.call("add", {"a": 1, "b": 2})
        assert (result.is_error, result.structured_content, result.text) == (False, {"sum": 3}, '{"sum": 3}')
        await turn.end()
        await turn.end("again")
        assert await episode.result() == {"grade": 0.0}


@pytest.mark.anyio
async def test_a_calls_time_is_the_smaller_of_the_players_and_the_runtimes(tmp_path: Path) -> None:
    bundle = a_bundle(tmp_path / "b", ENV, AGENT, ASK, GRADE, settings='on_tool_timeout = "score"')
    async with staged(bundle, deadlines=Deadlines(tool=0.4)) as start:
        episode = await start()
        turn = await episode.next_turn()
        for given, limit in ((0.1, "0.1 s"), (60.0, "0.4 s")):
            async with turn.tools(timeout=given) as t:
                result = await t.call("sleep", {"seconds": 1})
            assert result.is_error
            assert f"no answer within {limit}" in result.text
        await episode.abandon("enough")


@pytest.mark.anyio
async def test_two_envs_tools_lie_side_by_side(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    another_env(folder, "shop", env_vars=tools("buy", "sell"))
    a_bundle(folder, ENV, SHOP, {**AGENT, "env_ids": ["stub", "shop"]}, ASK, GRADE)
    async with staged(load_bundle(folder)) as start:
        episode = await start()
        turn = await episode.next_turn()
        names = [tool.name for tool in turn.list()]
        assert names.index("submit") < names.index("buy")
        assert (await turn.call("buy", {"what": "tea"})).text == '{"what": "tea"}'
        await turn.call("submit", {"value": 0.75})
        await turn.end("")
        assert await episode.result() == {"grade": 0.75}


@pytest.mark.anyio
async def test_the_agent_has_the_tools_of_its_own_envs_only(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    another_env(folder, "shop", env_vars=tools("buy"))
    a_bundle(folder, ENV, SHOP, {**AGENT, "env_ids": [], "env_step_id": "shop"}, ASK, GRADE)
    async with staged(load_bundle(folder)) as start:
        episode = await start()
        turn = await episode.next_turn()
        assert [tool.name for tool in turn.list()] == ["buy"]
        await episode.abandon("enough")


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("submit", "envs 'stub' and 'shop' both have a tool 'submit'"),
        ("end_turn", "env 'shop' has a tool 'end_turn': the name is reserved"),
    ],
)
async def test_names_that_clash_fail_the_episode_and_are_told(tmp_path: Path, name: str, expected: str) -> None:
    folder = tmp_path / "b"
    another_env(folder, "shop", env_vars=tools("buy", name))
    a_bundle(folder, ENV, SHOP, {**AGENT, "env_ids": ["stub", "shop"]}, ASK, GRADE)
    async with staged(load_bundle(folder)) as start:
        episode = await start()
        with pytest.raises(EpisodeFailure, match=expected) as caught:
            await episode.next_turn()
        assert caught.value.kind is FailureKind.ENV_PROTOCOL_ERROR


@pytest.mark.anyio
async def test_a_clash_is_none_when_one_of_the_two_is_hidden(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    another_env(folder, "shop", env_vars=tools("buy", "submit"))
    hide = {"type": "modify_env_tool_access", "env_id": "shop", "action": "disable", "role": "*", "tools": ["submit"]}
    steps: Steps = [ENV, SHOP, {"id": "hide", **hide}, {**AGENT, "env_ids": ["stub", "shop"]}, ASK, GRADE]
    a_bundle(folder, *steps)
    async with staged(load_bundle(folder)) as start:
        episode = await start()
        turn = await episode.next_turn()
        assert [tool.name for tool in turn.list()].count("submit") == 1
        await episode.abandon("enough")


@pytest.mark.anyio
async def test_independent_steps_run_side_by_side(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    slow = {"STUB_START_DELAY": "1"}
    another_env(folder, "shop", env_vars={**tools("buy"), **slow})
    steps: Steps = [
        {**ENV, "depends_on": []},
        {**SHOP, "depends_on": []},
        {**AGENT, "env_ids": ["stub", "shop"], "depends_on": ["env", "shop"]},
        ASK,
        GRADE,
    ]
    a_bundle(folder, *steps, env_vars=slow)
    async with staged(load_bundle(folder)) as start:
        begun = time.monotonic()
        episode = await start()
        turn = await episode.next_turn()
        assert time.monotonic() - begun < episode.timings["deploy_s"] - 0.5
        assert episode.timings["deploy_s"] > 2
        await turn.end("")
        await episode.result()


@pytest.mark.anyio
async def test_several_agents_take_turns_when_all_are_the_trainers(tmp_path: Path) -> None:
    steps: Steps = [
        ENV,
        {**AGENT, "agent_name": "buyer", "system_prompt": "Buy."},
        {**AGENT, "id": "agent2", "agent_name": "seller", "role": "seller"},
        {**ASK, "agent_name": "buyer"},
        {**ASK, "id": "ask2", "prompt_id": "ask2", "agent_name": "seller"},
        GRADE,
    ]
    bundle = a_bundle(tmp_path / "b", *steps)
    spec = EpisodeSpec.from_task(bundle.tasks["t"], trainer_agents=["seller", "buyer"])
    assert spec.trainer_agents == ("buyer", "seller")
    episode = await spec.start("process")
    seen = []
    while (turn := await episode.next_turn()) is not None:
        seen.append((turn.agent, turn.system_prompt, (await turn.call("whoami", {})).structured_content["role"]))
        await turn.end("")
    assert seen == [("buyer", "Buy.", None), ("seller", None, "seller")]
    await episode.result()
