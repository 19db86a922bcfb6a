"""Any interleaving of seed, call, verify, close, departure, expiry and death of an env ends with nothing left running,
and with every reward measured or masked."""

from __future__ import annotations

import asyncio
import os
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, initialize, precondition, rule
from stubs.gym_client import Bench, Rollout, bench, row, until
from stubs.stub_openenv import Knobs, StubOpenEnv

EXAMPLES = int(os.environ.get("AGENT_ENV_STATE_EXAMPLES", "10"))

SOUND = {
    0: Knobs(),
    1: Knobs(start_s=0.02, tool_s=0.01, verify_s=0.02),
    2: Knobs(prompts=("One.", "Two.")),
}
FAULTY = {
    10: Knobs(fail={"reset": ("image_missing", "no image")}),
    11: Knobs(fail={"start": ("deploy_failed", "no start")}),
    12: Knobs(fail={"tool": ("env_crashed", "exit 1")}),
    13: Knobs(fail={"verify": ("verifier_error", "boom")}),
    14: Knobs(drop=frozenset({"start"})),
    15: Knobs(drop=frozenset({"tool"})),
    16: Knobs(drop=frozenset({"verify"})),
    17: Knobs(reward=None),
    18: Knobs(reward=float("nan")),
}
NEEDS_A_CALL = (12, 15)


@dataclass(eq=False)
class Played:
    rollout: Rollout
    index: int
    called: bool = False
    disturbed: bool = False
    """closed, expired, or its env killed: it may be masked although its task is sound"""
    verdicts: list[tuple[float, bool, str | None]] = field(default_factory=list)

    @property
    def must_fail(self) -> bool:
        return self.index in FAULTY and (self.called or self.index not in NEEDS_A_CALL)


class SessionStates(RuleBasedStateMachine):
    rollouts = Bundle("rollouts")

    @initialize(places=st.sampled_from([1, 3, 50]), foreign=st.booleans())
    def start(self, places: int, foreign: bool) -> None:
        self.runner = asyncio.Runner()
        self.stack = AsyncExitStack()
        stub = StubOpenEnv(places=places, foreign=foreign, by_index={**SOUND, **FAULTY})
        self.scarce = places < 50
        opened = bench(stub, seed_wait=0.1 if self.scarce else 5.0)
        self.bench: Bench = self.run(self.stack.enter_async_context(opened))
        self.played: list[Played] = []
        self.typed = 0

    def run(self, work: Any) -> Any:
        return self.runner.run(_within(work))

    @rule(target=rollouts, index=st.sampled_from([*SOUND, *FAULTY]), typed=st.booleans())
    def seed(self, index: int, typed: bool) -> Played:
        rollout = self.bench.rollout()
        self.typed += 1
        body = row(index=index) if not typed else _typed(f"s{self.typed}", index)
        answer = self.run(rollout.seed(body))
        assert answer.status_code == 200
        # a seed that finds no place within --seed-wait is kept, and masked
        played = Played(rollout, index, disturbed=self.scarce)
        self.played.append(played)
        return played

    @rule(typed=st.booleans())
    def seed_and_leave(self, typed: bool) -> None:
        self.typed += 1
        body = _typed(f"gone{self.typed}", 1) if typed else row(index=1)
        self.run(_cancelled(self.bench.rollout().post("/seed_session", body)))

    @rule(
        played=rollouts, tool=st.sampled_from(["look", "fail", "nope", "end_turn"]), body=st.sampled_from([{}, [], "x"])
    )
    def call(self, played: Played, tool: str, body: Any) -> None:
        before = len(self.bench.stub.calls)
        answer = self.run(played.rollout.call(tool, body))
        played.called |= tool in ("look", "fail") and len(self.bench.stub.calls) > before
        assert answer.status_code in (200, 404, 422)
        assert answer.text

    @rule(played=rollouts)
    def call_and_leave(self, played: Played) -> None:
        before = len(self.bench.stub.calls)
        self.run(_cancelled(played.rollout.call("look")))
        played.called |= len(self.bench.stub.calls) > before

    @rule(played=rollouts)
    def verify(self, played: Played) -> None:
        self.run(_verified(played))

    @rule(played=rollouts)
    def verify_during_a_call(self, played: Played) -> None:
        before = len(self.bench.stub.calls)
        self.run(_both(played.rollout.call("look"), _verified(played)))
        # A verify that came first, now or earlier, leaves no env to call.
        played.called |= len(self.bench.stub.calls) > before

    @rule(played=rollouts)
    def verify_twice_at_once(self, played: Played) -> None:
        self.run(_both(_verified(played), _verified(played)))

    @rule(played=rollouts)
    def verify_and_leave(self, played: Played) -> None:
        self.run(_cancelled(played.rollout.verify()))

    @rule(played=consumes(rollouts))
    def close(self, played: Played) -> None:
        played.disturbed = True
        assert self.run(played.rollout.post("/close_session", {})).status_code == 200

    @rule(played=rollouts)
    def idle_clock_rings(self, played: Played) -> None:
        self.run(_ring(self.bench, played))

    @precondition(lambda self: self.played)
    @rule()
    def every_env_dies(self) -> None:
        for played in self.played:
            played.disturbed = True
        self.run(self.bench.stub.kill())

    def teardown(self) -> None:
        if not hasattr(self, "runner"):
            return
        try:
            self._settle()
        finally:
            try:
                self.run(self.stack.aclose())
            finally:
                self.runner.close()

    def _settle(self) -> None:
        for played in self.played:
            self.run(_verified(played))
        tally, sessions = self.bench.tally, self.bench.app.sessions
        # those left open were answered although their client had left: the clock's business
        self.run(until(lambda: sessions.waiting == 0 and self.bench.stub.sessions <= sessions.open))
        ended = tally.verified + tally.masked.total() + tally.reclaimed + tally.closed
        assert tally.seeded == ended + sessions.open
        assert tally.verified + tally.masked.total() == len(self.played)
        for played in self.played:
            _check(played)


def _check(played: Played) -> None:
    assert len(set(played.verdicts)) == 1, "the verdict changed"
    reward, masked, kind = played.verdicts[0]
    assert (reward, masked) in ((0.75, False), (0.0, True))
    assert masked == (kind is not None)
    if played.must_fail:
        assert masked, f"task {played.index} failed and was scored"
    if played.index in SOUND and not played.disturbed:
        assert not masked, f"task {played.index} was masked: {kind}"


async def _verified(played: Played) -> None:
    answer = (await played.rollout.verify()).json()
    played.verdicts.append((answer["reward"], answer["mask_sample"], answer["failure_kind"]))


async def _ring(bench: Bench, played: Played) -> None:
    session = bench.app.sessions.find([(played.rollout.cookie or "").partition("=")[2]])
    assert session is not None
    if session.idle._in_flight == 0:
        played.disturbed = True
        session.idle._on_idle(600.0)


async def _cancelled(work: Any) -> None:
    """Begins a request and closes its connection a moment later."""
    task = asyncio.ensure_future(work)
    await asyncio.wait({task}, timeout=0.01)
    task.cancel()
    await asyncio.wait({task})


async def _both(first: Any, second: Any) -> None:
    await asyncio.gather(first, second)


async def _within(work: Any) -> Any:
    async with asyncio.timeout(10):
        return await work


def _typed(session_id: str, index: int) -> dict[str, Any]:
    return {
        "resources_session_id": session_id,
        "episode_id": {"rollout_id": "r", "attempt": 0},
        "task_id": {"taskset": "t", "task_id": "0"},
        "task_data": {"split": "train", "index": index},
    }


TestSessionStates = pytest.mark.integration(pytest.mark.timeout(600 + 6 * EXAMPLES)(SessionStates.TestCase))
TestSessionStates.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=15,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    print_blob=True,
)
