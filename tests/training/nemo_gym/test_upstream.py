"""How a session finds its place among OpenEnv servers."""

from __future__ import annotations

import asyncio

import pytest
from stubs.gym_client import bench, until
from stubs.quick_server import quick
from stubs.stub_openenv import Knobs, StubOpenEnv

pytestmark = pytest.mark.anyio


async def test_several_servers_share_the_sessions_by_their_places() -> None:
    small, large = StubOpenEnv(places=2), StubOpenEnv(places=6)
    async with quick(small) as one, quick(large) as two, bench(openenv=(one, two)) as b:
        for _ in range(2):  # each is asked for its places at its first session
            await (await b.seeded()).verify()
        rollouts = [await b.seeded() for _ in range(8)]
        assert (small.running, large.running) == (2, 6)
        for rollout in rollouts:
            assert (await rollout.verify()).json()["reward"] == 0.75
        await until(lambda: small.sessions + large.sessions == 0)


async def test_a_burst_does_not_queue_at_one_of_two_servers() -> None:
    stubs = StubOpenEnv(Knobs(start_s=0.1), places=4), StubOpenEnv(Knobs(start_s=0.1), places=4)
    async with quick(stubs[0]) as one, quick(stubs[1]) as two, bench(openenv=(one, two)) as b:
        rollouts = await asyncio.gather(*(b.seeded() for _ in range(8)))
        assert [stub.running for stub in stubs] == [4, 4]
        await asyncio.gather(*(rollout.verify() for rollout in rollouts))
        assert [len(stub.requests) for stub in stubs] == [1, 1]


async def test_a_server_that_is_away_or_full_is_passed_over() -> None:
    full, free = StubOpenEnv(refuse_all=True), StubOpenEnv()
    async with quick(full) as one, quick(free) as two, bench(openenv=("http://127.0.0.1:9", one, two)) as b:
        for _ in range(5):
            assert (await (await b.seeded()).verify()).json()["reward"] == 0.75
        assert len(free.resets) == 5


async def test_a_connection_that_breaks_after_the_reset_is_not_tried_again() -> None:
    async with bench(StubOpenEnv(Knobs(drop=frozenset({"reset"})))) as b:
        rollout = await b.seeded()
        answer = (await rollout.verify()).json()
        assert answer["failure_kind"] == "provider_unavailable"
        assert b.stub.resets == [("train", 0)]


async def test_the_openenv_servers_token_is_sent() -> None:
    async with bench(StubOpenEnv(token="secret"), openenv_token="secret") as b:
        assert (await (await b.seeded()).verify()).json()["reward"] == 0.75
    async with bench(StubOpenEnv(token="secret"), openenv_token="wrong", refused_for=0.2) as b:
        answer = (await (await b.seeded()).verify()).json()
        assert answer["failure_kind"] == "provider_unavailable"
        assert "HTTP 403" in answer["failure_reason"]


async def test_capacity_tells_what_each_server_tells() -> None:
    async with quick(StubOpenEnv(foreign=True)) as foreign, quick(StubOpenEnv(places=5)) as ours:
        async with bench(openenv=(foreign, ours, "http://127.0.0.1:9")) as b:
            told = (await b.http.get("/capacity")).json()
    assert (told["open"], told["waiting"]) == (0, 0)
    assert told["openenv"][0] is None
    assert told["openenv"][1] == {"url": ours, "places": 5, "running": 0, "free": 5, "queued": 0}
    assert "error" in told["openenv"][2]
