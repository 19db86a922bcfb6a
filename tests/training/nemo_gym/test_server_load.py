"""More rollouts than places: everybody is measured, or told in time."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter

import pytest
from stubs.gym_client import bench, post, response, row
from stubs.stub_openenv import Knobs, StubOpenEnv

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.timeout(300)]


async def play(url: str, waits: list[float]) -> str:
    began = time.monotonic()
    status, headers, _ = await post(url, "/seed_session", row())
    waits.append(time.monotonic() - began)
    if status == 503:
        assert int(headers["retry-after"]) >= 1
        return "refused"
    _, headers, answer = await post(url, "/verify", {"response": response()}, headers["set-cookie"].split(";")[0])
    verdict = json.loads(answer)
    return "masked" if verdict["mask_sample"] else f"measured {verdict['reward']}"


async def crowd(rollouts: int, stub: StubOpenEnv, **options: object) -> tuple[Counter[str], list[float]]:
    waits: list[float] = []
    async with bench(stub, keepalive_after=0, **options) as b:
        ends = Counter(await asyncio.gather(*(play(b.url, waits) for _ in range(rollouts))))
    assert stub.most_running <= stub.places
    assert (stub.running, stub.sessions) == (0, 0)
    return ends, waits


async def test_seven_times_the_places_all_measured_by_a_patient_client() -> None:
    ends, _ = await crowd(84, StubOpenEnv(Knobs(start_s=0.1), places=12))
    assert ends == {"measured 0.75": 84}


async def test_seven_times_the_places_measured_or_refused_before_the_client_gives_up() -> None:
    stub = StubOpenEnv(Knobs(start_s=0.5), places=12)
    ends, waits = await crowd(84, stub, seed_wait=1.3, masked_as_error=True)
    assert set(ends) == {"measured 0.75", "refused"}
    assert ends.total() == 84
    assert ends["refused"] > 20
    assert max(waits) < 2.5


@pytest.mark.integration
async def test_700_against_96_places_all_measured() -> None:
    ends, _ = await crowd(700, StubOpenEnv(Knobs(start_s=5), places=96))
    assert ends == {"measured 0.75": 700}


@pytest.mark.integration
async def test_700_against_96_places_seeded_or_refused_within_a_minute() -> None:
    stub = StubOpenEnv(Knobs(start_s=15), places=96)
    ends, waits = await crowd(700, stub, seed_wait=50.0, masked_as_error=True)
    assert set(ends) == {"measured 0.75", "refused"}
    assert ends.total() == 700
    assert 340 <= ends["measured 0.75"] <= 400
    assert max(waits) < 60


@pytest.mark.integration
async def test_700_against_96_places_of_a_server_without_a_queue() -> None:
    ends, _ = await crowd(700, StubOpenEnv(Knobs(start_s=2), places=96, foreign=True))
    assert ends == {"measured 0.75": 700}
