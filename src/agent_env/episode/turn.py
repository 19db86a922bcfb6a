"""A turn: the time between a prompt and the reply that ends it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any

from agent_env.bundle import Env
from agent_env.env.tools import Tool, ToolResult, ToolSession
from agent_env.errors import EpisodeError, EpisodeFailure, FailureKind
from agent_env.steps.context import PromptRecord

RESERVED_TOOLS = frozenset({"reset", "step", "state", "close", "end_turn"})
"""Names that OpenEnv and the turn itself use; an env that has one can't be played."""


class TurnTools:
    """The tools of the envs that the agent plays, side by side."""

    def __init__(self, sessions: list[tuple[Env, ToolSession]], timeout: float) -> None:
        self._timeout = timeout
        self._owners: dict[str, tuple[Env, ToolSession]] = {}
        self._tools: list[Tool] = []
        for env, session in sessions:
            for tool in session.tools:
                if tool.hidden:
                    continue
                self._add(env, session, tool)

    def _add(self, env: Env, session: ToolSession, tool: Tool) -> None:
        if tool.name in RESERVED_TOOLS:
            raise EpisodeFailure(
                FailureKind.ENV_PROTOCOL_ERROR, f"env {env.name!r} has a tool {tool.name!r}: the name is reserved"
            )
        if tool.name in self._owners:
            other = self._owners[tool.name][0].name
            raise EpisodeFailure(
                FailureKind.ENV_PROTOCOL_ERROR, f"envs {other!r} and {env.name!r} both have a tool {tool.name!r}"
            )
        self._owners[tool.name] = (env, session)
        self._tools.append(tool)

    def list(self) -> list[Tool]:
        return self._tools

    def knows(self, name: str) -> bool:
        return name in self._owners

    def env_of(self, name: str) -> Env:
        return self._owners[name][0]

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> ToolResult:
        """Raises `KeyError` for an unknown tool, `EpisodeFailure` when the env fails the call."""
        _, session = self._owners[name]
        return await session.call(name, dict(arguments or {}), timeout=self._timeout)


class Turn:
    """One prompt to play. `end(reply)` ends it; the tools work until then."""

    def __init__(self, record: PromptRecord, tools: TurnTools) -> None:
        self.step_id = record.step_id
        self.agent = record.agent_name
        self.prompt = record.prompt
        self.system_prompt = record.system_prompt
        self.ended: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """resolves to the reply, or raises what failed the turn"""
        self._record = record
        self._tools = tools

    @property
    def over(self) -> bool:
        return self.ended.done()

    @asynccontextmanager
    async def tools(self) -> AsyncIterator[Turn]:
        """The turn itself: `list` and `call`. A context manager as in the original."""
        yield self

    def list(self) -> list[Tool]:
        """The tools the model may call; hidden ones are left out."""
        return self._tools.list()

    async def call(self, name: str, arguments: Mapping[str, Any] | None = None) -> ToolResult:
        """Call a tool. What the model did wrong comes back as a result with `is_error`.

        Raises:
            EpisodeError: the turn was ended by its reply.
            EpisodeFailure: the environment failed the call, or has failed the turn before, and with it the episode.
        """
        if self.over:
            self.ended.result()
            raise EpisodeError("the turn is over")
        self._record.tool_calls += 1
        if not self._tools.knows(name):
            known = ", ".join(tool.name for tool in self.list()) or "none"
            return _error_result(f"Unknown tool: {name}. The tools are: {known}.")
        try:
            return await self._until_over(self._tools.call(name, arguments))
        except EpisodeFailure as failure:
            settings = self._tools.env_of(name).settings
            if failure.kind is FailureKind.TOOL_TIMEOUT and settings.on_tool_timeout == "score":
                return _error_result(f"The call did not finish in time: {failure.reason}")
            self.fail(failure)
            raise

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

    async def end(self, reply: str = "") -> None:
        """End the turn. On a turn that is over this does nothing."""
        if not self.ended.done():
            self.ended.set_result(reply)

    def fail(self, failure: EpisodeFailure) -> None:
        """End the turn, and the episode with it, because the environment failed."""
        if not self.ended.done():
            self.ended.set_exception(failure)
            self.ended.exception()


def _error_result(text: str) -> ToolResult:
    return ToolResult(content=[{"type": "text", "text": text}], structured_content=None, is_error=True)
