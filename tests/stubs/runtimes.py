"""A runtime of process sandboxes with everything built that a bundle's tasks need, and graders without packages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from agent_env.bundle import Bundle
from agent_env.commands.episodes import play_tasks
from agent_env.commands.outcomes import Outcome
from agent_env.commands.players import Player
from agent_env.commands.selection import choose
from agent_env.episode import Deadlines, Runtime, plan_bundle
from agent_env.grading.pool import GraderPool
from agent_env.sandbox.capacity import Capacity
from agent_env.sandbox.process import ProcessProvider


@asynccontextmanager
async def a_runtime(bundle: Bundle, *, places: int = 4, deadlines: Deadlines | None = None) -> AsyncIterator[Runtime]:
    runtime = Runtime(
        ProcessProvider(),
        capacity=Capacity(places),
        grader=GraderPool(requirements=(), workers=1),
        deadlines=deadlines,
    )
    try:
        await runtime.prepare_tasks(plan for plan in plan_bundle(bundle).values() if not plan.unsupported)
        yield runtime
    finally:
        await runtime.aclose()
    assert runtime.capacity.snapshot()["running"] == 0


async def outcomes_of(
    bundle: Bundle,
    player: Player | None,
    *,
    tasks: Sequence[str] = (),
    places: int = 4,
    deadlines: Deadlines | None = None,
) -> list[Outcome]:
    """Plays the tasks as `agent-env run` does; in the order in which they ended."""
    outcomes: list[Outcome] = []
    async with a_runtime(bundle, places=places, deadlines=deadlines) as runtime:
        chosen = choose(bundle, plan_bundle(bundle), tasks=tasks).tasks
        try:
            await play_tasks(chosen, runtime, player, outcomes.append)
        finally:
            if player is not None:
                await player.aclose()
    return outcomes
