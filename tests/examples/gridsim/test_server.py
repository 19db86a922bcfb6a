"""The bundle's own server and grader as real processes, in the venv that their requirements ask for."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from agent_env.examples.gridsim import policies
from agent_env.examples.gridsim.battery import HOURS, offline_score, optimum
from agent_env.examples.gridsim.bundle import write_bundle
from agent_env.examples.gridsim.policies import POLICIES, schedule_for
from agent_env.examples.gridsim.prices import Day
from agent_env.sandbox.venvs import ensure_venv, requirements_of

pytestmark = [pytest.mark.integration, pytest.mark.anyio, pytest.mark.timeout(300)]

IDLE = [0] * HOURS


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, days: tuple[Day, ...]) -> Path:
    return write_bundle(tmp_path_factory.mktemp("bundles") / "gridsim-v1", days=days[:2])


@pytest.fixture(scope="module")
def python(folder: Path) -> Path:
    return asyncio.run(ensure_venv(requirements_of(folder / "envs/gridsim/requirements.txt")))


@pytest.fixture(scope="module")
def url(folder: Path, python: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    log = tmp_path_factory.mktemp("log") / "server.log"
    with log.open("wb") as out:
        server = subprocess.Popen(
            [python, "server.py"],
            cwd=folder / "envs/gridsim",
            env={**os.environ, "MCP_HOST": "127.0.0.1", "MCP_PORT": str(port)},
            stdout=out,
            stderr=out,
        )
    try:
        _wait_for_card(f"http://127.0.0.1:{port}", server, log)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(20)


def _wait_for_card(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        try:
            if httpx.get(f"{url}/.well-known/agent-env.json").is_success:
                return
        except httpx.TransportError:
            assert server.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(log.read_text())


class RealPlay:
    """A policy's rollout, played straight on the env."""

    def __init__(self, session: ClientSession) -> None:
        self.session = session
        self.rng = Random(5)
        self.errors: list[bool] = []

    async def call(self, name: str, arguments: dict[str, Any] | str) -> str:
        if isinstance(arguments, str):
            return "not an object"
        result = await self.session.call_tool(name, arguments)
        self.errors.append(result.isError)
        return "".join(part.text for part in result.content if part.type == "text")

    def say(self, text: str) -> None:
        assert text


@asynccontextmanager
async def session(url: str) -> AsyncIterator[ClientSession]:
    async with streamable_http_client(f"{url}/mcp") as (read, write, _), ClientSession(read, write) as opened:
        await opened.initialize()
        yield opened


async def load(url: str, day: Day) -> None:
    args = {"date": day.date, "hub": day.hub, "prices": day.prices}
    async with httpx.AsyncClient() as client:
        (await client.post(f"{url}/agentenv/ext/load_day", json=args)).raise_for_status()


async def data(url: str, method: str, **params: Any) -> dict[str, Any]:
    async with httpx.AsyncClient() as client:
        call = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        answer: dict[str, Any] = (await client.post(f"{url}/agentenv", json=call)).json()
    return answer


async def state(url: str) -> dict[str, Any]:
    content: dict[str, Any] = (await data(url, "data/get"))["result"]["parts"][0]["data"]
    return content


async def grade(url: str, folder: Path, python: Path) -> dict[str, Any]:
    """The grader's one row, from a process that holds nothing of ours."""
    code = f"import asyncio, json, verify; print(json.dumps(asyncio.run(verify.verify({url + '/mcp'!r}))))"
    process = await asyncio.create_subprocess_exec(
        python, "-B", "-c", code, cwd=folder / "artifacts/verify", stdout=subprocess.PIPE
    )
    out, _ = await process.communicate()
    assert process.returncode == 0
    [row] = json.loads(out)
    return dict(row)


@pytest.mark.parametrize("name", POLICIES)
async def test_the_grader_scores_a_policy_as_offline(
    name: str, url: str, folder: Path, python: Path, days: tuple[Day, ...]
) -> None:
    day = days[0]
    await load(url, day)
    async with session(url) as opened:
        play = RealPlay(opened)
        await getattr(policies, name)(play)
    assert all(play.errors) if name == "broken" else not any(play.errors)
    row = await grade(url, folder, python)
    assert row["score"] == offline_score(day.prices, schedule_for(name, day.prices, Random(5)))
    assert row["result"] is (name == "optimal")


async def test_the_card_and_the_tools_are_the_bundle_s(url: str) -> None:
    async with httpx.AsyncClient() as client:
        card = (await client.get(f"{url}/.well-known/agent-env.json")).json()
    assert card["name"] == "gridsim"
    assert [entry["uri"] for entry in card["capabilities"]["extensions"]] == ["urn:gridsim:load-day/v1"]
    async with session(url) as opened:
        tools = {tool.name: tool for tool in (await opened.list_tools()).tools}
    assert set(tools) == {"get_prices", "submit_schedule"}
    assert tools["submit_schedule"].inputSchema["properties"]["schedule"]["items"] == {"type": "integer"}


async def test_prices_come_as_compact_json(url: str, days: tuple[Day, ...]) -> None:
    await load(url, days[1])
    async with session(url) as opened:
        result = await opened.call_tool("get_prices", {})
    [part] = result.content
    assert part.type == "text"
    assert "\n" not in part.text
    assert ", " not in part.text
    answer = json.loads(part.text)
    assert set(answer) == {"date", "hub", "prices", "battery"}
    assert (answer["date"], answer["hub"], tuple(answer["prices"])) == (days[1].date, days[1].hub, days[1].prices)


@pytest.mark.parametrize(
    ("schedule", "said"),
    [
        ([0] * 23, "refused: the schedule must have 24 integers"),
        ([11, *IDLE[1:]], "refused: hour 0: 11 MWh is outside [-10, 10]"),
        ([10] * 5 + [0] * 19, "refused: hour 4: the state of charge would be 50 MWh"),
        ([*IDLE[:5], "1", *IDLE[6:]], "schedule.5"),
        ([*IDLE[:5], 1.0, *IDLE[6:]], "schedule.5"),
        ([*IDLE[:5], True, *IDLE[6:]], "schedule.5"),
        ("buy low", "valid list"),
        (None, "valid list"),
    ],
)
async def test_a_refused_schedule_leaves_the_earlier_one(
    url: str, days: tuple[Day, ...], schedule: object, said: str
) -> None:
    await load(url, days[0])
    best = optimum(days[0].prices)[1]
    async with session(url) as opened:
        assert not (await opened.call_tool("submit_schedule", {"schedule": best})).isError
        result = await opened.call_tool("submit_schedule", {"schedule": schedule})
    assert result.isError
    assert said in str(result.content[0])
    assert (await state(url))["schedule"] == best


async def test_the_last_valid_schedule_counts(url: str, folder: Path, python: Path, days: tuple[Day, ...]) -> None:
    await load(url, days[0])
    async with session(url) as opened:
        for schedule in (optimum(days[0].prices)[1], IDLE):
            result = await opened.call_tool("submit_schedule", {"schedule": schedule})
            assert not result.isError
    assert result.structuredContent == {"accepted": True, "profit": 0.0}
    assert (await grade(url, folder, python))["score"] == 0.2


async def test_loading_a_day_forgets_the_schedule_and_reset_the_day(
    url: str, folder: Path, python: Path, days: tuple[Day, ...]
) -> None:
    await load(url, days[0])
    async with session(url) as opened:
        await opened.call_tool("submit_schedule", {"schedule": IDLE})
        await load(url, days[0])
        assert (await grade(url, folder, python))["score"] == 0.0
        await data(url, "data/reset")
        for name, arguments in (("get_prices", {}), ("submit_schedule", {"schedule": IDLE})):
            result = await opened.call_tool(name, arguments)
            assert result.isError
            assert "no_day" in str(result.content[0])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"prices": [20.0] * 23}, "24 numbers"),
        ({"prices": "cheap"}, "24 numbers"),
        ({"prices": [20.0] * 23 + ["x"]}, "hour 23: 'x' is not a price"),
        ({"prices": [True] + [20.0] * 23}, "hour 0: True is not a price"),
        ({"prices": [1e300] + [20.0] * 23}, "hour 0: 1e+300 is not a price"),
        ({"hub": ""}, "date and hub"),
    ],
)
async def test_a_day_that_is_none_is_refused_and_the_loaded_one_stays(
    url: str, days: tuple[Day, ...], change: dict[str, Any], said: str
) -> None:
    await load(url, days[0])
    args = {"date": days[0].date, "hub": days[0].hub, "prices": days[0].prices, **change}
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{url}/agentenv/ext/load_day", json=args)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
    assert (await state(url))["prices"] == list(days[0].prices)


async def test_what_data_get_gives_data_add_takes(url: str, days: tuple[Day, ...], tmp_path: Path) -> None:
    await load(url, days[0])
    async with session(url) as opened:
        await opened.call_tool("submit_schedule", {"schedule": IDLE})
    saved = await state(url)
    file = tmp_path / "a day.json"
    file.write_text(json.dumps(saved))
    for part in ({"kind": "data", "data": saved}, {"kind": "file", "file": {"uri": file.as_uri()}}):
        await data(url, "data/reset")
        assert "result" in await data(url, "data/add", parts=[part])
        assert await state(url) == saved
    refused = await data(url, "data/add", parts=[{"kind": "text", "text": "a sunny day"}])
    assert "a day is a data part or a JSON file" in refused["error"]["message"]


async def test_every_module_to_preload_exists(folder: Path, python: Path) -> None:
    code = (
        "import tomllib, importlib\n"
        "for name in tomllib.load(open('agent-env.toml', 'rb'))['preload']: importlib.import_module(name)"
    )
    done = await asyncio.create_subprocess_exec(python, "-B", "-c", code, cwd=folder / "envs/gridsim")
    assert await done.wait() == 0
