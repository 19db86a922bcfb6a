"""Tasks of several turns, envs and graders, in this process and through an OpenEnv server."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from stubs.openenv_client import Client, connected
from stubs.serving import serving
from stubs.stage import AGENT, ASK, ENV, GRADE, Steps, another_env, staged
from stubs.stub_bundle import write_stub_bundle

from agent_env.bundle import load_bundle
from agent_env.openenv import build_app

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

SECOND = {**ASK, "id": "again", "prompt_id": "again", "prompt": "And again.", "system_prompt": "Now be quick."}
BOUGHT = """\
import json, urllib.request


async def verify(mcp_url):
    call = {"jsonrpc": "2.0", "id": 1, "method": "data/get", "params": {}}
    request = urllib.request.Request(mcp_url.removesuffix("/mcp") + "/agentenv", json.dumps(call).encode())
    with urllib.request.urlopen(request, timeout=30) as answer:
        state = json.load(answer)["result"]["parts"][0]["data"]
    return [{"id": "bought", "result": state["submission"] == 3.0}]
"""
SAID = """\
async def verify(mcp_url, run):
    last = run.turns[-1]
    return [{"id": "said", "result": last.reply.text == "bye", "score": len(last.reply.text) / 10}]
"""


def tools(*names: str) -> dict[str, str]:
    schema = {"type": "object", "properties": {"value": {"type": "number"}}}
    return {"STUB_TOOLS": json.dumps([{"name": name, "inputSchema": schema} for name in names])}


def write_shapes(folder: Path, *only: str) -> Path:
    two_envs: Steps = [
        ENV,
        {"id": "shop", "type": "deploy_env", "env_id": "shop"},
        {**AGENT, "env_ids": ["stub", "shop"]},
        ASK,
        {**GRADE, "id": "sold"},
        {**GRADE, "id": "bought", "env_id": "shop", "file_artifact_id": "bought", "score_aggregator": "all_pass"},
    ]
    said = {**GRADE, "id": "said", "file_artifact_id": "said"}
    tasks = {
        "two-envs": two_envs,
        "two-graders": [ENV, {**AGENT, "system_prompt": "Be kind."}, ASK, {**GRADE, "id": "sold"}, said],
        "two-turns": [ENV, {**AGENT, "system_prompt": "Be kind."}, ASK, SECOND, {**GRADE, "id": "sold"}, said],
    }
    tasks = {name: steps for name, steps in tasks.items() if not only or name in only}
    another_env(folder, "shop", env_vars=tools("buy"))
    write_stub_bundle(folder, tasks=tasks, evals={name: [name] for name in tasks})
    for name, source in (("bought", BOUGHT), ("said", SAID)):
        (folder / "artifacts" / name).mkdir()
        (folder / "artifacts" / name / "verify.py").write_text(source)
    return folder


@asynccontextmanager
async def playing(folder: Path, split: str, reward: Any = "sold") -> AsyncIterator[tuple[Client, dict[str, Any]]]:
    app = await asyncio.to_thread(build_app, write_shapes(folder / "b", split), sandbox="process", reward=reward)
    async with serving(app) as url, connected(url) as client:
        yield client, await client.reset(split=split, index=0)
    assert app.state.hub.runtime.capacity.snapshot()["running"] == 0


async def test_a_model_that_plays_both_turns_is_graded_on_both(tmp_path: Path) -> None:
    async with playing(tmp_path, "two-turns") as (client, reset):
        assert (reset["observation"]["turns"], reset["observation"]["prompt"]) == (2, "Do it.")
        await client.call("submit", value=0.25)
        following = await client.call("end_turn", response="hello")
        assert following["done"] is False
        assert following["observation"]["result"]["data"] == "Now be quick.\n\nAnd again."
        await client.call("submit", value=0.75)
        end = await client.call("end_turn", response="bye")
    assert (end["done"], end["reward"]) == (True, 0.75)
    assert end["observation"]["scores"] == {"sold": 0.75, "said": 0.3}
    assert end["observation"]["episode"]["turns_played"] == 2


async def test_a_model_that_stops_after_the_first_turn_is_graded_too(tmp_path: Path) -> None:
    async with playing(tmp_path, "two-turns") as (client, _):
        await client.call("submit", value=0.25)
        await client.call("end_turn", response="bye")
        end = await client.call("end_turn", response="")
    assert end["observation"]["scores"] == {"sold": 0.25, "said": 0.0}


async def test_two_turns_in_this_process(tmp_path: Path) -> None:
    async with staged(load_bundle(write_shapes(tmp_path / "b"))) as start:
        episode = await start("two-turns")
        first = await episode.next_turn()
        assert (first.prompt, first.system_prompt) == ("Do it.", "Be kind.")
        await first.end("hello")
        second = await episode.next_turn()
        assert (second.prompt, second.system_prompt) == ("And again.", "Now be quick.")
        await second.call("submit", {"value": 1.0})
        await second.end("bye")
        assert await episode.next_turn() is None
        assert await episode.result() == {"sold": 1.0, "said": 0.3}


async def test_two_envs_are_played_side_by_side_and_each_is_graded(tmp_path: Path) -> None:
    async with playing(tmp_path, "two-envs") as (client, _):
        listed = (await client.ask("step", type="list_tools"))["observation"]["tools"]
        names = [tool["name"] for tool in listed]
        assert names[-2:] == ["buy", "end_turn"]
        assert "submit" in names
        await client.call("submit", value=0.5)
        assert (await client.call("buy", value=3))["observation"]["result"]["data"] == '{"value": 3}'
        end = await client.call("end_turn", response="")
    assert end["observation"]["scores"] == {"sold": 0.5, "bought": 0.0}  # each env has a state of its own


@pytest.mark.parametrize(
    ("reward", "expected"),
    [("sold", 0.5), ("said", 0.3), (lambda scores: (scores["sold"] + scores["said"]) / 2, 0.4)],
)
async def test_of_two_graders_reward_says_which_counts(tmp_path: Path, reward: Any, expected: float) -> None:
    async with playing(tmp_path, "two-graders", reward=reward) as (client, _):
        await client.call("submit", value=0.5)
        end = await client.call("end_turn", response="bye")
    assert end["reward"] == pytest.approx(expected)
    assert end["observation"]["scores"] == {"sold": 0.5, "said": 0.3}


async def test_a_grader_sees_the_turn_of_the_prompt_that_it_names(tmp_path: Path) -> None:
    one = {**GRADE, "id": "one", "file_artifact_id": "said", "prompt_id": "ask"}
    folder = write_shapes(tmp_path / "b")
    steps: Steps = [ENV, AGENT, ASK, SECOND, one, {**one, "id": "last", "prompt_id": None}]
    (folder / "tasks" / "named.json").write_text(json.dumps(steps))
    async with staged(load_bundle(folder)) as start:
        episode = await start("named")
        for reply in ("hello", "by"):
            turn = await episode.next_turn()
            await turn.end(reply)
        assert await episode.result() == {"one": 0.5, "last": 0.2}
