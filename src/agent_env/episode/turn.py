"""A turn: the time between a prompt and the reply that ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from agent_env.bundle import Env
from agent_env.bundle.model import Skill
from agent_env.env.tools import Tool, ToolResult, tool_error
from agent_env.episode.calls import ModelCalls, excerpt
from agent_env.episode.toolset import Toolset
from agent_env.errors import EpisodeError, EpisodeFailure, FailureKind
from agent_env.steps.context import PromptRecord

MOST_EVENTS = 1000
"""of a turn that are kept for a judge"""


class TurnTools:
    """What a turn can call. `timeout` bounds each call, within the runtime's own deadline."""

    def __init__(self, turn: Turn, timeout: float | None) -> None:
        self._turn = turn
        self._timeout = timeout

    def list(self) -> list[Tool]:
        return self._turn.list()

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> ToolResult:
        """As `Turn.call`."""
        return await self._turn.call(name, arguments, timeout=self._timeout)


class Turn:
    """One prompt to play. `end(reply)` ends it; the tools work until then."""

    skills: tuple[Skill, ...] = ()
    """none: tasks that give an agent skills are not run here"""

    def __init__(self, record: PromptRecord, tools: Toolset, timeout: float) -> None:
        """`timeout`: seconds that a tool call may take."""
        self.step_id = record.step_id
        self.agent = record.agent_name
        self.prompt = record.prompt
        self.system_prompt = record.system_prompt
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """resolves to the reply, or raises what failed the turn"""
        self.failed_tool: str | None = None
        """the tool whose call failed the turn"""
        self._record = record
        self._tools = tools
        self._timeout = timeout
        self._model_calls = ModelCalls()

    @property
    def over(self) -> bool:
        return self.ended.done()

    @asynccontextmanager
    async def tools(self, *, timeout: float | None = None) -> AsyncIterator[TurnTools]:
        """A client for the turn's tools; `timeout` bounds each call, in seconds."""
        yield TurnTools(self, timeout)

    def list(self) -> list[Tool]:
        """The tools the model may call; hidden ones are left out."""
        return self._tools.list()

    async def call(
        self, name: str, arguments: Mapping[str, Any] | None = None, *, timeout: float | None = None
    ) -> ToolResult:
        """Call a tool. What the model did wrong comes back as a result with `is_error`.

        Raises:
            EpisodeError: the turn was ended by its reply, or the last recorded model call made no such call.
            EpisodeFailure: the environment failed the call, or has failed the turn before, and with it the episode.
        """
        if self.over:
            self.ended.result()
            raise EpisodeError("the turn is over")
        known = self._tools.knows(name)
        if known:
            self._model_calls.take(name, arguments or {})
        self._record.tool_calls += 1
        result = await self._result(name, arguments or {}, timeout) if known else self._unknown(name)
        if self._record.events is not None:
            self._keep({"tool": name, "arguments": arguments or {}, "answer": result.text, "is_error": result.is_error})
        return result

    async def record_model_call(
        self, message: str | Mapping[str, Any], *, model: str | None = None, usage: Mapping[str, Any] | None = None
    ) -> None:
        """Record what the model said: an OpenAI chat message, an Anthropic message or a text.

        From then on each call of a tool that the turn has must be one that the last recorded message makes, and all of
        them must run before the next is recorded or the turn ends.

        Raises:
            EpisodeError: the turn is over, or calls of the message before have not run.
        """
        if self.over:
            raise EpisodeError("the turn is over")
        self._model_calls.record(message, known=self._tools.knows, model=model, usage=usage)
        if said := self._model_calls.said:
            self._keep({"said": said})

    async def end(self, reply: str | None = None) -> None:
        """End the turn. On a turn that is over this does nothing.

        Raises:
            EpisodeError: calls of the last recorded model call have not run; the turn stays open.
        """
        if not self.ended.done():
            self._model_calls.check_done()
            self.ended.set_result(reply or "")

    def expire(self) -> None:
        """End the turn without a reply because its time is up, whatever is still to be called."""
        if not self.ended.done():
            self.ended.set_result("")

    def fail(self, failure: EpisodeFailure) -> None:
        """End the turn, and the episode with it, because the environment failed."""
        if not self.ended.done():
            self.ended.set_exception(failure)
            self.ended.exception()

    async def _result(self, name: str, arguments: Mapping[str, Any], timeout: float | None) -> ToolResult:
        limit = self._timeout if timeout is None else min(timeout, self._timeout)
        try:
            return await self._until_over(self._tools.call(name, arguments, limit))
        except EpisodeFailure as failure:
            if (text := self._excuse(self._tools.env_of(name), failure)) is not None:
                return tool_error(text)
            self.failed_tool = name
            self.fail(failure)
            raise

    def _excuse(self, env: Env, failure: EpisodeFailure) -> str | None:
        """What the model reads of a failure that its env has scored."""
        if failure.kind is FailureKind.TOOL_TIMEOUT and env.settings.on_tool_timeout == "score":
            return f"The call did not finish in time: {failure.reason}"
        if failure.kind is FailureKind.PROVIDER_OOM_KILLED and env.settings.on_oom == "score":
            return self._tools.bury(env, failure)
        return None

    def _unknown(self, name: str) -> ToolResult:
        known = ", ".join(tool.name for tool in self.list()) or "none"
        return tool_error(f"Unknown tool: {name}. The tools are: {known}.")

    def _keep(self, event: dict[str, Any]) -> None:
        if self._record.events is not None and len(self._record.events) < MOST_EVENTS:
            self._record.events.append({key: excerpt(value) for key, value in event.items()})

    async def _until_over(self, call: Coroutine[Any, Any, ToolResult]) -> ToolResult:
        running = asyncio.create_task(call)
        waited: set[asyncio.Future[Any]] = {running, self.ended}
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                return running.result()
            self.ended.result()
            raise EpisodeError("the turn was ended during the call")
        finally:
            running.cancel()
