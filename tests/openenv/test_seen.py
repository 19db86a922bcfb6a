from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets
from stubs.browser import PHONE, browser
from stubs.scraped import Samples, of, scraped
from stubs.serving import serving
from stubs.stub_bundle import stub_task, write_stub_bundle

from agent_env.openenv import build_app

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

TOKEN = "s3cr3t-token"


class Server:
    """A server of the stub bundle, asked with its token."""

    def __init__(self, app: Any, url: str, http: httpx.AsyncClient) -> None:
        self.app, self.url, self.http = app, url, http

    async def play(self, index: int, *calls: str, end: bool = True, reset: bool = True) -> None:
        address = self.url.replace("http", "ws") + "/ws"
        headers = {"authorization": f"Bearer {TOKEN}"}
        async with websockets.connect(address, additional_headers=headers, proxy=None) as socket:

            async def ask(kind: str, **data: Any) -> None:
                await socket.send(json.dumps({"type": kind, "data": data}))
                async with asyncio.timeout(30):
                    await socket.recv()

            await ask("reset", split="train", index=index)
            for tool in calls:
                await ask(
                    "step", type="call_tool", tool_name=tool, arguments={"value": 0.5} if tool == "submit" else {}
                )
            if end:
                await ask("step", type="call_tool", tool_name="end_turn", arguments={"response": "done"})

    async def status(self) -> dict[str, Any]:
        told: dict[str, Any] = (await self.http.get("/status")).json()
        return told

    async def quiet(self) -> tuple[dict[str, Any], Samples]:
        """Status and metrics once every episode is counted."""
        async with asyncio.timeout(20):
            while True:
                told = await self.status()
                if told["started"] == told["scored"] + sum(told["failed"].values()) + told["abandoned"]:
                    return told, scraped((await self.http.get("/metrics")).text)
                await asyncio.sleep(0.02)


@asynccontextmanager
async def server(folder: Path, **options: Any) -> AsyncIterator[Server]:
    tasks = {"good": stub_task(0.1), "bad": stub_task(0.2)}
    path = write_stub_bundle(folder / "stub-v1", tasks=tasks, evals={"train": ["good", "bad"]})
    app = await asyncio.to_thread(build_app, path, sandbox="process", token=TOKEN, **options)
    headers = {"authorization": f"Bearer {TOKEN}"}
    async with serving(app) as url, httpx.AsyncClient(base_url=url, headers=headers, trust_env=False) as http:
        yield Server(app, url, http)


async def test_metrics_status_and_the_summary_line_tell_the_same_numbers(tmp_path: Path) -> None:
    async with server(tmp_path) as s:
        await s.play(0, "submit", "nonsense")
        await s.play(0, "submit")
        await s.play(1, "crash")
        await s.play(0, "submit", end=False)
        told, samples = await s.quiet()
        summary = s.app.state.hub.summary()
    assert (told["started"], told["scored"], told["failed"], told["abandoned"]) == (4, 2, {"env_crashed": 1}, 1)
    assert summary == "episodes: 4 started, 2 scored, 1 abandoned, 1 failed (1 env_crashed)"
    assert samples["agent_env_episodes_started_total", ""] == 4
    assert of(samples, "agent_env_episodes_ended_total") == {"scored": 2, "failed": 1, "abandoned": 1}
    assert of(samples, "agent_env_masked_total") == told["failed"]
    assert of(samples, "agent_env_masked_by_task_total") == told["failed_tasks"] == {"bad": 1}
    assert of(samples, "agent_env_masked_by_tool_total") == told["failed_tools"] == {"crash": 1}
    counts = of(samples, "agent_env_phase_seconds_count")
    assert counts == {"wait": 4, "deploy": 4, "load": 4, "turn": 2, "verify": 2, "teardown": 4}
    assert of(samples, "agent_env_call_seconds_count") == {"submit": 3, "crash": 1}
    assert of(samples, "agent_env_call_errors_total") == {"tool_not_found": 1, "failed": 1}
    assert told["capacity"]["places"] == samples["agent_env_places", ""] == 8
    assert told["capacity"]["spares"] >= 0


async def test_a_score_that_makes_no_reward_is_a_failed_episode(tmp_path: Path) -> None:
    async with server(tmp_path, reward=lambda scores: float("nan")) as s:
        await s.play(0, "submit")
        told, _ = await s.quiet()
    assert (told["scored"], told["failed"]) == (0, {"score_not_finite": 1})
    assert told["last_failures"][0]["kind"] == "score_not_finite"


async def test_five_failures_in_a_row_are_one_error_line_and_on_the_page(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with server(tmp_path) as s:
        await s.play(0, "submit")
        for _ in range(6):
            await s.play(1, "crash")
        told, samples = await s.quiet()
        lines = [record for record in caplog.records if record.levelno == logging.ERROR]
        assert [re.sub(r" \(last.*", "", line.getMessage()) for line in lines if "in a row" in line.getMessage()] == [
            "task bad failed 5 times in a row, each time with env_crashed: the env's process ended: read its exit code "
            "and last log lines"
        ]
        assert [(task["task"], task["failures"]) for task in told["failing_tasks"]] == [("bad", 6)]
        assert samples["agent_env_failing_tasks", ""] == 1
        login = {"authorization": "Basic " + base64.b64encode(f"me:{TOKEN}".encode()).decode()}
        async with browser(tmp_path / "profile") as tab:
            await tab.open(f"{s.url}/status", PHONE, login)
            text = await tab.value("document.body.innerText")
            assert await tab.value("document.documentElement.scrollWidth") <= PHONE[0]
            assert "failing: the environment failed 6 of the last 7 rollouts" in text
            assert "Last 6 failures" in text
            assert "failed 6 times" in text
        await s.play(1, "submit")
        assert (await s.quiet())[0]["failing_tasks"] == []


async def test_the_provider_that_starts_nothing_fails_the_health(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with server(tmp_path) as s:
        assert (await s.status())["health"]["state"] == "healthy"
        hub = s.app.state.hub

        async def unhealthy() -> dict[str, str]:
            return {"status": "unhealthy", "reason": "provider_unavailable: no daemon"}

        monkeypatch.setattr(hub, "health", unhealthy)
        health = (await s.status())["health"]
        assert (health["state"], health["why"]) == (
            "failing",
            ["no sandbox can start: provider_unavailable: no daemon"],
        )


async def test_both_pages_ask_for_the_token_and_the_page_is_for_browsers(tmp_path: Path) -> None:
    async with server(tmp_path) as s:
        for path in ("/status", "/metrics"):
            refused = await s.http.get(path, headers={"authorization": ""})
            assert (refused.status_code, refused.headers["www-authenticate"][:6]) == (401, "Basic ")
        page = await s.http.get("/status", headers={"accept": "text/html"})
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.headers["content-security-policy"].startswith("default-src 'none'")
        assert (await s.http.get("/status")).headers["content-type"] == "application/json"
        assert (await s.http.get("/metrics")).headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert TOKEN not in page.text
