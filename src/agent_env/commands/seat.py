"""The agent's place in a running episode: whatever plays it, a policy or a model, acts through here.

A tool call is text in and text out, worded as the resources server and its clients word it, so that a task played here
reads the same as its row played over HTTP.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from agent_env.env.tools import ToolResult
from agent_env.episode import Episode, EpisodeError, Turn
from agent_env.toolcalls import BadArguments, read_arguments
from agent_env.training.nemo_gym.names import tool_aliases
from agent_env.training.nemo_gym.output import cut, joined_text
from agent_env.training.nemo_gym.rows import function_tools

Json = Any

MAX_OUTPUT = 1 << 20
"""bytes of one tool result that are shown; as the resources server's `--max-output`"""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as a model asks for it; `arguments` is the raw text."""

    name: str
    arguments: str
    id: str = ""


class Seat:
    """One episode's turns, one after the other, and all that is said and called in them."""

    def __init__(self, episode: Episode, first: Turn) -> None:
        self.turns = len(episode.plan.prompts)
        self.number = 0
        """of the turn that is open, from 1"""
        self.calls = 0
        self.messages: list[dict[str, Json]] = []
        """in the form of chat completions"""
        self.tools: list[dict[str, Json]] = []
        """the open turn's, as function tools"""
        self._episode = episode
        self._begin(first)

    @property
    def last(self) -> bool:
        """No other turn follows the open one."""
        return self.number >= self.turns

    async def act(self, text: str, calls: Sequence[ToolCall]) -> list[str]:
        """One model turn that calls tools, one after the other; what each answers."""
        named = [ToolCall(call.name, call.arguments, call.id or f"call_{uuid.uuid4().hex[:24]}") for call in calls]
        self.messages.append(
            {
                "role": "assistant",
                "content": text or None,
                "tool_calls": [
                    {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                    for call in named
                ],
            }
        )
        return [await self._answer(call) for call in named]

    def say(self, text: str) -> None:
        """A message of the agent that calls no tool."""
        self.messages.append({"role": "assistant", "content": text})

    async def end(self, reply: str) -> Turn | None:
        """End the open turn; the next one, or None. Raises `EpisodeFailure`."""
        before = self.turn
        await before.end(reply)
        following = await self._episode.next_turn()
        if following is not None:
            self._begin(following, changed=following.system_prompt != before.system_prompt)
        return following

    def _begin(self, turn: Turn, *, changed: bool = True) -> None:
        self.turn = turn
        self.number += 1
        listed = turn.list()
        self._aliases = tool_aliases(tool.name for tool in listed)
        self.tools = function_tools(
            [
                {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
                for tool in listed
            ],
            self._aliases,
        )
        self.messages += _opening(turn, first=self.number == 1, changed=changed)

    async def _answer(self, call: ToolCall) -> str:
        text = await self._call(call)
        self.messages.append({"role": "tool", "tool_call_id": call.id, "content": text})
        return text

    async def _call(self, call: ToolCall) -> str:
        if all(tool["name"] != call.name for tool in self.tools):
            return f"error: unknown tool {call.name!r}"
        try:
            arguments, _ = read_arguments(call.arguments)
        except BadArguments as error:
            return str(error)
        self.calls += 1
        try:
            result = await self.turn.call(self._aliases.get(call.name, call.name), arguments)
        except EpisodeError as error:  # the turn's time was up, and its env has that scored
            return str(error)
        return cut(_text(result), MAX_OUTPUT)


def _opening(turn: Turn, *, first: bool, changed: bool) -> list[dict[str, Json]]:
    """A system prompt that changes later is part of the user's text: chat back ends take system messages first only."""
    system = turn.system_prompt if changed and turn.system_prompt else None
    if first and system:
        return [{"role": "system", "content": system}, {"role": "user", "content": turn.prompt}]
    return [{"role": "user", "content": "\n\n".join(filter(None, [system, turn.prompt]))}]


def _text(result: ToolResult) -> str:
    if result.is_error:
        return result.text
    return joined_text(
        {"content": result.content, "data": result.text, "structured_content": result.structured_content}
    )
