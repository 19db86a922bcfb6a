"""What plays a task's prompts: a policy, or a model behind an OpenAI-compatible endpoint."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import traceback
from pathlib import Path
from random import Random
from typing import Any, Protocol

from agent_env.commands.chat import ChatModel
from agent_env.commands.seat import Seat, ToolCall
from agent_env.commands.selection import Chosen
from agent_env.errors import AgentEnvError
from agent_env.policies import Policy, find_policy
from agent_env.steps.prompt import PromptAgent
from agent_env.toolcalls import BadArguments, read_arguments
from agent_env.training.nemo_gym.rows import END_TURN, NO_FURTHER_PROMPT, TaskEntry, build_row

Json = Any

_END_TURN_TOOL = {
    "type": "function",
    "name": END_TURN,
    "description": "End this turn. Answers with the next prompt, if there is one.",
    "parameters": {"type": "object", "properties": {"response": {"type": "string"}}},
    "strict": False,
}


class PolicyFailed(AgentEnvError):
    """A policy raised: what, and where."""


class Player(Protocol):
    """Plays every turn of an episode."""

    name: str

    async def play(self, seat: Seat, task: Chosen) -> None: ...

    async def aclose(self) -> None: ...


class PolicyPlayer:
    """Plays with an `async def policy(play)`, as `python -m agent_env.training.nemo_gym play` does with rows."""

    def __init__(self, name: str, *, seed: int = 0) -> None:
        self.name = name
        self._policy: Policy = find_policy(name)
        self._seed = seed

    async def play(self, seat: Seat, task: Chosen) -> None:
        """Runs the policy once; what it said last ends the turn that is then open, and later turns get no reply."""
        play = EpisodePlay(seat, task, Random(f"{self._seed}/{task.split}/{task.index}/0"))
        try:
            await self._policy(play)
        except AgentEnvError:
            raise
        except Exception as error:  # the policy is the user's code
            raise PolicyFailed(f"{type(error).__name__}: {error} ({_place(error)})") from error
        reply = play.said
        while await seat.end(reply) is not None:
            reply = ""

    async def aclose(self) -> None:
        """Nothing is held."""


def _place(error: Exception) -> str:
    """File and line where it was raised."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}:{frame.lineno}"


def policy_player(name: str, *, seed: int = 0) -> PolicyPlayer:
    """A policy's player; `module:function` is also looked for in the working directory, as `python -m` does.

    Raises:
        ConfigError: there is none of that name.
    """
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    return PolicyPlayer(name, seed=seed)


class EpisodePlay:
    """The `agent_env.policies.Play` of a running episode."""

    def __init__(self, seat: Seat, task: Chosen, rng: Random) -> None:
        turn = seat.turn
        entry = TaskEntry(
            task.split, task.index, task.name, turn.prompt, turn.system_prompt, task.plan.toolset or None, seat.turns
        )
        self.prompt: str = turn.prompt
        self.tools: list[dict[str, Json]] = [*seat.tools, *([_END_TURN_TOOL] if seat.turns > 1 else [])]
        self.row: dict[str, Json] = build_row(entry, self.tools, "run")
        self.rng = rng
        self.said = ""
        """the last message since the turn began"""
        self._seat = seat
        self._one_at_a_time = asyncio.Lock()

    async def call(self, name: str, arguments: dict[str, Json] | str) -> str:
        """One tool call; `end_turn` leads to the next prompt where there is one. Raises `EpisodeFailure`."""
        raw = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
        async with self._one_at_a_time:
            if name == END_TURN and self._seat.turns > 1:
                return await self._end_turn(raw)
            return (await self._seat.act("", [ToolCall(name, raw)]))[0]

    def say(self, text: str) -> None:
        """An assistant message. The last one ends the turn."""
        if text:
            self._seat.say(text)
            self.said = text

    async def _end_turn(self, raw: str) -> str:
        try:
            response = read_arguments(raw)[0].get("response", "")
        except BadArguments as error:
            return str(error)
        if not isinstance(response, str):
            return "end_turn: response must be a text."
        if self._seat.last:
            return NO_FURTHER_PROMPT
        system = self._seat.turn.system_prompt
        self._seat.say(response)
        following = await self._seat.end(response)
        self.said = ""
        if following is None:
            return NO_FURTHER_PROMPT
        changed = following.system_prompt if following.system_prompt != system else None
        return "\n\n".join(filter(None, [changed, following.prompt]))


class ModelPlayer:
    """Plays with a model: a reply without a tool call ends the turn, and so does the cap of model turns."""

    def __init__(self, model: ChatModel, *, max_turns: int) -> None:
        self.name = model.name
        self._model = model
        self._max_turns = max_turns

    async def play(self, seat: Seat, task: Chosen) -> None:
        caps = {p.step.id: p.model.max_turns for p in task.plan.steps if isinstance(p.model, PromptAgent)}
        while True:
            step = seat.turn.step_id
            reply = await self._turn(seat, caps.get(step) or self._max_turns)
            if await seat.end(reply) is None:
                return

    async def aclose(self) -> None:
        await self._model.aclose()

    async def _turn(self, seat: Seat, cap: int) -> str:
        said = ""
        for _ in range(cap):
            reply = await self._model.reply(seat.messages, seat.tools)
            said = reply.text
            if not reply.calls:
                seat.say(said)
                return said
            await seat.act(said, reply.calls)
        return said
