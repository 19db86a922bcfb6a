"""The env client against servers made with the official MCP SDK 1.x and 2.x, and with the env protocol's SDK."""

from __future__ import annotations

import asyncio
import json
import math
import shutil
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from stubs.deployed import Deployed, deployed

from agent_env.bundle.model import Env, EnvSettings
from agent_env.env.data import call_extension, data_add, data_get, data_reset
from agent_env.env.tools import ToolSession
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.venvs import ensure_venv

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

SERVERS = Path(__file__).with_name("servers")
MCP_2 = ["mcp>=2,<3", "starlette", "uvicorn"]
SDK = ["agentenv-framework-protocol==0.1.379", "mcp>=1.25,<2"]
MODES: dict[str, tuple[int, dict[str, str]]] = {
    "mcp 1, sse": (1, {}),
    "mcp 1, json": (1, {"JSON_RESPONSE": "1"}),
    "mcp 1, json, stateless": (1, {"JSON_RESPONSE": "1", "STATELESS": "1"}),
    "mcp 1, sse, stateless": (1, {"STATELESS": "1"}),
    "mcp 2, sse": (2, {}),
    "mcp 2, json, stateless": (2, {"JSON_RESPONSE": "1", "STATELESS": "1"}),
}


def env_of(folder: Path, server: str, python: str, env: Mapping[str, str]) -> Env:
    folder.mkdir()
    shutil.copy(SERVERS / server, folder / "server.py")
    settings = EnvSettings(command=(python, "server.py"), env=dict(env))
    return Env(name="probe", path=folder, environment_name="probe", digest=server, settings=settings)


@asynccontextmanager
async def fastmcp(folder: Path, mode: str) -> AsyncIterator[Deployed]:
    major, env = MODES[mode]
    python = sys.executable if major == 1 else str(await ensure_venv(MCP_2))
    async with deployed(env_of(folder / "env", "fastmcp_env.py", python, env)) as running:
        yield running


@pytest.mark.parametrize("mode", MODES)
async def test_every_kind_of_answer_of_a_server_is_understood(tmp_path: Path, mode: str) -> None:
    async with fastmcp(tmp_path, mode) as env:
        session = await ToolSession.open(env.http, env.card)
        assert {tool.name for tool in session.tools} >= {"add", "model", "greet", "numbers", "nothing", "refuse"}

        added = await session.call("add", {"a": 1, "b": 2}, timeout=10)
        assert (added.text, added.structured_content, added.is_error) == ("3", {"result": 3}, False)

        model = await session.call("model", {}, timeout=10)
        assert json.loads(model.text) == model.structured_content == {"accepted": True, "profit": 330.95}

        assert (await session.call("greet", {}, timeout=10)).text == "grüß dich"
        assert len((await session.call("numbers", {}, timeout=10)).content) == 2

        nothing = await session.call("nothing", {}, timeout=10)
        assert (nothing.content, nothing.text, nothing.is_error) == ([], "", False)

        for name, arguments in (("refuse", {}), ("add", {"a": "x", "b": 2}), ("no_such", {})):
            refused = await session.call(name, arguments, timeout=10)
            assert refused.is_error, name
            assert refused.text, name

        assert (await session.call("chatty", {}, timeout=10)).text == "done"
        assert len((await session.call("big", {"size": 3_000_000}, timeout=30)).text) == 3_000_000

        too_large = await session.call("greet", {"x": "y" * (4 << 20)}, timeout=30)
        assert too_large.is_error
        assert str(4 << 20) in too_large.text

        started = time.monotonic()
        naps = await asyncio.gather(*(session.call("nap", {"seconds": 0.5}, timeout=10) for _ in range(4)))
        assert [nap.text for nap in naps] == ["slept"] * 4
        assert time.monotonic() - started < 1.5
        await session.close()


@pytest.mark.parametrize("mode", ["mcp 1, sse", "mcp 2, sse"])
async def test_a_tool_that_takes_too_long_is_told_so_and_the_session_goes_on(tmp_path: Path, mode: str) -> None:
    async with fastmcp(tmp_path, mode) as env:
        session = await ToolSession.open(env.http, env.card)
        with pytest.raises(EpisodeFailure) as raised:
            await session.call("nap", {"seconds": 30}, timeout=0.2)
        assert raised.value.kind is FailureKind.TOOL_TIMEOUT
        assert "'nap'" in raised.value.reason
        async with asyncio.timeout(5):
            while (await session.call("cancelled", {}, timeout=5)).structured_content != {"result": 1}:
                await session.call("nap", {"seconds": 0.01}, timeout=5)
        await session.close()


@pytest.mark.parametrize("mode", ["mcp 1, sse", "mcp 2, sse"])
async def test_a_session_that_the_server_forgot_is_opened_anew(tmp_path: Path, mode: str) -> None:
    async with fastmcp(tmp_path, mode) as env:
        session = await ToolSession.open(env.http, env.card)
        forgetting = await ToolSession.open(env.http, env.card)
        forgetting.channel._session = session.channel._session
        await forgetting.close()
        answers = await asyncio.gather(*(session.call("add", {"a": n, "b": 0}, timeout=10) for n in range(3)))
        assert [answer.text for answer in answers] == ["0", "1", "2"]


async def test_a_session_of_the_protocols_own_sdk_shows_roles_hidden_tools_and_clean_errors(tmp_path: Path) -> None:
    python = str(await ensure_venv(SDK))
    async with deployed(env_of(tmp_path / "env", "sdk_env.py", python, {})) as env:
        assert env.card.operations == ("data/reset", "data/add", "data/get")
        session = await ToolSession.open(env.http, env.card, role="auditor")
        assert {tool.name: tool.hidden for tool in session.tools} == {
            "get_prices": False,
            "refuse": False,
            "plumbing": True,
            "whoami": False,
        }
        assert (await session.call("whoami", {}, timeout=10)).structured_content == {"role": "auditor"}
        refused = await session.call("refuse", {}, timeout=10)
        assert (refused.is_error, refused.text) == (True, "no_day: no day is loaded")
        assert refused.structured_content["retryable"] is True
        await session.close()

        default = await ToolSession.open(env.http, env.card, role="default")
        assert (await default.call("whoami", {}, timeout=10)).structured_content == {"role": None}
        await default.close()


async def test_data_and_extensions_of_the_protocols_own_sdk(tmp_path: Path) -> None:
    python = str(await ensure_venv(SDK))
    async with deployed(env_of(tmp_path / "env", "sdk_env.py", python, {})) as env:
        await data_reset(env.http, card=env.card)
        await data_add(env.http, [{"kind": "text", "text": "hello"}, {"kind": "data", "data": {"a": 1}}], card=env.card)
        [part] = await data_get(env.http, card=env.card)
        assert part["data"]["count"] == 2
        assert math.isnan(part["data"]["nan"])

        for parts, said in (([{"kind": "text", "text": "boom"}], "boom asked for"), ([], "invalid_request")):
            with pytest.raises(EpisodeFailure, match=said) as raised:
                await data_add(env.http, parts, card=env.card)
            assert raised.value.kind is FailureKind.LOAD_FAILED

        loaded = await call_extension(
            env.http, env.card, "urn:sdk:load-day/v1", {"date": "2024-03-07", "prices": [1.5, 2.5]}
        )
        assert loaded == {"date": "2024-03-07", "hours": 2}
        assert await call_extension(env.http, env.card, "urn:sdk:peek/v1", {"hour": 1}) == {"price": 2.5}

        for uri, args, said in (
            ("urn:sdk:load-day/v1", {"date": "2024-03-07", "prices": []}, r"bad_day: no prices \(one price per hour\)"),
            ("urn:sdk:load-day/v1", {"dat": 1}, "invalid_params"),
            ("urn:sdk:broken/v1", {}, "HTTP 500 extension_failed"),
            ("urn:sdk:other/v1", {}, "does not advertise 'urn:sdk:other/v1'.*urn:sdk:load-day/v1"),
        ):
            with pytest.raises(EpisodeFailure, match=said) as raised:
                await call_extension(env.http, env.card, uri, args)
            assert raised.value.kind is FailureKind.LOAD_FAILED
