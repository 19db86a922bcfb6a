"""The tools that an agent has in one turn: those of its envs, side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_env.bundle import Env
from agent_env.env.tools import Tool, ToolResult, ToolSession, tool_error
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.steps.context import DeployedEnv

RESERVED_TOOLS = frozenset({"reset", "step", "state", "close", "end_turn"})
"""Names that OpenEnv and the turn itself use; an env that has one can't be played."""


class Toolset:
    """Each env with its session; a dead env has none, and its tools say so.

    Raises:
        EpisodeFailure: ENV_PROTOCOL_ERROR, a name is reserved, or two envs have it.
    """

    def __init__(self, sessions: Sequence[tuple[DeployedEnv, ToolSession | None]], role: str | None) -> None:
        self._role = role
        self._owners: dict[str, tuple[DeployedEnv, ToolSession | None]] = {}
        self._tools: list[Tool] = []
        for deployed, session in sessions:
            for tool in deployed.tools:
                if not deployed.access.hides(tool.name, role, by_default=tool.hidden):
                    self._add(deployed, session, tool)

    def list(self) -> list[Tool]:
        return list(self._tools)

    def knows(self, name: str) -> bool:
        return name in self._owners

    def env_of(self, name: str) -> Env:
        return self._owners[name][0].env

    async def call(self, name: str, arguments: Mapping[str, Any], timeout: float) -> ToolResult:
        """Raises `KeyError` for an unknown tool, `EpisodeFailure` when the env fails the call."""
        deployed, session = self._owners[name]
        if deployed.dead or session is None:
            return tool_error(deployed.dead or "The environment has ended.")
        return await session.call(name, dict(arguments), timeout=timeout)

    def bury(self, env: Env, failure: EpisodeFailure) -> str:
        """Have every later call of the env's tools answered with the reason of its end; returns that."""
        why = f"The environment has ended: {failure.reason}"
        for deployed, _ in self._owners.values():
            if deployed.env is env:
                deployed.dead = why
        return why

    def _add(self, deployed: DeployedEnv, session: ToolSession | None, tool: Tool) -> None:
        name = deployed.env.name
        if tool.name in RESERVED_TOOLS:
            raise EpisodeFailure(
                FailureKind.ENV_PROTOCOL_ERROR, f"env {name!r} has a tool {tool.name!r}: the name is reserved"
            )
        if tool.name in self._owners:
            other = self._owners[tool.name][0].env.name
            raise EpisodeFailure(
                FailureKind.ENV_PROTOCOL_ERROR, f"envs {other!r} and {name!r} both have a tool {tool.name!r}"
            )
        self._owners[tool.name] = (deployed, session)
        self._tools.append(tool)
