"""What a rollout is worth, and how that is told: the answers of `/verify`, and of a seed that found no place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import orjson

from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.training.nemo_gym.openenv_replies import TurnReply, measured
from agent_env.training.nemo_gym.wire import VerifyRequest

Json = Any


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rollout is worth. `kind` is set for a masked one."""

    reward: float = 0.0
    kind: FailureKind | None = None
    reason: str | None = None
    episode_id: str | None = None
    scores: Mapping[str, float] = field(default_factory=dict)
    turns_played: int = 0
    tools_changed: bool = False
    timings: Mapping[str, float] = field(default_factory=dict)

    @property
    def masked(self) -> bool:
        return self.kind is not None

    @property
    def failure_kind(self) -> str | None:
        return self.kind.gym_word if self.kind else None


def decide(end: TurnReply | None, failure: EpisodeFailure | None, played: Verdict) -> Verdict:
    """The verdict on an episode that ended, or failed before it could. `played` holds what the session knows itself."""
    if end is None:
        failure = failure or EpisodeFailure(FailureKind.CANCELLED, "the episode ended without an outcome")
        return replace(played, kind=failure.kind, reason=failure.reason)
    verdict = replace(
        played,
        episode_id=end.episode_id or played.episode_id,
        scores=end.scores,
        turns_played=end.turns_played if end.turns_played is not None else played.turns_played,
        timings={**played.timings, **end.timings},
    )
    reward = measured(end.reward)
    if reward is not None:
        return replace(verdict, reward=reward)
    if end.reward is None:
        return replace(verdict, kind=FailureKind.NO_SCORE, reason="the episode ended without a reward")
    return replace(verdict, kind=FailureKind.SCORE_NOT_FINITE, reason=f"the reward is {end.reward!r}")


def verify_answer(verdict: Verdict, request: VerifyRequest, metrics: frozenset[str] | None) -> bytes:
    """The body of a verify answer: the verdict first, then the echo spliced in as it came."""
    answer = {
        "reward": verdict.reward,
        "mask_sample": verdict.masked,
        "failure_kind": verdict.failure_kind,
        "failure_reason": verdict.reason,
        "instance_config": {"mask_sample": verdict.masked},
        "episode": episode_fields(verdict),
        **_metrics(verdict, metrics),
    }
    head = orjson.dumps(answer)[:-1]
    echo = f',"responses_create_params":{request.params},"response":{request.response}}}'
    return head + echo.encode("utf-8", "surrogatepass")


def episode_fields(verdict: Verdict) -> dict[str, Json]:
    return {
        "id": verdict.episode_id,
        "kind": verdict.kind,
        "scores": dict(verdict.scores),
        "turns_played": verdict.turns_played,
        "tools_changed": verdict.tools_changed,
        "timings": dict(verdict.timings),
    }


def masked_error(kind: FailureKind, reason: str, episode: Mapping[str, Json] | None = None) -> bytes:
    """The body of a 503: the reason for people first, then the same names as in a verify answer."""
    body: dict[str, Json] = {"detail": f"{kind.value}: {reason}", "failure_kind": kind.gym_word}
    body |= {"failure_reason": reason, "mask_sample": True}
    return orjson.dumps(body if episode is None else {**body, "episode": episode})


def _metrics(verdict: Verdict, chosen: frozenset[str] | None) -> dict[str, float]:
    """verifiers makes a metric of every number at the top of the answer, so only what is asked for goes there."""
    shown: dict[str, float] = {}
    if "scores" in chosen if chosen is not None else len(verdict.scores) > 1:
        shown |= {f"score/{step}": score for step, score in verdict.scores.items()}
    if chosen is not None and "timings" in chosen:
        shown |= verdict.timings
    return shown
