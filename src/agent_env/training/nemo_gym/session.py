"""One rollout's session: seed, calls, verify, close. Nothing here knows HTTP, so that every shell can use it.

    WAITING --place--> STARTING --ready--> PLAYING --last turn ended--> ENDED
       any of these --the environment failed, the session was closed or expired--> FAILED

A lock keeps the calls of a session in order. Work that began goes on when its caller is gone: a tool call bounded by
its own deadline, a verify to its end, whose verdict answers the retry too. What an episode was worth is decided once.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import time
from enum import StrEnum
from typing import Any

import orjson

from agent_env.cuts import cut
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.observe.history import History
from agent_env.observe.record import Error, Fate, Observers, Of, Record
from agent_env.training.nemo_gym.background import Background
from agent_env.training.nemo_gym.idle import IdleClock
from agent_env.training.nemo_gym.openenv_client import END_TURN, EpisodeLink
from agent_env.training.nemo_gym.openenv_replies import TurnReply
from agent_env.training.nemo_gym.options import ServeOptions
from agent_env.training.nemo_gym.rows import NO_FURTHER_PROMPT
from agent_env.training.nemo_gym.tally import Tally
from agent_env.training.nemo_gym.toolsets import Toolset, Toolsets
from agent_env.training.nemo_gym.upstream import Server, Upstream, check_name
from agent_env.training.nemo_gym.verdict import Verdict, decide
from agent_env.training.nemo_gym.wire import Row, WireError

Json = Any
log = logging.getLogger("agent_env.serve")

_MOST_TURNS = 1000


class State(StrEnum):
    WAITING = "waiting"
    STARTING = "starting"
    PLAYING = "playing"
    ENDED = "ended"
    FAILED = "failed"


class ToolText:
    """What a tool call is answered with. The status is for people; every client shows the model the text alone."""

    __slots__ = ("error", "status", "text")

    def __init__(self, text: str, status: int = 200, error: str | None = None) -> None:
        """`error`: as `Call.error` of a record."""
        self.text = text
        self.status = status
        self.error = error


class Ground:
    """What all sessions of a server share."""

    def __init__(
        self, options: ServeOptions, upstream: Upstream, toolsets: Toolsets, tally: Tally, observers: Observers
    ) -> None:
        self.options = options
        self.upstream = upstream
        self.toolsets = toolsets
        self.tally = tally
        self.observers = observers
        self.serials = itertools.count(1)
        self.background = Background()


class Session:
    def __init__(self, row: Row, ground: Ground, idle: IdleClock, episode: tuple[str, int] | None = None) -> None:
        self.cookie = secrets.token_urlsafe(32)
        self.id = secrets.token_hex(4)
        """For logs and reports; names the session but opens nothing."""
        self.serial = next(ground.serials)
        self.row = row
        self.episode = episode
        self.typed_id: str | None = None
        self.seeders = 0
        """Requests that wait for the seed's answer: a retrying client may send a second one."""
        self.idle = idle
        self.state = State.WAITING
        self.failure: EpisodeFailure | None = None
        self.verdict: Verdict | None = None
        self.wait_s = 0.0
        self._ground = ground
        self._options = ground.options
        self._link: EpisodeLink | None = None
        self._server: Server | None = None
        self._turns: int | None = None
        self._turn = 1
        self._toolset: Toolset | None = None
        self._end: TurnReply | None = None
        self._running_tool: str | None = None
        self.failed_tool: str | None = None
        self._row_fault: str | None = None
        loop = asyncio.get_running_loop()
        self._history = History(ground.observers, time.monotonic)
        self._bundle: str | None = None
        self._url: str | None = None
        self._played: str | None = None
        """The OpenEnv server's id of the episode."""
        self._placed: asyncio.Future[None] = loop.create_future()
        self._ready: asyncio.Future[None] = loop.create_future()
        self._lock = asyncio.Lock()
        self._verifying: asyncio.Task[Verdict] | None = None
        self._starting: asyncio.Task[None] | None = ground.background.start(self._start())

    @property
    def task(self) -> str:
        return self.row.name or f"{self.row.split}/{self.row.index}"

    @property
    def waiting(self) -> bool:
        return self.state is State.WAITING

    async def placed(self) -> None:
        """Returns when the episode has its place and has begun to start. Raises what stopped it: EpisodeFailure when
        the environment did, WireError when the row is wrong."""
        await asyncio.wait({self._placed})
        if self._row_fault is not None:
            raise WireError(self._row_fault, 409)
        if self.failure is not None:
            raise EpisodeFailure(self.failure.kind, self.failure.reason)

    async def call(self, tool: str, arguments: str) -> ToolText:
        return await self._ground.background.finish(self._call(tool, arguments))

    async def verify(self, final_text: str) -> Verdict:
        """The verdict, decided once: whoever asks again gets the same."""
        if self.verdict is not None:
            return self.verdict
        if self._verifying is None:
            self._verifying = self._ground.background.start(self._verify(final_text))
        return await asyncio.shield(self._verifying)

    def fail(self, kind: FailureKind, reason: str) -> None:
        """Ends the session where it stands and gives its place back. What was decided before stays."""
        if self.failure is None and self._end is None and self.verdict is None:
            self.failure = EpisodeFailure(kind, _one_line(reason))
            self.state = State.FAILED
            self.failed_tool = self._running_tool
            self._history.failed()
            where = f" in the tool {self._running_tool}" if self._running_tool else ""
            log.info("session %s of %s failed%s: %s", self.id, self.task, where, self.failure)
        _set(self._placed)
        _set(self._ready)
        self._release()

    # the start

    async def _start(self) -> None:
        try:
            tools = await self._open()
            self._toolset = self._ground.toolsets.of(self.row, tools, self._turns)
            self.state = State.PLAYING
            self._history.ready()
            _set(self._ready)
        except WireError as fault:
            self._row_fault = str(fault)
            self.fail(FailureKind.CANCELLED, f"the row is wrong: {fault}")
        except EpisodeFailure as failure:
            self.fail(failure.kind, failure.reason)
        except Exception as error:
            log.exception("session %s of %s could not start", self.id, self.task)
            self.fail(FailureKind.ENV_PROTOCOL_ERROR, f"internal error: {error!r}")
        finally:
            self._starting = None

    async def _open(self) -> list[dict[str, Json]]:
        """The env's tools, once it is ready."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        link, started, self._server = await self._ground.upstream.open(self.row)
        self._link, self._turns = link, started.turns
        self._bundle, self._url, self._played = started.digest, self._server.url, started.episode_id
        self.wait_s = loop.time() - began
        self._history.placed(self.wait_s, started.prompt, started.system_prompt)
        self._ground.tally.waited(self.wait_s)
        self._ground.toolsets.check_digest(started.digest, self._server.url)
        if started.task is not None:
            check_name(self.row, started.task)
        self.state = State.STARTING
        _set(self._placed)
        log.info("session %s plays %s, after %.2f s for its place", self.id, self.task, self.wait_s)
        return await link.tools(self._options.start_limit)

    async def _until_ready(self) -> None:
        """Waits for a start under way as long as a client can be kept waiting; past that the episode has failed."""
        if self._ready.done():
            return
        wait = self._options.ready_wait
        await asyncio.wait({self._ready}, timeout=wait)
        if not self._ready.done():
            self.fail(FailureKind.DEPLOY_TIMEOUT, f"the env was not ready after {wait:g} s (--ready-wait)")

    async def _turn_to_work(self) -> bool:
        """Waits until the calls before this one are over. False when they take too long."""
        try:
            async with asyncio.timeout(self._options.ready_wait):
                await self._lock.acquire()
        except TimeoutError:
            return False
        return True

    # the calls

    async def _call(self, tool: str, arguments: str) -> ToolText:
        if not await self._turn_to_work():
            text = "An earlier tool call of this rollout is still running, so this one was not made."
            return self.answered(tool, arguments, ToolText(text, error=Error.NOT_MADE))
        try:
            await self._until_ready()
            if self._link is None or self._toolset is None or self.state is not State.PLAYING:
                return self.answered(tool, arguments, ToolText(self._why_not(), error=Error.NOT_MADE))
            began, turn = self._history.now(), self._turn
            answer = await self._play(self._link, self._toolset, tool, arguments)
            return self.answered(tool, arguments, answer, began, turn)
        finally:
            self._lock.release()

    def answered(
        self, tool: str, arguments: str, answer: ToolText, began: float | None = None, turn: int | None = None
    ) -> ToolText:
        """Notes the answer to a call, also of one that was refused before it came here."""
        history = self._history
        since = history.now() if began is None else began
        history.called(turn or self._turn, tool, arguments, answer.text, since, answer.error)
        return answer

    async def _play(self, link: EpisodeLink, toolset: Toolset, tool: str, arguments: str) -> ToolText:
        if tool == END_TURN:
            return await self._end_turn(link, arguments)
        name = toolset.resolve(tool)
        if name is None:
            return ToolText(
                f"There is no tool {tool!r}. The tools are: {', '.join(toolset.shown)}.", 404, Error.TOOL_NOT_FOUND
            )
        self._running_tool = tool
        try:
            reply = await link.call(name, arguments, self._options.tool_limit)
        except EpisodeFailure as failure:
            self.fail(failure.kind, failure.reason)
            return ToolText(self._why_not(), error=Error.FAILED)
        finally:
            self._running_tool = None
        text = cut(reply.text, self._options.max_output)
        return ToolText(text, 404 if reply.error == Error.TOOL_NOT_FOUND else 200, reply.error)

    async def _end_turn(self, link: EpisodeLink, arguments: str) -> ToolText:
        response = orjson.loads(arguments).get("response", "")
        if not isinstance(response, str):
            return ToolText("end_turn: response must be a text.", 422, Error.INVALID_ARGS)
        if self._turns is not None and self._turn >= self._turns:
            return ToolText(NO_FURTHER_PROMPT, error=Error.NOT_MADE)
        try:
            reply = await self._next_turn(link, response, self._options.longest_answer - self._options.ready_wait)
        except EpisodeFailure as failure:
            self.fail(failure.kind, failure.reason)
            return ToolText(self._why_not(), error=Error.FAILED)
        return ToolText(NO_FURTHER_PROMPT if reply.done else cut(reply.text, self._options.max_output))

    async def _next_turn(self, link: EpisodeLink, response: str, timeout: float) -> TurnReply:
        reply = await link.end_turn(response, timeout)
        self._turn += 1
        if reply.done:
            self._end = reply
            if self.state is State.PLAYING:
                self.state = State.ENDED
            self._release()
        return reply

    def _why_not(self) -> str:
        if self.verdict is not None and not self.verdict.masked:
            return "This rollout was verified already, so no tool can be called any more."
        if self.failure is not None:
            reason = cut(self.failure.reason, 300)
            return f"The environment failed, so no tool can be called any more ({self.failure.kind.value}: {reason})."
        return "The episode has ended, so no tool can be called any more: reply without a tool call."

    # the verdict

    async def _verify(self, final_text: str) -> Verdict:
        self._history.verifying(final_text)
        try:
            await self._end_episode(final_text)
        except Exception as error:
            log.exception("session %s of %s could not be verified", self.id, self.task)
            self.fail(FailureKind.VERIFIER_ERROR, f"internal error: {error!r}")
        toolset = self._toolset
        played = Verdict(
            episode_id=self.id,
            turns_played=self._turn - 1,
            tools_changed=toolset is not None and toolset.changed_for(self.row),
            timings={"wait_s": round(self.wait_s, 4)},
        )
        self.verdict = decide(self._end, self.failure, played)
        self._verifying = None
        self._history.decided()
        self._release()
        return self.verdict

    async def _end_episode(self, final_text: str) -> None:
        if not await self._turn_to_work():
            running = self._running_tool or "of the rollout"
            self.fail(FailureKind.TOOL_TIMEOUT, f"the tool call {running} was still running when it was verified")
            return
        try:
            await self._until_ready()
            if self._link is not None and self.state is State.PLAYING:
                await self._play_out(self._link, final_text)
        finally:
            self._lock.release()

    async def _play_out(self, link: EpisodeLink, final_text: str) -> None:
        """Ends the open turn with the reply, those after it with an empty one."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self._options.verify_limit
        response = final_text
        try:
            for _ in range(_MOST_TURNS):
                if (await self._next_turn(link, response, max(until - loop.time(), 0.0))).done:
                    return
                response = ""
            raise EpisodeFailure(FailureKind.ENV_PROTOCOL_ERROR, f"the episode goes on after {_MOST_TURNS} turns")
        except EpisodeFailure as failure:
            self.fail(failure.kind, failure.reason)

    # the end

    def record(self, fate: Fate, before: Fate | None) -> Record:
        history, verdict, failure = self._history, self.verdict, self.failure
        # Few arguments, then attributes: a call with as many keywords costs more than all that is done here.
        record = Record(Of.SESSION, self.serial, fate, history.at, history.now(), before)
        record.session, record.task, record.failed_tool = self.id, self.task, self.failed_tool
        record.wait_s, record.start_s, record.verify_s = history.took()
        record.episode, record.turns_played = self._played, self._turn - 1
        if self._ground.observers.full:
            self._fill(record)
        if verdict is not None:
            record.episode = self._played if verdict.episode_id == self.id else verdict.episode_id
            record.turns_played, record.tools_changed = verdict.turns_played, verdict.tools_changed
            record.scores, record.timings = verdict.scores, verdict.timings
            record.reward = None if verdict.masked else verdict.reward
            record.kind, record.reason = verdict.kind, verdict.reason
        elif self._row_fault is not None:
            record.reason = self._row_fault
        elif failure is not None:
            record.kind, record.reason = failure.kind, failure.reason
        return record

    def forget(self) -> None:
        """The session was counted for good: as a tombstone it needs its verdict alone, and there are thousands."""
        self._history.forget()

    def _fill(self, record: Record) -> None:
        """What only those need who keep it all."""
        history, row = self._history, self.row
        record.server, record.bundle = self._url, self._bundle
        record.typed_id, record.rollout = self.typed_id, self.episode
        record.split, record.index, record.task_id = row.split, row.index, row.task_id
        record.phases, record.calls, record.calls_made = history.phases(), tuple(history.calls), history.calls_made
        record.characters = history.characters
        record.prompt, record.system_prompt, record.final = history.prompt, history.system_prompt, history.final

    def _release(self) -> None:
        """Gives the place back. The episode's teardown is the OpenEnv server's, and nobody waits for it here."""
        if self._starting is not None and self._starting is not asyncio.current_task():
            self._starting.cancel()
        link, self._link = self._link, None
        if link is None:
            return
        if self._server is not None:
            self._server.leave()
        self._ground.tally.ended()
        self._ground.background.start(link.close())


def _set(event: asyncio.Future[None]) -> None:
    if not event.done():
        event.set_result(None)


def _one_line(reason: str) -> str:
    return " ".join(cut(reason, 2000).encode("utf-8", "replace").decode().split())
