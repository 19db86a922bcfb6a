"""Errors and failure kinds.

AgentEnvError
 +-- BundleError (ValueError)    a bundle can't be used; .problems holds one line per fault
 +-- ConfigError (ValueError)    a setting, flag, file or row is wrong; the user can put it right
 +-- EpisodeError (RuntimeError) the Episode API was called in a way the episode can't serve
 +-- EpisodeFailure              the environment failed the episode; .kind says how

A reward is either a measurement or masked. Whatever the environment or its infrastructure breaks is raised as
`EpisodeFailure` where its cause is known, and masked; what the model does wrong is no exception: it has a score.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum


class FailureKind(StrEnum):
    """The closed list of ways an environment can fail an episode. All of them mask the reward."""

    PROVIDER_UNAVAILABLE = "provider_unavailable"
    IMAGE_MISSING = "image_missing"
    DISK_FULL = "disk_full"
    DEPLOY_FAILED = "deploy_failed"
    DEPLOY_TIMEOUT = "deploy_timeout"
    PROVIDER_OOM_KILLED = "provider_oom_killed"
    SANDBOX_LOST = "sandbox_lost"
    ENV_CRASHED = "env_crashed"
    ENV_UNREACHABLE = "env_unreachable"
    ENV_PROTOCOL_ERROR = "env_protocol_error"
    LOAD_FAILED = "load_failed"
    LOAD_TIMEOUT = "load_timeout"
    TOOL_TIMEOUT = "tool_timeout"
    TURN_EXPIRED = "turn_expired"
    VERIFIER_ERROR = "verifier_error"
    VERIFIER_TIMEOUT = "verifier_timeout"
    NO_SCORE = "no_score"
    SCORE_NOT_FINITE = "score_not_finite"
    JUDGE_FAILED = "judge_failed"
    CAPACITY = "capacity"
    SESSION_LOST = "session_lost"
    SESSION_EXPIRED = "session_expired"
    SERVER_SHUTDOWN = "server_shutdown"
    CANCELLED = "cancelled"
    CLIENT_GONE = "client_gone"

    @property
    def gym_word(self) -> str:
        """The `failure_kind` of a NeMo Gym answer (vocabulary of nemo-gym 0.7.0), else `agent_env:<kind>`."""
        return _GYM_WORDS.get(self, f"agent_env:{self.value}")

    @property
    def remedy(self) -> str:
        """One line that says what to look at."""
        return _REMEDIES[self]


_GYM_WORDS = {
    FailureKind.PROVIDER_UNAVAILABLE: "provider_unavailable",
    FailureKind.IMAGE_MISSING: "provider_unavailable",
    FailureKind.DISK_FULL: "provider_quota_exhausted",
    FailureKind.PROVIDER_OOM_KILLED: "provider_oom_killed",
    FailureKind.VERIFIER_ERROR: "verifier_error",
    FailureKind.VERIFIER_TIMEOUT: "verifier_error",
    FailureKind.NO_SCORE: "verifier_error",
    FailureKind.SCORE_NOT_FINITE: "verifier_error",
    FailureKind.JUDGE_FAILED: "judge_failed",
    FailureKind.SESSION_LOST: "session_lost",
    FailureKind.SESSION_EXPIRED: "session_expired",
    FailureKind.SERVER_SHUTDOWN: "shutdown",
    FailureKind.CANCELLED: "cancelled",
    FailureKind.CLIENT_GONE: "cancelled",
}

_REMEDIES = {
    FailureKind.PROVIDER_UNAVAILABLE: "the provider does not answer: is the Docker daemon up, is DOCKER_HOST right?",
    FailureKind.IMAGE_MISSING: "build or pull the image; agent-env check finds it before training",
    FailureKind.DISK_FULL: "free disk space: agent-env gc removes what is unused",
    FailureKind.DEPLOY_FAILED: "read the last log lines of the env",
    FailureKind.DEPLOY_TIMEOUT: "read the last log lines of the env, or raise --deploy-timeout",
    FailureKind.PROVIDER_OOM_KILLED: "raise `memory` in the env's agent-env.toml",
    FailureKind.SANDBOX_LOST: "the sandbox was ended from outside",
    FailureKind.ENV_CRASHED: "the env's process ended: read its exit code and last log lines",
    FailureKind.ENV_UNREACHABLE: "the env stopped answering",
    FailureKind.ENV_PROTOCOL_ERROR: "the env answered something the env protocol does not allow",
    FailureKind.LOAD_FAILED: "read the step's id and the env's message",
    FailureKind.LOAD_TIMEOUT: "raise --load-timeout, or load less",
    FailureKind.TOOL_TIMEOUT: "raise --tool-timeout, or make the tool quicker",
    FailureKind.TURN_EXPIRED: "raise --turn-timeout; masking by length biases training",
    FailureKind.VERIFIER_ERROR: "read the grader's step and exception",
    FailureKind.VERIFIER_TIMEOUT: "raise --verify-timeout, or make the grader quicker",
    FailureKind.NO_SCORE: "the task's steps recorded no score: does a grader step run?",
    FailureKind.SCORE_NOT_FINITE: "the grader's score must be a finite number",
    FailureKind.JUDGE_FAILED: "read the judge endpoint's answer",
    FailureKind.CAPACITY: "raise the places of the OpenEnv server, or lower the trainer's max_inflight",
    FailureKind.SESSION_LOST: "this server does not know the session: was it restarted, is the cookie the seed's?",
    FailureKind.SESSION_EXPIRED: "raise --idle-timeout above the longest gap between two calls of a rollout",
    FailureKind.SERVER_SHUTDOWN: "the server was stopped",
    FailureKind.CANCELLED: "the episode was abandoned",
    FailureKind.CLIENT_GONE: "the client went away",
}


class AgentEnvError(Exception):
    """Base of every error that this package raises on purpose."""


class BundleError(AgentEnvError, ValueError):
    """A bundle can't be used. `problems` holds every fault found, sorted, as `<path in bundle>: <why>`."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems: tuple[str, ...] = tuple(sorted(set(problems)))
        super().__init__("\n".join(self.problems))

    @property
    def summary(self) -> str:
        """The first problem and how many more there are."""
        more = len(self.problems) - 1
        return self.problems[0] + (f" (and {more} more)" if more > 0 else "")


class ConfigError(AgentEnvError, ValueError):
    """A setting, flag, file or row is wrong; the message names it and says what to do."""


class EpisodeError(AgentEnvError, RuntimeError):
    """The Episode API was used in a way that this episode can't serve."""


class EpisodeFailure(AgentEnvError):
    """The environment, not the model, failed the episode.

    `kind` names the cause; `reason` is one line for people: what, where, and the evidence at hand.
    """

    def __init__(self, kind: FailureKind, reason: str) -> None:
        self.kind = kind
        self.reason = reason
        super().__init__(f"{kind.value}: {reason}")

    def __reduce__(self) -> tuple[type[EpisodeFailure], tuple[FailureKind, str]]:
        return type(self), (self.kind, self.reason)
