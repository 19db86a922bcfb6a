"""What an OpenEnv server's observations say: ours, and others that fill fewer fields (agentenv-framework 0.9.1364)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_env.training.nemo_gym.output import joined_text

Json = Any


@dataclass(frozen=True, slots=True)
class TaskName:
    name: str
    split: str
    index: int


@dataclass(frozen=True, slots=True)
class Started:
    """What a granted place told. A server that answers only when ready has told nothing yet."""

    task: TaskName | None = None
    turns: int | None = None
    digest: str | None = None
    episode_id: str | None = None
    prompt: str | None = None
    system_prompt: str | None = None


@dataclass(frozen=True, slots=True)
class ToolReply:
    """`error` is OpenEnv's error type; the text is for the model either way."""

    text: str
    error: str | None = None


@dataclass(frozen=True, slots=True)
class TurnReply:
    """What ending a turn led to: the next prompt's text, or the end."""

    done: bool
    text: str = ""
    reward: Json = None
    scores: Mapping[str, float] = field(default_factory=dict)
    episode_id: str | None = None
    turns_played: int | None = None
    timings: Mapping[str, float] = field(default_factory=dict)


def started(data: dict[str, Json]) -> Started:
    observation = data["observation"]
    task, bundle, turns = observation.get("task"), observation.get("bundle"), observation.get("turns")
    digest = bundle.get("digest") if isinstance(bundle, dict) else None
    return Started(
        task=_task(task),
        turns=turns if isinstance(turns, int) and not isinstance(turns, bool) else None,
        digest=digest if isinstance(digest, str) else None,
        episode_id=_text(observation.get("episode_id")),
        prompt=_text(observation.get("prompt")),
        system_prompt=_text(observation.get("system_prompt")),
    )


def _text(value: Json) -> str | None:
    return value if isinstance(value, str) else None


def _task(task: Json) -> TaskName | None:
    if not isinstance(task, dict) or not isinstance(task.get("name"), str):
        return None
    return TaskName(task["name"], str(task.get("split")), task.get("index", -1))


def turn_reply(data: dict[str, Json]) -> TurnReply:
    observation, metadata = data["observation"], data.get("metadata")
    if not data.get("done"):
        return TurnReply(done=False, text=_next_prompt(observation))
    metadata = metadata if isinstance(metadata, dict) else observation.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    episode = observation.get("episode") or metadata.get("episode")
    episode = episode if isinstance(episode, dict) else {}
    turns, episode_id = episode.get("turns_played"), episode.get("id")
    return TurnReply(
        done=True,
        reward=data.get("reward"),
        scores=finite(observation.get("scores") or metadata.get("scores")),
        episode_id=episode_id if isinstance(episode_id, str) else None,
        turns_played=turns if isinstance(turns, int) else None,
        timings=finite(episode.get("timings")),
    )


def _next_prompt(observation: dict[str, Json]) -> str:
    result = observation.get("result")
    if isinstance(result, dict) and isinstance(result.get("prompt"), str) and "data" not in result:
        parts = [result.get("system_prompt"), result["prompt"]]
        return "\n\n".join(part for part in parts if isinstance(part, str) and part)
    return joined_text(result)


def measured(reward: Json) -> float | None:
    """The reward as a finite number, or None: nothing else counts as a measurement."""
    if isinstance(reward, int | float) and math.isfinite(reward):
        return float(reward)
    return None


def finite(numbers: Json) -> dict[str, float]:
    """The finite numbers of an object, by name: nothing else may leave the server as a score or a time."""
    if not isinstance(numbers, dict):
        return {}
    return {str(name): float(x) for name, x in numbers.items() if isinstance(x, int | float) and math.isfinite(x)}
