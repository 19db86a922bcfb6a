"""What a logged session did, so that it can be done or graded again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from agent_env.errors import AgentEnvError
from agent_env.observe.record import Error
from agent_env.observe.redact import REDACTED

Json = Any

_END_TURN = "end_turn"
_CUT = "bytes are shown]"


class Unusable(AgentEnvError):
    """A logged session that can't be done again; the message says why."""


@dataclass(slots=True)
class LoggedCall:
    name: str
    arguments: dict[str, Json]
    output: str
    error: str | None


@dataclass(slots=True)
class LoggedTurn:
    """The calls of one turn and the reply that ended it."""

    calls: list[LoggedCall] = field(default_factory=list)
    reply: str = ""


def logged_turns(line: Mapping[str, Json], turns: int) -> list[LoggedTurn]:
    """The session as a task with that many turns saw it; turns that nobody played have no calls and an empty reply.

    Calls that never reached the env are left out. Raises `Unusable`.
    """
    calls = line.get("calls") or []
    if line.get("calls_made", 0) > len(calls):
        raise Unusable(f"{line['calls_made'] - len(calls)} of its calls are not in the log")
    played = [LoggedTurn() for _ in range(turns)]
    current = 0
    for call in calls:
        if call.get("error") in (Error.NOT_MADE, Error.TOOL_NOT_FOUND):
            continue
        arguments = _arguments(call)
        if arguments is None:
            continue
        if current >= turns:
            raise Unusable(f"it played more turns than the task's {turns}")
        if call["name"] != _END_TURN:
            played[current].calls.append(
                LoggedCall(call["name"], arguments, call.get("output") or "", call.get("error"))
            )
        elif isinstance(response := arguments.get("response", ""), str):
            played[current].reply = response
            current += 1
    if current < turns:
        played[current].reply = _final(line)
    return played


def _arguments(call: Mapping[str, Json]) -> dict[str, Json] | None:
    """None for what the server refused, since it was no JSON object."""
    if "raw_arguments" in call:
        if call["raw_arguments"].endswith(_CUT):
            raise Unusable(f"the arguments of its call of {call['name']} were cut")
        return None
    arguments = call["arguments"]
    if REDACTED.encode() in orjson.dumps(arguments):
        raise Unusable(f"the arguments of its call of {call['name']} hold a secret that the log keeps out")
    return arguments if isinstance(arguments, dict) else None


def _final(line: Mapping[str, Json]) -> str:
    final = line.get("final") or ""
    if final.endswith(_CUT):
        raise Unusable("its final text was cut")
    if REDACTED in final:
        raise Unusable("its final text holds a secret that the log keeps out")
    return str(final)
