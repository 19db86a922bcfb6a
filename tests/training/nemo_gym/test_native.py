from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from stubs.gym_client import Rollout
from stubs.quick_server import quick
from stubs.stub_openenv import Knobs, StubOpenEnv

from agent_env.errors import ConfigError
from agent_env.training.nemo_gym.native import webserver

pytestmark = pytest.mark.anyio

FOLDER = Path("gym-root/resources_servers/stub_v1")


@dataclass
class Config:
    """As NeMo Gym makes it of the YAML."""

    agent_env: dict[str, Any] = field(default_factory=dict)
    name: str = "stub_v1_resources_server"
    num_workers: int | None = None
    expose_tools_over_mcp: bool = False


async def aggregate_metrics(body: dict[str, Any]) -> dict[str, Any]:
    return {"rows": len(body["verify_responses"])}


@asynccontextmanager
async def native(stub: StubOpenEnv) -> AsyncIterator[httpx.AsyncClient]:
    async with quick(stub) as upstream:
        config = Config({"format": 1, "openenv_url": upstream, "env": stub.env})
        async with quick(webserver(FOLDER, config, aggregate_metrics)) as url:
            async with httpx.AsyncClient(base_url=url, timeout=20, verify=False) as http:
                yield http


async def test_a_rollout_is_played_by_the_server_that_serve_runs() -> None:
    async with native(StubOpenEnv()) as http:
        rollout = Rollout(http)
        assert (await rollout.seed()).json() == {}
        assert (await rollout.call("look", {"at": "it"})).text == '{"saw": {"at": "it"}}'
        assert (await rollout.verify()).json()["reward"] == 0.75
        assert (await http.get("/status")).json()["verified"] == 1


async def test_statistics_over_rollouts_are_nemo_gyms_own() -> None:
    async with native(StubOpenEnv()) as http:
        answer = await http.post("/aggregate_metrics", json={"verify_responses": [{}, {}]})
        assert answer.json() == {"rows": 2}


async def test_no_path_belongs_to_the_web_framework() -> None:
    async with native(StubOpenEnv()) as http:
        for path in ("/docs", "/redoc", "/openapi.json"):
            assert (await http.get(path)).status_code == 405
        assert "belongs to no session" in (await http.post("/docs", json={})).text


async def test_neither_a_token_nor_errors_for_masked_rollouts_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("secret-of-serve")
    monkeypatch.setenv("AGENT_ENV_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AGENT_ENV_MASKED_AS_ERROR", "1")
    monkeypatch.setenv("AGENT_ENV_METRICS", "timings")
    async with native(StubOpenEnv(Knobs(fail={"verify": ("judge_failed", "the judge was silent")}))) as http:
        rollout = Rollout(http)
        assert (await rollout.seed()).status_code == 200
        answer = await rollout.verify()
        assert (answer.status_code, answer.json()["mask_sample"]) == (200, True)
        assert "wait_s" in answer.json()


async def test_the_end_of_the_process_says_what_became_of_the_sessions(capsys: pytest.CaptureFixture[str]) -> None:
    async with native(StubOpenEnv()) as http:
        await Rollout(http).seed()
    assert "seeded 1, verified 0" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (Config(num_workers=2), "num_workers: one process holds every session"),
        (Config(expose_tools_over_mcp=True), "expose_tools_over_mcp"),
        (Config({"format": 2}), r"configs/stub_v1.yaml: agent_env.format is 2"),
        (Config({"format": 1, "env": "e"}), "openenv_url must be a text"),
    ],
)
def test_what_cannot_be_served_is_refused_by_name(config: Config, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        webserver(FOLDER, config, aggregate_metrics)
