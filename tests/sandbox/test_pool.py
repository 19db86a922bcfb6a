from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agent_env.bundle.model import Env
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox import pool as pool_module
from agent_env.sandbox.base import Prepared, SandboxSpec
from agent_env.sandbox.capacity import Capacity
from agent_env.sandbox.demand import Warm
from agent_env.sandbox.pool import SPARE, WarmPool

pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENT_ENV_STATE", str(tmp_path))
    return tmp_path


class Box:
    """A sandbox as far as the pool knows them, and what was found out about it."""

    def __init__(self, yard: Yard, spec: SandboxSpec) -> None:
        self.id = f"box {yard.started}"
        self.spec = spec
        self.well = True
        self.closed = False
        self._yard = yard

    async def answers(self) -> bool:
        await asyncio.sleep(0)
        return self.well

    async def aclose(self) -> None:
        self.closed = True

    async def stop(self, grace: float = 2.0) -> None:
        await asyncio.sleep(self._yard.stop_s)
        self._yard.there.discard(self)


class Yard:
    """A provider whose sandboxes are nothing but counted."""

    name = "yard"

    def __init__(self, *, start_s: float = 0.0, stop_s: float = 0.0) -> None:
        self.start_s = start_s
        self.stop_s = stop_s
        self.broken = False
        self.started = 0
        self.starting = 0
        self.most = 0
        self.most_starting = 0
        self.there: set[Box] = set()

    async def start(self, spec: SandboxSpec) -> Box:
        self.started += 1
        self.starting += 1
        box = Box(self, spec)
        self.there.add(box)
        self.most = max(self.most, len(self.there))
        self.most_starting = max(self.most_starting, self.starting)
        try:
            await asyncio.sleep(self.start_s)
            if self.broken:
                raise EpisodeFailure(FailureKind.DEPLOY_FAILED, "it is broken")
        except BaseException:
            self.there.discard(box)
            raise
        finally:
            self.starting -= 1
        return box


def kind(name: str) -> Prepared:
    return Prepared(env=Env(name=name, path=Path(), environment_name=name, digest=name), key=name, handle="")


A = kind("a")


@asynccontextmanager
async def pool_of(
    yard: Yard, warm: Warm | None, *kinds: Prepared, capacity: Capacity | None = None
) -> AsyncIterator[WarmPool[Box]]:
    async def found(sandbox: Any, env: Env, ahead: bool) -> Box:
        box: Box = sandbox
        assert ahead == (box.spec.episode == SPARE)
        return box

    pool: WarmPool[Box] = WarmPool(yard, capacity or Capacity(8, starting=2), found, warm)  # type: ignore[arg-type]
    pool.begin(kinds)
    try:
        yield pool
    finally:
        await pool.aclose()


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


def nobody(sandbox: object) -> None:
    """Who takes it is of no interest."""


async def test_without_spares_each_is_started_when_it_is_asked_for() -> None:
    yard = Yard()
    async with pool_of(yard, None, A) as pool:
        ready = await pool.take(A, "e1", nobody)
        assert ready.opened.spec.episode == "e1"
        assert (yard.started, pool.spares) == (1, 0)


async def test_a_spare_is_handed_over_at_once_and_replaced(state: Path) -> None:
    yard = Yard(start_s=0.05)
    async with pool_of(yard, Warm(1, 1), A) as pool:
        await until(lambda: pool.spares == 1)
        yard.start_s = 10
        owned: list[object] = []
        async with asyncio.timeout(1):
            ready = await pool.take(A, "e1", owned.append)
        assert owned == [ready.sandbox]
        assert ready.opened.spec.episode == SPARE
        (journal,) = (state / "journal").iterdir()
        line = json.loads(journal.read_text())
        assert (line["sandbox"], line["episode"]) == (ready.sandbox.id, "e1")
        yard.start_s = 0
        await until(lambda: yard.started == 2)


async def test_no_sandbox_is_ever_handed_out_twice() -> None:
    yard = Yard()
    async with pool_of(yard, Warm(3, 3), A) as pool:
        taken = [await pool.take(A, f"e{n}", nobody) for n in range(5)]
        taken += await asyncio.gather(*(pool.take(A, f"f{n}", nobody) for n in range(20)))
        assert len({ready.sandbox.id for ready in taken}) == 25


async def test_a_spare_that_does_not_answer_any_more_is_removed_and_another_one_taken() -> None:
    yard = Yard()
    async with pool_of(yard, Warm(2, 2), A) as pool:
        await until(lambda: pool.spares == 2)
        dead, well = sorted(yard.there, key=lambda box: box.id)
        dead.well = False
        ready = await pool.take(A, "e1", nobody)
        assert ready.opened is well
        await until(lambda: dead not in yard.there)
        assert dead.closed


async def test_who_finds_none_takes_the_one_that_is_being_started() -> None:
    yard = Yard(start_s=0.1)
    async with pool_of(yard, Warm(1, 1), A) as pool:
        await until(lambda: yard.starting == 1)
        ready = await pool.take(A, "e1", nobody)
        assert ready.opened.spec.episode == SPARE
        assert ready.opened.id == "box 1"


async def test_a_start_that_fails_fails_who_waits_for_it_with_its_reason() -> None:
    yard = Yard(start_s=0.05)
    yard.broken = True
    async with pool_of(yard, Warm(1, 1), A) as pool:
        await until(lambda: yard.starting == 1)
        with pytest.raises(EpisodeFailure, match="it is broken"):
            await pool.take(A, "e1", nobody)
    assert not yard.there


async def test_an_env_that_does_not_start_is_not_tried_again_at_once() -> None:
    yard = Yard()
    yard.broken = True
    async with pool_of(yard, Warm(1, 1), A) as pool:
        await until(lambda: yard.started == 1 and not yard.starting)
        await asyncio.sleep(0.1)
        assert yard.started == 1
        with pytest.raises(EpisodeFailure):
            await pool.take(A, "e1", nobody)
        assert yard.started == 2


@pytest.mark.parametrize("after", [0.0, 0.02, 0.06])
async def test_a_take_that_is_cancelled_leaves_nothing_that_nobody_owns(after: float) -> None:
    yard = Yard(start_s=0.05)
    capacity = Capacity(8, starting=2)
    async with pool_of(yard, Warm(1, 1), A, capacity=capacity) as pool:
        await until(lambda: yard.starting == 1)
        owned: list[Any] = []
        task = asyncio.ensure_future(pool.take(A, "e1", owned.append))
        await asyncio.wait({task}, timeout=after)
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task})
        for sandbox in owned:
            assert sandbox.closed or not task.cancelled()
            await sandbox.stop()
    assert not yard.there
    assert capacity.snapshot()["starting"] == 0


async def test_spares_follow_the_demand() -> None:
    yard = Yard()
    async with pool_of(yard, Warm(1, 6, 6), A) as pool:
        await until(lambda: pool.spares == 1)
        await asyncio.sleep(0.05)
        assert pool.spares == 1
        for number in range(4):
            await pool.take(A, f"e{number}", nobody)
        await until(lambda: pool.spares == 4)


async def test_a_spare_that_nobody_takes_grows_old_and_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "LONGEST_LIFE", 0.05)
    monkeypatch.setattr(pool_module, "_LONGEST_PAUSE", 0.02)
    yard = Yard()
    async with pool_of(yard, Warm(1, 1), A) as pool:
        await until(lambda: yard.started >= 3)
        assert yard.most == 1
        assert pool.spares <= 1


async def test_background_starts_hold_a_start_each() -> None:
    yard = Yard(start_s=0.03)
    async with pool_of(yard, Warm(6, 6), A, capacity=Capacity(8, starting=2)) as pool:
        await until(lambda: pool.spares == 6)
        assert yard.most_starting == 2


async def test_kinds_share_one_ceiling_and_the_ones_in_demand_go_first() -> None:
    yard = Yard()
    b = kind("b")
    async with pool_of(yard, Warm(1, 2, 2), A, b) as pool:
        await until(lambda: pool.spares == 2)
        await asyncio.gather(*(pool.take(b, f"e{n}", nobody) for n in range(4)))
        await until(lambda: pool.spares == 2 and not yard.starting)
        names = [(await pool.take(b, f"f{n}", nobody)).opened for n in range(2)]
        assert [box.spec.episode for box in names] == [SPARE, SPARE]


async def test_closing_removes_spares_and_starts_and_not_what_was_taken() -> None:
    yard = Yard(start_s=0.01)
    async with pool_of(yard, Warm(3, 3), A) as pool:
        await until(lambda: pool.spares == 3)
        ready = await pool.take(A, "e1", nobody)
        yard.start_s = 10
        await until(lambda: yard.starting > 0)
    assert yard.there == {ready.opened}


@pytest.mark.parametrize("seed", range(10))
async def test_there_are_never_more_sandboxes_than_places_and_the_ceiling(seed: int) -> None:
    chance = random.Random(seed)
    yard = Yard(stop_s=0.001)
    capacity = Capacity(4, starting=3)
    kinds = [A, kind("b")]

    async def episode(number: int) -> None:
        async with await capacity.place():
            owned: list[Any] = []
            try:
                async with asyncio.timeout(chance.choice([0.002, 0.02, 1.0])):
                    ready = await pool.take(chance.choice(kinds), f"e{number}", owned.append)
                await asyncio.sleep(chance.random() * 0.005)
                for box in list(yard.there):
                    box.well = box.well and chance.random() > 0.05
                assert ready.sandbox in owned
            except TimeoutError:
                pass
            finally:
                for sandbox in owned:
                    await sandbox.stop()

    async with pool_of(yard, Warm(1, 3, 3), *kinds, capacity=capacity) as pool:
        for _ in range(4):
            yard.start_s = chance.random() * 0.01
            await asyncio.gather(*(episode(number) for number in range(30)))
    assert yard.most <= 4 + 3
    assert not yard.there
    assert capacity.snapshot()["running"] == 0
