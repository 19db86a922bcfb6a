from __future__ import annotations

import asyncio
import random

import pytest

from agent_env.errors import ConfigError, EpisodeFailure, FailureKind
from agent_env.sandbox.capacity import Capacity, Place

pytestmark = pytest.mark.anyio


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_places_go_out_in_order_of_arrival_and_never_more_than_there_are() -> None:
    capacity = Capacity(2)
    order: list[int] = []
    running = 0

    async def play(number: int) -> None:
        nonlocal running
        async with await capacity.place():
            order.append(number)
            running += 1
            assert running <= 2
            await asyncio.sleep(random.random() / 100)
            running -= 1

    async with asyncio.TaskGroup() as group:
        for number in range(20):
            group.create_task(play(number))
            await asyncio.sleep(0)
    assert order == list(range(20))
    assert capacity.snapshot()["free"] == 2


async def test_a_full_queue_is_refused_with_the_numbers() -> None:
    capacity = Capacity(1, queue=1)
    place = await capacity.place()
    waiting = asyncio.create_task(capacity.place())
    await settle()
    with pytest.raises(EpisodeFailure, match=r"1 places.*1 wait.*limit 1") as raised:
        await capacity.place()
    assert raised.value.kind is FailureKind.CAPACITY
    place.release()
    (await waiting).release()


async def test_who_comes_while_others_wait_does_not_overtake() -> None:
    capacity = Capacity(1)
    first = await capacity.place()
    waiting = asyncio.create_task(capacity.place())
    await settle()
    first.release()
    late = asyncio.create_task(capacity.place())
    await settle()
    assert waiting.done()
    assert not late.done()
    (await waiting).release()
    (await late).release()


async def test_releasing_twice_frees_one_place() -> None:
    capacity = Capacity(2)
    place, other = await capacity.place(), await capacity.place()
    place.release()
    place.release()
    assert capacity.snapshot()["running"] == 1
    other.release()


async def test_a_waiter_that_is_cancelled_loses_nobody_a_place() -> None:
    for step in range(3):
        capacity = Capacity(1)
        place = await capacity.place()
        gone = asyncio.create_task(capacity.place())
        heir = asyncio.create_task(capacity.place())
        await settle()
        # Before, in the same tick as, and after the place is handed to it.
        if step == 0:
            gone.cancel()
            await settle()
            place.release()
        elif step == 1:
            gone.cancel()
            place.release()
        else:
            place.release()
            gone.cancel()
        (await asyncio.wait_for(heir, 1)).release()
        assert gone.cancelled()
        assert capacity.snapshot()["free"] == 1
        assert capacity.snapshot()["queued"] == 0


async def test_any_order_of_cancels_and_releases_ends_with_every_place_free() -> None:
    rng = random.Random(7)
    capacity = Capacity(3, queue=50)

    async def play() -> None:
        async with await capacity.place():
            await asyncio.sleep(rng.random() / 200)

    tasks = []
    for _ in range(200):
        tasks.append(asyncio.create_task(play()))
        await asyncio.sleep(0)
        if rng.random() < 0.4:
            rng.choice(tasks).cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert capacity.snapshot()["free"] == 3
    assert capacity.snapshot()["queued"] == 0


async def test_starts_are_capped_apart_from_places() -> None:
    capacity = Capacity(8, starting=2)
    most = 0

    async def start() -> None:
        nonlocal most
        async with capacity.starting():
            most = max(most, capacity.snapshot()["starting"])
            await asyncio.sleep(0.001)

    await asyncio.gather(*(start() for _ in range(8)))
    assert (most, capacity.snapshot()["starting"]) == (2, 0)


async def test_the_snapshot_has_the_numbers_that_capacity_answers_show() -> None:
    capacity = Capacity(1, starting=3, queue=9)
    place = await capacity.place()
    waiting = asyncio.create_task(capacity.place())
    await settle()
    assert capacity.snapshot() == {
        "places": 1,
        "running": 1,
        "free": 0,
        "queued": 1,
        "queue_limit": 9,
        "starting": 0,
        "starting_limit": 3,
    }
    place.release()
    assert isinstance(await waiting, Place)


@pytest.mark.parametrize("numbers", [(0, 1, 1), (1, 0, 1), (1, 1, -1)])
async def test_numbers_that_make_no_sense_are_refused(numbers: tuple[int, int, int]) -> None:
    with pytest.raises(ConfigError):
        Capacity(*numbers)
