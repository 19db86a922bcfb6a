"""One OpenEnv session: at most one episode at a time, driven by `reset` and `step`.

Imported by `build_app` only: it loads the openenv library.
"""

from __future__ import annotations

import logging
from typing import Any

from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.mcp_types import CallToolAction, ListToolsAction, Tool, ToolError, ToolErrorType
from openenv.core.env_server.types import Action, EnvironmentMetadata, Observation

from agent_env.env.tools import ToolResult
from agent_env.episode import Episode, EpisodeError, EpisodeFailure, Turn
from agent_env.errors import FailureKind
from agent_env.observe.record import Error
from agent_env.openenv.catalog import Entry
from agent_env.openenv.hub import Hub
from agent_env.openenv.models import EpisodeState, ResetObservation, StepObservation, ToolsObservation
from agent_env.openenv.socket import current_watch

log = logging.getLogger(__name__)

END_TURN = Tool(
    name="end_turn",
    description="End this turn. Answers with the next prompt, if there is one.",
    input_schema={
        "type": "object",
        "properties": {"response": {"type": "string", "description": "Your reply to the prompt."}},
    },
)


class AgentEnvEnvironment(Environment[Action, Observation, EpisodeState]):
    """Plays the hub's tasks. The openenv library makes one per session, in a worker thread."""

    SUPPORTS_CONCURRENT_SESSIONS = True
    REQUIRES_SINGLE_THREAD_EXECUTOR = True
    """`__init__` and `close` only note things: one thread does for all sessions in place of one each"""

    def __init__(self, hub: Hub) -> None:
        super().__init__()
        self._hub = hub
        self._entry: Entry | None = None
        self._episode: Episode | None = None
        self._turn: Turn | None = None
        self._failure: EpisodeFailure | None = None
        self._done = False
        self._steps = 0

    # --- Task API: shapes as agentenv-framework 0.9.1364

    def list_splits(self) -> list[str]:
        return list(self._hub.catalog.splits)

    def list_tasks(self, split: str) -> list[dict[str, Any]]:
        return self.get_task_range(split)

    def num_tasks(self, split: str) -> int:
        return len(self._entries(split))

    def get_task(self, split: str, index: int) -> dict[str, Any]:
        entries = self._entries(split)
        if not 0 <= index < len(entries):
            raise IndexError(index)
        return entries[index].row

    def get_task_range(self, split: str, start: int | None = None, stop: int | None = None) -> list[dict[str, Any]]:
        return [entry.row for entry in self._entries(split)[start:stop]]

    def _entries(self, split: str) -> tuple[Entry, ...]:
        entries = self._hub.catalog.splits.get(split)
        if entries is None:
            raise IndexError(split)
        return entries

    # --- life cycle

    def get_metadata(self) -> EnvironmentMetadata:
        catalog = self._hub.catalog
        return EnvironmentMetadata(name=catalog.name, description=catalog.description, version=catalog.digest)

    @property
    def state(self) -> EpisodeState:
        entry = self._entry
        return EpisodeState(
            episode_id=self._episode.id if self._episode else None,
            step_count=self._steps,
            task_id=entry.plan.task.name if entry else None,
            task_name=entry.plan.task.name if entry else None,
            split=entry.split if entry else None,
            index=entry.index if entry else None,
            turn=self._turn.step_id if self._turn else None,
            done=self._done,
        )

    def reset(self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any) -> Observation:
        raise RuntimeError("this environment is asynchronous: use reset_async")

    def step(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        raise RuntimeError("this environment is asynchronous: use step_async")

    async def reset_async(
        self,
        seed: int | None = None,
        episode_id: str | None = None,
        split: str | None = None,
        index: int | None = None,
        ready: bool = True,
        **kwargs: Any,
    ) -> Observation:
        """Start the episode of the task at (split, index), abandoning one that still runs.

        With `ready=False` the answer comes once the episode has its place and has begun to start; the first step
        waits for the rest. Raises ValueError (an EXECUTION_ERROR frame) for a task that is not served.
        """
        entry = self._hub.catalog.entry(split, index)
        self._leave("the client reset the session")
        self._entry, self._turn, self._failure, self._done, self._steps = entry, None, None, False, 0
        self._episode = await self._hub.start(entry)
        self._history = self._hub.history(self._episode)
        if watch := current_watch.get():
            watch.on_gone = self.close
            if watch.gone:
                self.close()
        try:
            waited = await self._episode.placed()
            self._history.placed(waited, *entry.plan.prompts[0])
            if ready:
                await self._next_turn(self._episode)
        except EpisodeFailure as failure:
            return self._reset_failed(entry, failure)
        prompt, system_prompt = entry.plan.prompts[0]
        return ResetObservation(
            prompt=prompt,
            system_prompt=system_prompt,
            task=entry.task,
            turns=len(entry.plan.prompts),
            status="ready" if ready else "starting",
            bundle=self._bundle(),
            episode_id=self._episode.id,
            wait_s=round(waited, 4),
            metadata={"prompt": prompt, "system_prompt": system_prompt, "task": entry.task},
        )

    def close(self) -> None:
        """Called by the library from a thread, and by the socket's watch from the loop."""
        self._hub.call_soon(self._leave, "the client left")

    def _leave(self, why: str) -> None:
        if self._episode is not None:
            self._episode.begin_abandon(why, FailureKind.CLIENT_GONE)

    # --- steps

    async def step_async(self, action: Action, timeout_s: float | None = None, **kwargs: Any) -> Observation:
        self._steps += 1
        try:
            if isinstance(action, ListToolsAction):
                turn = await self._playing()
                return ToolsObservation(tools=[*map(_tool, turn.list()), END_TURN])
            if not isinstance(action, CallToolAction):
                raise ValueError(f"actions are list_tools and call_tool, not {type(action).__name__}")
            if action.tool_name == END_TURN.name:
                return await self._end_turn(action.arguments)
            return await self._call(await self._playing(), action.tool_name, action.arguments)
        except EpisodeFailure as failure:
            return self._step_failed(action, failure)
        except EpisodeError as error:  # the turn's time was up, and its env has that scored
            assert isinstance(action, CallToolAction)
            refused = ToolError(error_type=ToolErrorType.EXECUTION_ERROR, message=str(error))
            return StepObservation(tool_name=action.tool_name, error=refused)

    async def _call(self, turn: Turn, name: str, arguments: dict[str, Any]) -> Observation:
        history = self._history
        began, number = history.now(), self._number
        error: str | None = Error.FAILED
        output = ""
        try:
            result = await turn.call(name, arguments)
            output, called = result.text, _called(name, turn, result)
            error = called.error.error_type.value if called.error else None
        except EpisodeError as over:
            output, error = str(over), Error.NOT_MADE
            raise
        finally:
            history.called(number, name, arguments, output, began, error)
        return called

    @property
    def _number(self) -> int:
        """Of the turn that is open, from 1."""
        return self._episode.turns_played + 1 if self._episode is not None else 1

    async def _playing(self) -> Turn:
        if self._failure is not None:
            raise self._failure
        if self._episode is None:
            raise EpisodeFailure(FailureKind.SESSION_LOST, "no episode runs in this session: call reset")
        if self._done:
            raise EpisodeFailure(FailureKind.CANCELLED, "the episode has ended; call reset")
        if self._turn is None:
            return await self._next_turn(self._episode)
        return self._turn

    async def _next_turn(self, episode: Episode) -> Turn:
        turn = await episode.next_turn()
        if turn is None:
            raise EpisodeFailure(FailureKind.NO_SCORE, "the task ended before it prompted the agent")
        self._turn = turn
        self._history.ready()
        return turn

    async def _end_turn(self, arguments: dict[str, Any]) -> Observation:
        turn = await self._playing()
        assert self._episode is not None
        assert self._entry is not None
        given = arguments.get("response", "")
        response = given if isinstance(given, str) else str(given)
        began, number = self._history.now(), self._number
        following = None
        try:
            await turn.end(response)
            following = await self._episode.next_turn()
        finally:
            self._history.ended_turn(number, response, following.prompt if following else "", began)
        if following is not None:
            self._turn = following
            changed = following.system_prompt != turn.system_prompt
            text = "\n\n".join(filter(None, [following.system_prompt if changed else None, following.prompt]))
            return StepObservation(
                tool_name=END_TURN.name,
                result=_result_dict(ToolResult([{"type": "text", "text": text}], None, False)),
                prompt=following.prompt,
                system_prompt=following.system_prompt,
                turn=self._episode.turns_played + 1,
                metadata={"task": self._entry.task},
            )
        scores = await self._episode.scores()
        self._done = True
        self._history.graded(since=began)
        reward = self._history.reward = self._hub.reward(self._episode, self._entry, scores)
        episode = {
            "id": self._episode.id,
            "turns_played": self._episode.turns_played,
            "timings": self._episode.timings,
            "failed_steps": self._episode.failed_steps,
        }
        return StepObservation(
            tool_name=END_TURN.name,
            result=_result_dict(ToolResult([], None, False)),
            status="done",
            scores=scores,
            episode=episode,
            reward=reward,
            done=True,
            metadata={"scores": scores, "task": self._entry.task, "episode": episode},
        )

    # --- failures: an observation, never an exception

    def _reset_failed(self, entry: Entry, failure: EpisodeFailure) -> Observation:
        failure = self._fail(failure)
        return ResetObservation(
            task=entry.task,
            turns=len(entry.plan.prompts),
            status="error",
            failure=_failure(failure),
            bundle=self._bundle(),
            episode_id=self._episode.id if self._episode else None,
            done=True,
            metadata=self._failed_metadata(failure),
        )

    def _step_failed(self, action: Action, failure: EpisodeFailure) -> Observation:
        failure = self._fail(failure)
        shared: dict[str, Any] = {
            "status": "error",
            "failure": _failure(failure),
            "done": True,
            "metadata": self._failed_metadata(failure),
        }
        if isinstance(action, CallToolAction):
            kind = ToolErrorType.TIMEOUT if failure.kind is FailureKind.TOOL_TIMEOUT else ToolErrorType.TRANSPORT_ERROR
            error = ToolError(error_type=kind, message=str(failure))
            return StepObservation(tool_name=action.tool_name, error=error, **shared)
        return ToolsObservation(tools=[], **shared)

    def _fail(self, failure: EpisodeFailure) -> EpisodeFailure:
        """Ends the session; returns the failure as it may be told."""
        if self._episode is not None:
            failure = self._episode.redacted(failure)
            self._episode.begin_abandon(failure.reason, failure.kind)
        if self._failure is None:
            self._failure = failure
        self._done = True
        return failure

    def _failed_metadata(self, failure: EpisodeFailure) -> dict[str, Any]:
        task = self._entry.task if self._entry else None
        return {"status": "error", "error": str(failure), "failure": _failure(failure), "task": task}

    def _bundle(self) -> dict[str, str]:
        return {"name": self._hub.catalog.name, "digest": self._hub.catalog.digest}


def _failure(failure: EpisodeFailure) -> dict[str, str]:
    return {"kind": failure.kind.value, "reason": failure.reason}


def _tool(tool: Any) -> Tool:
    return Tool(name=tool.name, description=tool.description or "", input_schema=tool.input_schema)


def _called(name: str, turn: Turn, result: ToolResult) -> StepObservation:
    if not result.is_error:
        return StepObservation(tool_name=name, result=_result_dict(result))
    unknown = all(tool.name != name for tool in turn.list())
    kind = ToolErrorType.TOOL_NOT_FOUND if unknown else ToolErrorType.EXECUTION_ERROR
    return StepObservation(tool_name=name, error=ToolError(error_type=kind, message=result.text))


def _result_dict(result: ToolResult) -> dict[str, Any]:
    return {
        "content": result.content,
        "structured_content": result.structured_content,
        "meta": None,
        "data": result.text,
        "is_error": result.is_error,
    }
