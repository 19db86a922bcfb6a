"""Answers that outlive a client's patience, and what stopping the server means for requests that run."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from stubs.gym_client import Rollout, bench, row, until
from stubs.gym_requests import request
from stubs.stub_openenv import Knobs, StubOpenEnv

from agent_env.training.nemo_gym.exchange import Request
from agent_env.training.nemo_gym.wire import WireError

pytestmark = pytest.mark.anyio


# answers that take long


async def slow_answer(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Head and body (chunks joined) of a chunked answer that is read to its end."""
    head = await reader.readuntil(b"\r\n\r\n")
    body = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        body += await reader.readexactly(size)
        await reader.readexactly(2)
    return head, body


async def test_a_slow_seed_begins_with_spaces_and_ends_in_json() -> None:
    async with bench(StubOpenEnv(places=1), keepalive_after=0.1, keepalive_every=0.05) as b:
        first = await b.seeded()
        async with request(b, "/seed_session", row()) as reader:
            head = await reader.readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200")
            cookie = head.partition(b"set-cookie: ")[2].partition(b";")[0].decode()
            for _ in range(2):
                assert await reader.readexactly(6) == b"1\r\n \r\n"
            await first.verify()
            rest = await reader.readuntil(b"0\r\n")
            assert rest.replace(b"1\r\n \r\n", b"") == b"2\r\n{}\r\n0\r\n"
        second = Rollout(b.http)
        second.cookie = cookie
        assert (await second.verify()).json()["reward"] == 0.75


async def test_a_slow_tool_call_leads_its_text_with_spaces() -> None:
    async with bench(StubOpenEnv(Knobs(tool_s=0.3)), keepalive_after=0.1, keepalive_every=0.05) as b:
        rollout = await b.seeded()
        answer = await rollout.call("look", {"at": "x"})
        assert answer.text.lstrip(" ") == '{"saw": {"at": "x"}}'
        assert answer.text.startswith("  ")
        assert answer.headers["content-type"].startswith("text/plain")


async def test_a_slow_verify_is_complete_json() -> None:
    async with bench(StubOpenEnv(Knobs(verify_s=0.3)), keepalive_after=0.1, keepalive_every=0.05) as b:
        answer = await (await b.seeded()).verify()
        assert answer.text.startswith("  ")
        assert answer.json()["reward"] == 0.75


async def test_a_slow_verify_that_ends_masked_is_cut_under_the_flag() -> None:
    knobs = Knobs(verify_s=0.3, fail={"verify": ("verifier_error", "boom")})
    for flag in (True, False):
        async with bench(StubOpenEnv(knobs), keepalive_after=0.1, keepalive_every=0.05, masked_as_error=flag) as b:
            rollout = await b.seeded()
            if flag:
                async with request(b, "/verify", {"response": {}}, rollout.cookie) as reader:
                    with pytest.raises(asyncio.IncompleteReadError):
                        await slow_answer(reader)
            else:
                assert (await rollout.verify()).json()["mask_sample"] is True


async def test_a_slow_seed_that_fails_is_answered_and_masked_at_verify() -> None:
    stub = StubOpenEnv(places=1)
    async with bench(stub, keepalive_after=0.1, keepalive_every=0.05, reset_timeout=0.4, masked_as_error=True) as b:
        first = await b.seeded()
        second = b.rollout()
        answer = await second.seed()
        assert (answer.status_code, answer.json()) == (200, {})
        assert (await second.verify()).status_code == 503
        await first.verify()


async def test_a_seed_that_is_held_for_a_given_time_keeps_its_true_status() -> None:
    async with bench(
        StubOpenEnv(places=1), keepalive_after=0.1, keepalive_every=0.05, seed_wait=0.4, masked_as_error=True
    ) as b:
        first = await b.seeded()
        assert (await b.rollout().seed()).status_code == 503
        await first.verify()


async def test_a_client_that_leaves_a_slow_seed_frees_its_place() -> None:
    async with bench(StubOpenEnv(places=1), keepalive_after=0.05, keepalive_every=0.05) as b:
        first = await b.seeded()
        async with request(b, "/seed_session", row()) as reader:
            await reader.readuntil(b"\r\n\r\n")
        await until(lambda: b.app.sessions.waiting == 0)
        await first.verify()


# the end of the server


async def test_stopping_the_server_answers_what_runs_and_ends_every_episode() -> None:
    async with bench(StubOpenEnv(Knobs(tool_s=20))) as b:
        idle, calling, verifying = await b.seeded(), await b.seeded(), await b.seeded()
        call = asyncio.create_task(calling.call("look"))
        await until(lambda: len(b.stub.calls) == 1)
        await b.app.sessions.shutdown()
        assert "server_shutdown" in (await call).text
        assert (await verifying.verify()).json()["failure_kind"] == "shutdown"
        refused = await idle.post("/seed_session", row())
        assert refused.status_code == 503
        await until(lambda: b.stub.running == 0)


async def test_a_body_that_stops_coming_is_given_up() -> None:
    silence = asyncio.Event()

    async def receive() -> dict[str, Any]:
        await silence.wait()
        raise AssertionError

    request = Request("POST", "/look", [(b"content-length", b"10")], receive)
    with pytest.raises(WireError) as error:
        await request.body(1000, stall=0.02)
    assert error.value.status == 408


async def test_a_client_with_a_short_patience_per_read_gets_every_slow_answer() -> None:
    knobs = Knobs(start_s=0.5, tool_s=0.5, verify_s=0.5)
    async with bench(StubOpenEnv(knobs, places=1), keepalive_after=0.1, keepalive_every=0.1) as b:
        first = await b.seeded()
        async with httpx.AsyncClient(base_url=b.url, timeout=0.4, verify=False) as impatient:
            second = Rollout(impatient)
            seeding = asyncio.create_task(second.seed())
            await asyncio.sleep(0.3)
            await first.verify()
            assert (await seeding).json() == {}
            assert (await second.call("look", {"at": "x"})).text.strip() == '{"saw": {"at": "x"}}'
            assert (await second.verify()).json()["reward"] == 0.75
