"""Observations and state on the OpenEnv wire.

What a client needs stands in declared fields and again in `metadata`, where clients of the original look for it.
Imported by `build_app` only: it loads the openenv library.
"""

from __future__ import annotations

from typing import Any

from openenv.core.env_server.mcp_types import CallToolObservation, ListToolsObservation
from openenv.core.env_server.types import Observation, State


class ResetObservation(Observation):
    """Answer to `reset`. `status`: ready | starting | error."""

    prompt: str | None = None
    system_prompt: str | None = None
    task: dict[str, Any] | None = None
    turns: int = 0
    status: str = "ready"
    failure: dict[str, str] | None = None
    bundle: dict[str, str] | None = None
    episode_id: str | None = None
    wait_s: float = 0.0
    """seconds the episode waited for its place"""


class ToolsObservation(ListToolsObservation):
    """Answer to `list_tools`."""

    status: str = "playing"
    failure: dict[str, str] | None = None


class StepObservation(CallToolObservation):
    """Answer to `call_tool`, `end_turn` included. `status`: playing | done | error."""

    status: str = "playing"
    failure: dict[str, str] | None = None
    prompt: str | None = None
    system_prompt: str | None = None
    turn: int | None = None
    scores: dict[str, float] | None = None
    episode: dict[str, Any] | None = None


class EpisodeState(State):
    """Answer to `state`."""

    task_id: str | None = None
    task_name: str | None = None
    split: str | None = None
    index: int | None = None
    turn: str | None = None
    done: bool = False
