"""Plays tasks as episodes in this process and says how each ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agent_env.commands.chat import EndpointRefuses, ModelFailed
from agent_env.commands.outcomes import Outcome, Status, status_of
from agent_env.commands.players import Player, PolicyFailed
from agent_env.commands.seat import Seat
from agent_env.commands.selection import Chosen
from agent_env.episode import Deadlines, Episode, EpisodeFailure, EpisodeSpec, Runtime, TaskPlan
from agent_env.errors import AgentEnvError
from agent_env.sandbox import choose_provider
from agent_env.sandbox.capacity import Capacity

Ended = Callable[[Outcome], None]


@dataclass(frozen=True, slots=True)
class Ground:
    """Where and within which limits episodes of a command run."""

    sandbox: str = "auto"
    options: Mapping[str, Any] = field(default_factory=dict)
    """the sandbox provider's"""
    places: int = 4
    starting: int | None = None
    deadlines: Deadlines = field(default_factory=Deadlines)


@asynccontextmanager
async def opened(ground: Ground, plans: Iterable[TaskPlan]) -> AsyncIterator[Runtime]:
    """A runtime with everything built that the tasks need. When it closes, nothing of its episodes is left.

    Raises:
        ConfigError: no such sandbox, or an env's settings are wrong.
        EpisodeFailure: the sandbox can't start anything, or an env can't be built.
    """
    provider = await choose_provider(ground.sandbox, **ground.options)
    runtime = Runtime(provider, capacity=Capacity(ground.places, ground.starting), deadlines=ground.deadlines)
    try:
        await provider.reap()
        await runtime.prepare_tasks(plans)
        yield runtime
    finally:
        await runtime.aclose()


async def play_tasks(tasks: Sequence[Chosen], runtime: Runtime, player: Player | None, ended: Ended) -> None:
    """Plays each task once, as many at a time as there are places; `ended` gets every outcome as it comes.

    Raises:
        EndpointRefuses: the model's endpoint will not answer at all, so the rest was not played.
        OSError: `ended` could not write.
    """
    jobs = iter(tasks)

    async def worker() -> None:
        for task in jobs:
            await play_task(task, runtime, player, ended)

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(runtime.capacity.places, len(tasks))):
                group.create_task(worker())
    except* (EndpointRefuses, OSError) as errors:
        raise errors.exceptions[0] from None


async def play_task(task: Chosen, runtime: Runtime, player: Player | None, ended: Ended) -> None:
    """Plays one task; `ended` is called once, also when this is cancelled. A task that is not run here has failed."""
    if task.plan.unsupported:
        ended(_outcome(task, Status.FAILED, kind="unsupported", reason="; ".join(task.plan.unsupported)))
        return
    started = time.perf_counter()
    episode = await EpisodeSpec(task.plan).start(runtime=runtime)
    play = _Play(task, episode)
    try:
        found = await play.to_end(player)
    except asyncio.CancelledError:
        await episode.abandon("interrupted")
        ended(play.outcome(Status.CANCELLED, started))
        raise
    finally:
        await episode.abandon("the player failed")
    ended(play.outcome(found.status, started, found.kind, found.reason, found.scores))


@dataclass(frozen=True, slots=True)
class _Found:
    status: Status
    kind: str | None = None
    reason: str | None = None
    scores: Mapping[str, float] = field(default_factory=dict)


def _failed(failure: EpisodeFailure) -> _Found:
    return _Found(Status.FAILED, failure.kind.value, failure.reason)


class _Play:
    """One episode and who plays it."""

    def __init__(self, task: Chosen, episode: Episode) -> None:
        self._task = task
        self._episode = episode
        self._seat: Seat | None = None

    async def to_end(self, player: Player | None) -> _Found:
        try:
            await self._play(player)
            scores = await self._episode.result()
            return _Found(status_of(scores, self._episode.failed_steps), scores=scores)
        except EpisodeFailure as failure:
            return _failed(failure)
        except PolicyFailed as error:
            behind = self._failure()
            return _failed(behind) if behind else _Found(Status.FAILED, "policy", str(error))
        except ModelFailed as error:
            return _Found(Status.FAILED, "model", str(error))
        except EndpointRefuses:
            raise
        except AgentEnvError as error:
            return _Found(Status.FAILED, "error", str(error))

    async def _play(self, player: Player | None) -> None:
        first = await self._episode.next_turn()
        if first is None or player is None:
            return
        self._seat = Seat(self._episode, first)
        await self._while_it_lasts(asyncio.create_task(player.play(self._seat, self._task), name="player"))

    async def _while_it_lasts(self, playing: asyncio.Task[None]) -> None:
        """Wait for the player; when the episode has ended, in whatever way, nobody needs its next move."""
        lasting = asyncio.create_task(self._episode.scores(), name="episode's end")
        try:
            await asyncio.wait({playing, lasting}, return_when=asyncio.FIRST_COMPLETED)
            if playing.done():
                playing.result()
        finally:
            playing.cancel()
            lasting.cancel()
            await asyncio.gather(playing, lasting, return_exceptions=True)

    def _failure(self) -> EpisodeFailure | None:
        """What the env failed the open turn with, whatever the policy made of it."""
        ended = self._seat.turn.ended if self._seat else None
        failed = ended.exception() if ended is not None and ended.done() else None
        return failed if isinstance(failed, EpisodeFailure) else None

    def outcome(
        self,
        status: Status,
        started: float,
        kind: str | None = None,
        reason: str | None = None,
        scores: Mapping[str, float] | None = None,
    ) -> Outcome:
        return _outcome(
            self._task,
            status,
            kind=kind,
            reason=reason,
            scores=scores or {},
            failed_steps=self._episode.failed_steps,
            turns=self._episode.turns_played,
            calls=self._seat.calls if self._seat else 0,
            seconds=time.perf_counter() - started,
            timings=self._episode.timings,
            episode=self._episode.id,
            messages=self._seat.messages if self._seat else (),
        )


def _outcome(task: Chosen, status: Status, **rest: Any) -> Outcome:
    return Outcome(task.name, task.split, task.index, status, **rest)
