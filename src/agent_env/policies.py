"""Policies: players without a model, found by name. The same function plays rows over HTTP and tasks of `run`."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Protocol

from agent_env.errors import ConfigError

Json = Any

_GRIDSIM = "agent_env.examples.gridsim.policies"
KNOWN = ("idle", "greedy", "optimal", "random", "broken")
"""GridSim's"""


class Play(Protocol):
    """A rollout under way, as `async def policy(play)` sees it."""

    row: dict[str, Json]
    """what chooses the task and shows the model its prompt and tools: one line of `data/<split>.jsonl`"""
    prompt: str
    tools: list[dict[str, Json]]
    """function tools: name, description, parameters"""
    rng: Random
    """of this row's own, so that a rollout can be repeated"""

    async def call(self, name: str, arguments: dict[str, Json] | str) -> str:
        """One tool call, the answer as text; a `str` goes out as the raw argument text that a model wrote."""

    def say(self, text: str) -> None:
        """An assistant message. The last one is the final reply."""


Policy = Callable[[Any], Awaitable[None]]
"""an `async def policy(play)`"""


def find_policy(name: str) -> Policy:
    """The policy that GridSim knows by that name, or `module:function`. Raises ConfigError."""
    module, colon, function = name.partition(":")
    if not colon:
        if name not in KNOWN:
            raise ConfigError(f"no policy {name!r}: known are {', '.join(KNOWN)}, and module:function")
        module, function = _GRIDSIM, name
    try:
        policy = getattr(importlib.import_module(module), function)
    except ImportError as error:
        raise ConfigError(f"policy {name!r}: can't import {module}: {error}") from error
    except AttributeError:
        raise ConfigError(f"policy {name!r}: {module} has no {function!r}") from None
    if not inspect.iscoroutinefunction(policy):
        raise ConfigError(f"policy {name!r} is not an `async def policy(play)`")
    found: Policy = policy
    return found
