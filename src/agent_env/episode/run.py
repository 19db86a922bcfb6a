"""A running episode: a coroutine that runs the task's steps and stops at each prompt for its turn."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from agent_env.env.tools import ToolSession
from agent_env.episode.plan import PlannedStep, TaskPlan
from agent_env.episode.runtime import Runtime, failure_of
from agent_env.episode.toolset import Toolset
from agent_env.episode.turn import Turn
from agent_env.errors import EpisodeError, EpisodeFailure, FailureKind
from agent_env.sandbox.base import Sandbox
from agent_env.sandbox.capacity import Place
from agent_env.sandbox.variables import redact, secrets_of
from agent_env.steps.context import DeployedEnv, PromptRecord, RunContext
from agent_env.steps.prompt import PromptAgent

log = logging.getLogger(__name__)

_UNEXPECTED = {
    "deploy": FailureKind.DEPLOY_FAILED,
    "load": FailureKind.LOAD_FAILED,
    "turn": FailureKind.ENV_PROTOCOL_ERROR,
    "verify": FailureKind.VERIFIER_ERROR,
}
_GIVEN_UP = frozenset({FailureKind.SERVER_SHUTDOWN, FailureKind.CANCELLED, FailureKind.CLIENT_GONE})
"""ends that somebody wanted: no fault of the environment"""


class Episode:
    """One play of one task. Belongs to the event loop it was started on.

    Cancelling a caller of any method never cancels the episode; `abandon` does.
    """

    def __init__(
        self,
        plan: TaskPlan,
        runtime: Runtime,
        *,
        turn_timeout: float | None = None,
        at_end: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`at_end` is awaited when nothing of the episode is left."""
        bundle = plan.task.bundle
        assert bundle is not None
        if missing := [env.name for env in plan.envs if env.digest not in runtime.prepared]:
            names = ", ".join(missing)
            raise EpisodeError(f"the runtime has not prepared {names}: await runtime.prepare_tasks([plan]) first")
        loop = asyncio.get_running_loop()
        self.id = uuid.uuid4().hex
        self.plan = plan
        self._runtime = runtime
        self._at_end = at_end
        self._begun = False
        self._turn_timeout = turn_timeout if turn_timeout is not None else runtime.deadlines.turn
        self._context = RunContext(
            episode_id=self.id,
            bundle=bundle,
            provider=runtime.provider,
            prepared=runtime.prepared,
            pool=runtime.pool,
            starting=runtime.capacity.starting,
            grader=runtime.grader,
            grader_of=runtime.graders.of,
            judge=runtime.judge,
            deadlines=runtime.deadlines,
            hand_out=self._hand_out,
            stop=self._stop,
            transcribe=bool(plan.judged),
        )
        self._placed: asyncio.Future[float] = loop.create_future()
        self._scored: asyncio.Future[dict[str, float]] = loop.create_future()
        self._turns: asyncio.Queue[Turn] = asyncio.Queue()
        self._turn_lock = asyncio.Lock()
        self._secrets = secrets_of(env.settings.env for env in plan.envs)
        self._failed_steps: list[dict[str, Any]] = []
        self._ending: EpisodeFailure | None = None
        self.turns_played = 0
        self.failed_tool: str | None = None
        """the tool whose call failed the episode"""
        for future in (self._placed, self._scored):
            future.add_done_callback(_retrieved)
        self._task = asyncio.create_task(self._run(), name=f"episode {self.id}")
        self._task.add_done_callback(self._ended)
        runtime.own(self)

    @property
    def finished(self) -> bool:
        """Scored or failed, and torn down."""
        return self._task.done()

    @property
    def timings(self) -> dict[str, float]:
        """Seconds by phase so far: wait_s, deploy_s, load_s, turn_s, verify_s, teardown_s."""
        return {name: round(seconds, 4) for name, seconds in self._context.timings.items()}

    @property
    def failed_steps(self) -> list[dict[str, Any]]:
        """Steps that failed without ending the episode (`fail_task_on_error: false`)."""
        return list(self._failed_steps)

    async def placed(self) -> float:
        """Wait until a place is granted and the start has begun; returns the seconds waited."""
        return await asyncio.shield(self._placed)

    async def next_turn(self) -> Turn | None:
        """The next turn once it is ready to be played; None when the last one is over.

        Raises:
            EpisodeFailure: the environment failed the episode.
        """
        getter = asyncio.ensure_future(self._turns.get())
        waited: set[asyncio.Future[Any]] = {getter, self._scored}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if getter.done():
                return getter.result()
        finally:
            getter.cancel()
        self._scored.result()
        return None

    async def scores(self) -> dict[str, float]:
        """Scores by step id as soon as they are known; the teardown goes on. Raises `EpisodeFailure`."""
        return await asyncio.shield(self._scored)

    async def result(self) -> dict[str, float]:
        """Scores by step id, once the episode is torn down. Raises `EpisodeFailure`."""
        await self.closed()
        return self._scored.result()

    async def closed(self) -> None:
        """Wait until nothing of the episode is left."""
        await asyncio.wait({self._task})
        await asyncio.wait({self._scored})

    async def abandon(self, reason: str, kind: FailureKind = FailureKind.CANCELLED) -> None:
        """End the episode now and wait for its teardown. Does nothing once it is scored or failed."""
        self.begin_abandon(reason, kind)
        await self.closed()

    def begin_abandon(self, reason: str, kind: FailureKind = FailureKind.CANCELLED) -> None:
        """As `abandon`, without the wait. The first reason counts."""
        if not self._scored.done() and self._ending is None:
            self._ending = EpisodeFailure(kind, reason)
            if self._begun:
                self._task.cancel()

    def redacted(self, failure: EpisodeFailure) -> EpisodeFailure:
        """The failure, told without the secrets of the task's envs: an env may repeat them in a message of its own."""
        reason = redact(failure.reason, self._secrets)
        return failure if reason == failure.reason else EpisodeFailure(failure.kind, reason)

    async def _run(self) -> None:
        started = time.monotonic()
        place: Place | None = None
        self._begun = True
        try:
            if self._ending is not None:
                raise self._ending
            place = await self._runtime.capacity.place()
            waited = time.monotonic() - started
            self._context.spent("wait_s", waited)
            await self._runtime.check_provider(soon=True)
            self._placed.set_result(waited)
            await self._run_steps()
            self._scored.set_result({v.step_id: v.score for v in self._context.verifications.values()})
        except asyncio.CancelledError:
            self._fail(self._ending or EpisodeFailure(FailureKind.SERVER_SHUTDOWN, "the server was stopped"))
        except BaseExceptionGroup as error:
            self._fail(self._ending or failure_of(error) or _unexpected(error, "turn"))
        except EpisodeFailure as failure:
            self._fail(failure)
        finally:
            await self._tear_down(place)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """Also reached when the run was cancelled before its first step."""
        self._runtime.disown(self)
        if not self._scored.done():
            self._fail(self._ending or EpisodeFailure(FailureKind.SERVER_SHUTDOWN, "the server was stopped"))

    def _fail(self, failure: EpisodeFailure) -> None:
        failure = self.redacted(failure)
        if failure.kind in _GIVEN_UP:
            log.info("episode %s of task %s abandoned: %s", self.id, self.plan.task.name, failure.reason)
        else:
            log.warning("episode %s of task %s failed: %s", self.id, self.plan.task.name, failure)
        for future in (self._placed, self._scored):
            if not future.done():
                future.set_exception(failure)

    async def _run_steps(self) -> None:
        done = {planned.step.id: asyncio.Event() for planned in self.plan.steps}
        async with asyncio.TaskGroup() as group:
            for planned in self.plan.steps:
                group.create_task(self._run_step(planned, done), name=f"step {planned.step.id}")

    async def _run_step(self, planned: PlannedStep, done: dict[str, asyncio.Event]) -> None:
        for earlier in planned.step.depends_on:
            await done[earlier].wait()
        try:
            await planned.model.run(planned.step, self._context)
        except EpisodeFailure as failure:
            if planned.fatal:
                raise
            self._record_failed(planned, failure)
        except Exception as error:
            log.exception("episode %s: step %s raised", self.id, planned.step.id)
            unexpected = _unexpected(error, planned.model.phase, planned.step.id)
            if planned.fatal:
                raise unexpected from error
            self._record_failed(planned, unexpected)
        done[planned.step.id].set()

    def _record_failed(self, planned: PlannedStep, failure: EpisodeFailure) -> None:
        failure = self.redacted(failure)
        log.warning("episode %s: step %s failed, the task goes on: %s", self.id, planned.step.id, failure)
        self._failed_steps.append(
            {"step_id": planned.step.id, "step_type": planned.step.type, "error": failure.reason, "kind": failure.kind}
        )

    async def _hand_out(self, model: PromptAgent, record: PromptRecord) -> str:
        """Give the prompt's turn to whoever waits in `next_turn`, and wait for the reply that ends it."""
        async with self._turn_lock:
            sessions = await self._open_tools(record)
            try:
                role = self._context.agents[record.agent_name].role
                turn = Turn(record, Toolset(sessions, role), self._runtime.deadlines.tool)
                self._turns.put_nowait(turn)
                try:
                    return await self._reply(turn, model)
                except EpisodeFailure as failure:
                    turn.fail(failure)
                    raise
                finally:
                    self.turns_played += 1
                    self.failed_tool = turn.failed_tool
                    turn.fail(self._ending or EpisodeFailure(FailureKind.CANCELLED, "the turn is over"))
            finally:
                await asyncio.gather(*(session.close() for deployed, session in sessions if session is not None))

    async def _open_tools(self, record: PromptRecord) -> list[tuple[DeployedEnv, ToolSession | None]]:
        agent = self._context.agents[record.agent_name]
        deployed = [self._context.envs[name] for name in agent.env_names]
        sessions = await asyncio.gather(*(self._open(item, agent.role) for item in deployed))
        return list(zip(deployed, sessions, strict=True))

    async def _open(self, deployed: DeployedEnv, role: str | None) -> ToolSession | None:
        """None for an env that was killed and has that scored."""
        if deployed.dead:
            return None
        try:
            session = await deployed.open_tools(role, self._runtime.deadlines.tool)
        except EpisodeFailure as failure:
            scored = failure.kind is FailureKind.PROVIDER_OOM_KILLED and deployed.env.settings.on_oom == "score"
            if not scored or not deployed.tools:  # without tools ever listed it was not the agent's doing
                raise
            deployed.dead = f"The environment has ended: {failure.reason}"
            return None
        deployed.tools = session.tools
        return session

    async def _reply(self, turn: Turn, model: PromptAgent) -> str:
        limit = self._turn_timeout if self._turn_timeout is not None else model.timeout_seconds
        await asyncio.wait({turn.ended}, timeout=limit)
        if turn.ended.done():
            return turn.ended.result()
        if any(self._context.envs[name].env.settings.on_turn_timeout == "score" for name in self._env_names(turn)):
            turn.expire()
            return ""
        raise EpisodeFailure(
            FailureKind.TURN_EXPIRED, f"step {turn.step_id!r}: the turn was not ended after {limit:g} s"
        )

    def _env_names(self, turn: Turn) -> tuple[str, ...]:
        return self._context.agents[turn.agent].env_names

    async def _tear_down(self, place: Place | None) -> None:
        """Remove every sandbox; a failure here never changes a score."""
        ending = asyncio.create_task(self._clear_away(place), name=f"teardown {self.id}")
        while not ending.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({ending})
        if (error := ending.exception()) is not None:
            log.error("episode %s: the teardown failed", self.id, exc_info=error)

    async def _clear_away(self, place: Place | None) -> None:
        await self._stop_sandboxes()
        if place is not None:
            place.release()
        self._runtime.disown(self)
        if self._at_end is not None:
            await self._at_end()

    async def _stop_sandboxes(self) -> None:
        started = time.monotonic()
        for deployed in self._context.envs.values():
            await deployed.http.aclose()
        stops = [asyncio.create_task(self._stop(sandbox)) for sandbox in self._context.sandboxes]
        if stops:
            await asyncio.wait(stops)
        self._context.spent("teardown_s", time.monotonic() - started)

    async def _stop(self, sandbox: Sandbox) -> None:
        try:
            async with asyncio.timeout(self._runtime.deadlines.teardown):
                await sandbox.stop(grace=0.0)
        except Exception:
            log.exception("episode %s: sandbox %s could not be removed; the reaper will", self.id, sandbox.id)


def _unexpected(error: BaseException, phase: str, step_id: str = "?") -> EpisodeFailure:
    return EpisodeFailure(_UNEXPECTED[phase], f"step {step_id!r}: {type(error).__name__}: {error}")


def _retrieved(future: asyncio.Future[Any]) -> None:
    """Marks the exception as seen: nobody has to ask for it."""
    if not future.cancelled():
        future.exception()
