from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets
from stubs.serving import serving
from stubs.stub_bundle import stub_task, write_stub_bundle

from agent_env.errors import BundleError, ConfigError
from agent_env.openenv import build_app

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


class Client:
    def __init__(self, socket: Any) -> None:
        self.socket = socket

    async def ask(self, kind: str, /, **data: Any) -> dict[str, Any]:
        await self.socket.send(json.dumps({"type": kind, "data": data} if kind != "state" else {"type": kind}))
        return await self.answer()

    async def answer(self) -> dict[str, Any]:
        async with asyncio.timeout(30):
            reply: dict[str, Any] = json.loads(await self.socket.recv())
        return reply

    async def reset(self, **data: Any) -> dict[str, Any]:
        reply = await self.ask("reset", **data)
        assert reply["type"] == "observation", reply
        return reply["data"]  # type: ignore[no-any-return]

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        reply = await self.ask("step", type="call_tool", tool_name=name, arguments=arguments)
        assert reply["type"] == "observation", reply
        return reply["data"]  # type: ignore[no-any-return]


@asynccontextmanager
async def client(url: str) -> AsyncIterator[Client]:
    async with websockets.connect(url.replace("http", "ws") + "/ws", proxy=None) as socket:
        yield Client(socket)


@asynccontextmanager
async def stub_server(folder: Path, *, options: dict[str, Any] | None = None, **bundle: Any) -> AsyncIterator[str]:
    path = write_stub_bundle(folder / "stub-v1", **bundle)
    app = await asyncio.to_thread(build_app, path, sandbox="process", **(options or {}))
    async with serving(app) as url:
        yield url
    assert app.state.hub.runtime.capacity.snapshot()["running"] == 0


async def get(url: str, path: str) -> Any:
    async with httpx.AsyncClient(trust_env=False) as http:
        return (await http.get(url + path)).json()


async def post(url: str, path: str, body: Any) -> httpx.Response:
    async with httpx.AsyncClient(trust_env=False) as http:
        return await http.post(url + path, json=body)


async def until(condition: Any, seconds: float = 10) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_an_episode_over_the_websocket_ends_with_its_reward(tmp_path: Path) -> None:
    async with stub_server(tmp_path) as url, client(url) as env:
        reset = await env.reset(split="train", index=1)
        assert reset["done"] is False
        assert reset["observation"]["status"] == "ready"
        assert reset["observation"]["task"] == {"id": "train-0001", "name": "train-0001", "split": "train", "index": 1}
        assert reset["metadata"]["prompt"] == "Submit the value."
        assert len(reset["observation"]["bundle"]["digest"]) == 64
        tools = (await env.ask("step", type="list_tools"))["data"]["observation"]["tools"]
        assert tools[-1]["name"] == "end_turn"
        assert "plumbing" not in [tool["name"] for tool in tools]
        called = await env.call("submit", value=0.5)
        assert called["observation"]["error"] is None
        assert called["observation"]["result"]["is_error"] is False
        end = await env.call("end_turn", response="done")
        assert (end["done"], end["reward"]) == (True, 0.5)
        assert end["observation"]["scores"] == {"grade": 0.5}
        assert end["metadata"]["scores"] == {"grade": 0.5}
        assert end["observation"]["episode"]["turns_played"] == 1
        after = await env.call("submit", value=0.5)
        assert after["done"] is True
        assert "ended" in after["metadata"]["error"]
        state = (await env.ask("state"))["data"]
        assert (state["task_name"], state["done"]) == ("train-0001", True)


async def test_reset_without_ready_answers_once_the_start_has_begun(tmp_path: Path) -> None:
    async with stub_server(tmp_path, env_vars={"STUB_START_DELAY": "1.0"}) as url, client(url) as env:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        reset = await env.reset(split="train", index=0, ready=False)
        assert loop.time() - begun < 0.5
        assert reset["observation"]["status"] == "starting"
        called = await env.call("submit", value=1.0)
        assert loop.time() - begun > 0.9
        assert called["observation"]["error"] is None
        assert (await env.call("end_turn"))["reward"] == 1.0


async def test_tool_errors_are_told_apart_and_the_episode_goes_on(tmp_path: Path) -> None:
    async with stub_server(tmp_path) as url, client(url) as env:
        await env.reset()
        refused = await env.call("fail", message="not today")
        assert refused["observation"]["error"]["error_type"] == "execution_error"
        assert "not today" in refused["observation"]["error"]["message"]
        unknown = await env.call("zap")
        assert unknown["observation"]["error"]["error_type"] == "tool_not_found"
        assert (await env.call("end_turn"))["reward"] == 0.0


async def test_an_environment_failure_is_an_observation_with_its_kind_and_no_reward(tmp_path: Path) -> None:
    async with stub_server(tmp_path) as url, client(url) as env:
        await env.reset()
        crashed = await env.call("crash")
        assert (crashed["done"], crashed["reward"]) == (True, None)
        assert crashed["observation"]["failure"]["kind"] == "env_crashed"
        assert crashed["metadata"]["status"] == "error"
        assert crashed["metadata"]["error"].startswith("env_crashed: ")
        again = await env.call("end_turn")
        assert again["observation"]["failure"]["kind"] == "env_crashed"
        assert (await env.reset())["done"] is False


async def test_a_call_after_the_turns_time_names_that_as_the_failure(tmp_path: Path) -> None:
    async with stub_server(tmp_path, options={"turn_timeout": 0.1}) as url, client(url) as env:
        await env.reset(split="train", index=0)
        await asyncio.sleep(0.3)
        late = await env.call("look")
        assert late["done"] is True
        assert late["observation"]["failure"]["kind"] == "turn_expired"


async def test_a_call_after_the_turns_time_is_refused_where_that_is_scored(tmp_path: Path) -> None:
    settings = 'on_turn_timeout = "score"'
    async with stub_server(tmp_path, options={"turn_timeout": 0.1}, settings=settings) as url, client(url) as env:
        await env.reset(split="train", index=0)
        await asyncio.sleep(0.3)
        late = await env.call("look")
        assert late["done"] is False
        assert late["observation"]["error"] == {"error_type": "execution_error", "message": "the turn is over"}
        end = await env.call("end_turn", response="done")
        assert end["reward"] == 0.0


async def test_a_start_that_fails_is_an_observation_too(tmp_path: Path) -> None:
    async with stub_server(tmp_path, env_vars={"STUB_EXIT_AT_START": "4"}) as url, client(url) as env:
        reset = await env.reset()
        assert (reset["done"], reset["observation"]["status"]) == (True, "error")
        assert reset["observation"]["failure"]["kind"] == "env_crashed"
        reset = await env.reset(ready=False)
        assert reset["observation"]["status"] == "starting"
        listed = (await env.ask("step", type="list_tools"))["data"]
        assert listed["observation"]["failure"]["kind"] == "env_crashed"


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"split": "nope", "index": 0}, "no split 'nope'; splits: all, train"),
        ({"split": "train", "index": 3}, "no index 3 in split 'train': it has tasks 0 to 2"),
        ({"split": "train", "index": "0"}, "no index '0'"),
        ({"split": "train", "index": True}, "no index True"),
        ({"split": "train"}, "give both split and index, or neither"),
        ({"index": 1}, "give both split and index, or neither"),
    ],
)
async def test_a_task_that_is_not_served_is_an_error_frame_and_the_session_stays(
    tmp_path: Path, data: dict[str, Any], words: str
) -> None:
    async with stub_server(tmp_path) as url, client(url) as env:
        reply = await env.ask("reset", **data)
        assert reply["type"] == "error"
        assert words in reply["data"]["message"]
        assert (await env.reset())["done"] is False


async def test_the_next_prompt_comes_as_the_result_of_end_turn(tmp_path: Path) -> None:
    tasks = {"t": stub_task(0.5, prompts=("one", "two"))}
    async with stub_server(tmp_path, tasks=tasks) as url, client(url) as env:
        assert (await env.reset())["observation"]["turns"] == 2
        middle = await env.call("end_turn", response="r")
        assert middle["done"] is False
        assert middle["observation"]["result"]["data"] == "two"
        assert middle["observation"]["turn"] == 2
        await env.call("submit", value=0.25)
        end = await env.call("end_turn", response="r")
        assert end["reward"] == 0.25
        assert end["observation"]["episode"]["turns_played"] == 2


async def test_the_task_api_lists_splits_rows_and_counts(tmp_path: Path) -> None:
    async with stub_server(tmp_path) as url:
        assert await get(url, "/list_environments") == ["stub-v1"]
        assert await get(url, "/stub-v1/splits") == [
            {"name": "all", "type": "validation"},
            {"name": "train", "type": "train"},
        ]
        assert (await post(url, "/stub-v1/num_tasks", {"split": "train"})).json() == {"num_tasks": 3}
        task = (await post(url, "/stub-v1/task", {"split": "train", "index": 2})).json()["task"]
        assert task == {
            "id": "train-0002",
            "name": "train-0002",
            "index": 2,
            "prompt": "Submit the value.",
            "system_prompt": "You test stubs.",
            "agent": "default-agent",
            "toolset": "stub",
            "turns": 1,
        }
        rows = (await post(url, "/stub-v1/task_range", {"split": "train", "start": 1, "stop": 3})).json()["tasks"]
        assert [row["index"] for row in rows] == [1, 2]
        assert (await post(url, "/stub-v1/tasks", {"split": "x"})).status_code == 400
        assert (await post(url, "/other/tasks", {"split": "train"})).status_code == 404
        metadata = await get(url, "/metadata")
        assert metadata["name"] == "stub-v1"
        assert len(metadata["version"]) == 64
        assert await get(url, "/health") == {"status": "healthy", "sandbox": "process"}


async def test_plain_http_reset_is_not_served_since_it_would_not_be_counted(tmp_path: Path) -> None:
    async with stub_server(tmp_path) as url:
        assert (await post(url, "/reset", {})).status_code in (404, 405)
        assert (await post(url, "/step", {"action": {}})).status_code in (404, 405)


async def test_sessions_beyond_the_places_wait_in_order_and_beyond_the_queue_are_refused(tmp_path: Path) -> None:
    options = {"max_concurrent_envs": 1, "queue": 1}
    async with stub_server(tmp_path, options=options) as url, client(url) as first, client(url) as second:
        await first.reset()
        waiting = asyncio.create_task(second.reset(ready=False))

        async def queued() -> bool:
            return bool((await get(url, "/capacity"))["queued"] == 1)

        await until(queued)
        async with client(url) as third:
            assert (await third.answer())["data"]["code"] == "CAPACITY_REACHED"
        assert not waiting.done()
        await first.call("end_turn")
        assert (await waiting)["observation"]["wait_s"] > 0


async def test_the_deadlines_that_others_have_to_wait_past_are_told(tmp_path: Path) -> None:
    async with stub_server(tmp_path, options={"tool_timeout": 900.0, "verify_timeout": 7.5}) as url:
        assert (await get(url, "/capacity"))["deadlines"] == {"tool_s": 900.0, "verify_s": 7.5}


@pytest.mark.parametrize("moment", ["deploying", "queued", "calling", "between"])
async def test_a_client_that_leaves_frees_its_place_at_once(tmp_path: Path, moment: str) -> None:
    env_vars = {"STUB_START_DELAY": "60"} if moment == "deploying" else None
    options = {"max_concurrent_envs": 1}
    async with stub_server(tmp_path, options=options, env_vars=env_vars) as url:

        async def busy() -> bool:
            numbers = await get(url, "/capacity")
            return bool(numbers["queued"] == 1 if moment == "queued" else numbers["running"] == 1)

        async def free() -> bool:
            numbers = await get(url, "/capacity")
            return bool(numbers["running"] == (1 if moment == "queued" else 0) and numbers["queued"] == 0)

        async with client(url) as holder:
            if moment == "queued":
                await holder.reset()
            async with client(url) as env:
                if moment in ("calling", "between"):
                    await env.reset()
                running = None
                if moment == "calling":
                    running = asyncio.create_task(env.call("sleep", seconds=60))
                elif moment != "between":
                    running = asyncio.create_task(env.reset())
                await until(busy)
                if running is not None:
                    await asyncio.sleep(0.1)
                env.socket.transport.abort()
                if running is not None:
                    with pytest.raises(websockets.ConnectionClosed):
                        await running
                await until(free, 3)


async def test_shutdown_ends_running_episodes(tmp_path: Path) -> None:
    path = write_stub_bundle(tmp_path / "stub-v1", env_vars={"STUB_START_DELAY": "60"})
    app = await asyncio.to_thread(build_app, path, sandbox="process")
    async with serving(app) as url:
        socket = await websockets.connect(url.replace("http", "ws") + "/ws", proxy=None)
        env = Client(socket)
        await env.reset(ready=False)
        begun = asyncio.get_running_loop().time()
    assert asyncio.get_running_loop().time() - begun < 5
    await socket.close()
    assert app.state.hub.runtime.capacity.snapshot()["running"] == 0


async def test_openenvs_own_client_plays_an_episode(tmp_path: Path) -> None:
    import sys

    sys.modules.setdefault("gradio", None)  # type: ignore[arg-type]
    from openenv.core.generic_client import GenericEnvClient

    async with stub_server(tmp_path) as url:
        async with GenericEnvClient(base_url=url) as env:
            result = await env.reset(split="train", index=0)
            assert result.done is False
            result = await env.step({"type": "call_tool", "tool_name": "submit", "arguments": {"value": 0.5}})
            assert result.done is False
            result = await env.step({"type": "call_tool", "tool_name": "end_turn", "arguments": {"response": ""}})
            assert (result.done, result.reward) == (True, 0.5)


def test_a_wrong_bundle_is_refused_before_anything_starts(tmp_path: Path) -> None:
    steps = stub_task(0.5)
    steps[0]["type"] = "deploy_evn"
    with pytest.raises(BundleError, match="did you mean 'deploy_env'"):
        build_app(write_stub_bundle(tmp_path / "b", tasks={"t": steps}), sandbox="process")
    with pytest.raises(BundleError, match="no such folder"):
        build_app(tmp_path / "none", sandbox="process")


def test_tasks_that_cant_be_played_are_left_out_and_none_left_is_an_error(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    other = stub_task(0.5)
    other.insert(1, {"id": "code", "type": "run_code"})
    path = write_stub_bundle(tmp_path / "b", tasks={"good": stub_task(0.5), "other": other})
    app = build_app(path, sandbox="process")
    assert [entry.plan.task.name for entry in app.state.hub.catalog.splits["all"]] == ["good"]
    assert "left out: tasks/other.json: step 'code': step type 'run_code' is not run here" in caplog.text
    with pytest.raises(BundleError, match="run_code"):
        build_app(write_stub_bundle(tmp_path / "c", tasks={"other": other}), sandbox="process")


def test_several_scores_need_a_choice(tmp_path: Path) -> None:
    steps = stub_task(0.5)
    steps.append({**steps[-1], "id": "second", "verifier_id": "second"})
    path = write_stub_bundle(tmp_path / "b", tasks={"t": steps})
    with pytest.raises(ValueError, match=r"several scoring steps \(grade, second\): choose with reward="):
        build_app(path, sandbox="process")
    with pytest.raises(ValueError, match="no such scoring step"):
        build_app(path, sandbox="process", reward="third")
    build_app(path, sandbox="process", reward="second")
    build_app(path, sandbox="process", reward=lambda scores: sum(scores.values()) / 2)


def test_an_unknown_sandbox_and_silly_numbers_are_refused(tmp_path: Path) -> None:
    path = write_stub_bundle(tmp_path / "b")
    with pytest.raises(ConfigError, match="modal"):
        build_app(path, sandbox="modal")
    with pytest.raises(ConfigError, match="at least 1"):
        build_app(path, sandbox="process", max_concurrent_envs=0)
