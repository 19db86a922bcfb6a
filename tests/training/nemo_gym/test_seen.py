from __future__ import annotations

import asyncio
import base64
import json
import logging
import re
from pathlib import Path
from typing import Any

import pytest
from stubs.browser import DESK, PHONE, browser
from stubs.gym_client import Bench, bench, row, until
from stubs.scraped import Samples, of, scraped, went_down
from stubs.stub_openenv import Knobs, StubOpenEnv

pytestmark = pytest.mark.anyio

EVIL = "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">"
FAULTS = {
    1: Knobs(fail={"tool": ("tool_timeout", "too slow")}),
    2: Knobs(fail={"start": ("deploy_failed", EVIL)}),
    3: Knobs(fail={"verify": ("judge_failed", "silent")}),
    4: Knobs(reward=None),
    5: Knobs(fail={"reset": ("image_missing", "no such image")}),
}


async def played(b: Bench, index: int, *calls: str, verify: bool = True) -> Any:
    rollout = await b.seeded(index=index)
    for tool in calls:
        await rollout.call(tool)
    if verify:
        await rollout.verify()
    return rollout


async def every_end(b: Bench) -> None:
    """Sessions of every fate, each failure kind that can be had here, and verifies that come late."""
    for index in range(6):
        await played(b, index, "look", "fail", "no-such-tool")
    for late in (False, True):
        left = await played(b, 0, verify=False)
        closed = await played(b, 0, verify=False)
        await closed.post("/close_session", {})
        before = b.tally.reclaimed
        await until(lambda before=before: b.tally.reclaimed > before)
        if late:
            await left.verify()
            await closed.verify()
    await b.rollout().post("/seed_session", {"split": "train"})
    await b.rollout().post("/verify", row() | {"response": {}})
    await b.rollout().post("/seed_session", row(task_id="another"))


async def metrics(b: Bench) -> Samples:
    answer = await b.http.get("/metrics")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    return scraped(answer.text)


async def test_metrics_status_and_the_summary_line_tell_the_same_numbers() -> None:
    async with bench(StubOpenEnv(by_index=FAULTS), idle_timeout=0.3) as b:
        await every_end(b)
        await played(b, 0, verify=False)
        samples, told = await metrics(b), (await b.http.get("/status")).json()
        summary = b.app.sessions.summary()
    ended, late = of(samples, "agent_env_sessions_ended_total"), of(samples, "agent_env_sessions_recounted_total")
    tallied = {fate: ended[fate] - late.get(fate, 0) for fate in ended}
    assert tallied == {
        "verified": told["verified"],
        "masked": sum(told["masked"].values()),
        "reclaimed": told["reclaimed"],
        "closed": told["closed"],
    }
    assert late == {"reclaimed": 1, "closed": 1}
    seeded = samples["agent_env_sessions_seeded_total", ""]
    assert seeded == told["seeded"] == sum(tallied.values()) + told["open"]
    assert of(samples, "agent_env_masked_total") == told["masked"]
    assert of(samples, "agent_env_masked_by_task_total") == told["masked_tasks"]
    assert of(samples, "agent_env_masked_by_tool_total") == told["masked_tools"] == {"look": 1}
    assert samples["agent_env_seeds_refused_total", ""] == told["refused"] == 2
    assert samples["agent_env_verifies_unknown_total", ""] == told["unknown_sessions"] == 1
    line = dict(re.findall(r"(seeded|verified|masked|reclaimed|closed|refused|open at the end) (\d+)", summary))
    assert {name: int(number) for name, number in line.items()} == {
        **tallied,
        "seeded": seeded,
        "refused": told["refused"],
        "open at the end": told["open"],
    }
    assert told["open"] == samples["agent_env_sessions_open", ""] == 1


async def test_no_counter_goes_down_while_late_verdicts_move_the_tally() -> None:
    async with bench(StubOpenEnv(by_index=FAULTS), idle_timeout=0.2) as b:
        left = [await played(b, index, verify=False) for index in (0, 1)]
        await until(lambda: b.tally.reclaimed == 2)
        earlier = await metrics(b)
        for rollout in left:
            await rollout.verify()
            later = await metrics(b)
            assert not went_down(earlier, later)
            earlier = later
        assert b.tally.reclaimed == 0


async def test_the_times_of_every_phase_are_told() -> None:
    async with bench(StubOpenEnv(Knobs(start_s=0.2, tool_s=0.02, verify_s=0.03))) as b:
        await played(b, 0, "look")
        samples = await metrics(b)
        told = (await b.http.get("/status")).json()
    counts = of(samples, "agent_env_phase_seconds_count")
    assert set(counts) == {"wait", "start", "verify", "deploy", "load"}
    assert (counts["wait"], counts["start"], counts["verify"], counts["deploy"]) == (1, 1, 1, 1)
    assert of(samples, "agent_env_phase_seconds_sum")["start"] >= 0.1
    assert of(samples, "agent_env_call_seconds_count") == {"look": 1}
    assert told["calls"]["look"]["max_s"] >= 0.02
    assert told["times"]["verify"]["max_s"] >= 0.03


async def test_sessions_are_told_by_state_and_servers_by_their_places() -> None:
    async with bench(StubOpenEnv(Knobs(start_s=3), places=1)) as b:
        await b.seeded()
        second = asyncio.create_task(b.rollout().seed())
        await until(lambda: b.app.sessions.waiting == 1)
        samples, told = await metrics(b), (await b.http.get("/status")).json()
        assert told["states"] == {"waiting": 1, "starting": 1, "playing": 0, "ended": 0, "failed": 0}
        assert of(samples, "agent_env_sessions") == told["states"]
        assert list(of(samples, "agent_env_openenv_places").values()) == [1]
        assert list(of(samples, "agent_env_openenv_up").values()) == [1]
        second.cancel()


async def test_a_server_that_is_away_fails_the_health_and_says_where_it_should_be() -> None:
    async with bench(openenv=("http://127.0.0.1:9",)) as b:
        told = (await b.http.get("/status")).json()
        assert told["health"]["state"] == "failing"
        assert "http://127.0.0.1:9" in told["health"]["why"][0]
        assert list(of(await metrics(b), "agent_env_openenv_up").values()) == [0]


async def test_five_failures_in_a_row_are_one_error_line_and_listed_until_a_success(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stub = StubOpenEnv(by_index={1: FAULTS[1]})
    async with bench(stub) as b:
        with caplog.at_level(logging.ERROR):
            for _ in range(7):
                await played(b, 1, "look")
                await played(b, 0)
        lines = [record.getMessage() for record in caplog.records if "in a row" in record.getMessage()]
        assert len(lines) == 1
        assert lines[0].startswith("task train/1 failed 5 times in a row, each time with tool_timeout: raise --tool")
        told = (await b.http.get("/status")).json()
        assert [(task["task"], task["failures"]) for task in told["failing_tasks"]] == [("train/1", 7)]
        assert of(await metrics(b), "agent_env_failing_tasks") == {"": 1}
        stub.by_index.clear()
        await played(b, 1, "look")
        assert (await b.http.get("/status")).json()["failing_tasks"] == []


async def test_the_last_failures_are_told_with_their_reason_newest_first() -> None:
    async with bench(StubOpenEnv(by_index=FAULTS)) as b:
        for index in (1, 3, 4):
            await played(b, index, "look")
        failures = (await b.http.get("/status")).json()["last_failures"]
    assert [(failure["task"], failure["kind"], failure["tool"]) for failure in failures] == [
        ("train/4", "no_score", None),
        ("train/3", "judge_failed", None),
        ("train/1", "tool_timeout", "look"),
    ]
    assert failures[2]["reason"] == "too slow"


async def test_status_is_a_page_for_browsers_and_json_for_all_others() -> None:
    async with bench() as b:
        for accept, query, media in (
            ("text/html,*/*", "", "text/html; charset=utf-8"),
            ("*/*", "", "application/json"),
            ("application/json", "", "application/json"),
            ("text/html", "?format=json", "application/json"),
        ):
            answer = await b.http.get(f"/status{query}", headers={"accept": accept})
            assert (answer.status_code, answer.headers["content-type"]) == (200, media)
            assert answer.headers["cache-control"] == "no-store"


async def test_both_pages_ask_for_the_token_which_a_browser_sends_as_a_password() -> None:
    async with bench(token="s3cr3t-token") as b:
        login = "Basic " + base64.b64encode(b"me:s3cr3t-token").decode()
        for path in ("/status", "/metrics"):
            refused = await b.http.get(path)
            assert (refused.status_code, refused.headers["www-authenticate"][:6]) == (401, "Basic ")
            called = await b.http.post(path, headers={"authorization": login}, json={})  # of a tool of that name
            assert (called.status_code, called.headers["www-authenticate"]) == (401, "Bearer")
            for header in ("Bearer s3cr3t-token", login):
                assert (await b.http.get(path, headers={"authorization": header})).status_code == 200
        answer = await b.http.post("/seed_session", json=row(), headers={"authorization": login})
        assert answer.status_code == 401


async def test_no_token_stands_in_what_is_shown() -> None:
    knobs = Knobs(fail={"tool": ("env_crashed", "Authorization: Bearer s3cr3t-token was refused")})
    async with bench(StubOpenEnv(knobs, token="s3cr3t-token"), openenv_token="s3cr3t-token") as b:
        await played(b, 0, "look")
        for path in ("/status", "/status?format=html", "/metrics"):
            assert "s3cr3t" not in (await b.http.get(path)).text


@pytest.mark.integration
async def test_the_page_is_read_in_a_browser_on_a_phone_and_on_a_desk(tmp_path: Path) -> None:
    async with bench(StubOpenEnv(by_index=FAULTS), token="s3cr3t-token") as b:
        b.http.headers["authorization"] = "Bearer s3cr3t-token"
        for _ in range(5):
            await played(b, 2)
        await played(b, 1, "look")
        login = {"authorization": "Basic " + base64.b64encode(b"me:s3cr3t-token").decode()}
        async with browser(tmp_path / "profile") as tab:
            for size in (PHONE, DESK):
                await tab.open(f"{b.url}/status", size, login)
                text = await tab.value("document.body.innerText")
                assert await tab.value("document.title") == "failing: stub_v1"
                assert await tab.value("document.documentElement.scrollWidth") <= size[0]
                assert "✕ failing: the environment failed 6 of the last 6 rollouts" in " ".join(text.split())
                assert "Last 6 failures" in text
                assert EVIL in text
            colours = await tab.value(_COLOURS)
            assert len(set(json.loads(colours))) == 3
            await tab.screenshot(tmp_path / "status.png")
            assert (tmp_path / "status.png").stat().st_size > 20_000


_COLOURS = """
JSON.stringify(["healthy", "degraded", "failing"].map(state => {
  const element = document.querySelector(".health");
  element.className = "health " + state;
  return getComputedStyle(element).backgroundColor;
}))
"""
