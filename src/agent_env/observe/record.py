"""The record of one session (or of one episode of an OpenEnv server), and those who are told of it while it happens.

A record is made each time a session is counted. A session that was given up and verified all the same is counted
again: the later record replaces the earlier one, and says so by `before`. Times are seconds; `at` of a session is the
wall clock's, `at` of everything inside it counts from there.

    server  ->  Observers.called   each tool call, as it is answered
            ->  Observers.counted  each time a session's fate is settled

Calls with their arguments and outputs are collected only when an observer asks for them (`full`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Protocol

from agent_env.errors import FailureKind

log = logging.getLogger("agent_env.observe")


class Fate(StrEnum):
    """How a session is counted. A late verify moves it from RECLAIMED or CLOSED to its verdict."""

    SEEDING = "seeding"
    OPEN = "open"
    VERIFIED = "verified"
    MASKED = "masked"
    RECLAIMED = "reclaimed"
    CLOSED = "closed"
    REFUSED = "refused"
    """Its seed was answered with an error."""
    ABANDONED = "abandoned"
    """Its client left: before the seed's answer on a resources server, at any time on an OpenEnv server."""
    UNKNOWN = "unknown"
    """A verify that came without a session."""
    SCORED = "scored"
    """An OpenEnv server's: the episode has its scores."""
    FAILED = "failed"
    """An OpenEnv server's: the environment failed the episode."""


class Of(StrEnum):
    """Whose record it is."""

    SESSION = "session"
    """a resources server's"""
    EPISODE = "episode"
    """an OpenEnv server's"""


class Error(StrEnum):
    """Why a tool call was answered with an error, where no OpenEnv error type says it."""

    TOOL_NOT_FOUND = "tool_not_found"
    INVALID_ARGS = "invalid_args"
    EXECUTION_ERROR = "execution_error"
    FAILED = "failed"
    """the environment failed during the call"""
    NOT_MADE = "not_made"
    """the env never saw the call: the episode was over, or an earlier call still ran"""


@dataclass(slots=True)
class Call:
    """One tool call. `arguments` is JSON text as the client wrote it; `error` is None for one that went well."""

    turn: int
    name: str
    arguments: str
    output: str
    at: float
    seconds: float
    error: str | None = None


@dataclass(slots=True)
class Phase:
    """`wait` (for a place), `start` (deploy and load), `calls` (first to last) or `verify`."""

    name: str
    at: float
    seconds: float


@dataclass(slots=True)
class Record:
    of: Of
    serial: int
    """Of the session within its server's run: with the run's id it is the key of a record."""
    fate: Fate
    at: float
    seconds: float = 0.0
    """From the seed to this count."""
    before: Fate | None = None
    """What the session was counted as in the record that this one replaces."""
    session: str | None = None
    episode: str | None = None
    """The OpenEnv server's id, where it told one."""
    server: str | None = None
    """URL of the OpenEnv server that plays it."""
    bundle: str | None = None
    """Digest of the served bundle."""
    typed_id: str | None = None
    rollout: tuple[str, int] | None = None
    """Rollout id and attempt of a typed seed."""
    task: str | None = None
    split: str | None = None
    index: int | None = None
    task_id: str | None = None
    wait_s: float | None = None
    start_s: float | None = None
    verify_s: float | None = None
    """How long these phases took, as far as they began."""
    phases: Sequence[Phase] = ()
    """Like the calls, the prompts and where the task stands, empty unless an observer is `full`."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """As the OpenEnv server told them at the end: wait_s, deploy_s, load_s, turn_s, verify_s."""
    calls: Sequence[Call] = ()
    """Empty unless an observer is `full`."""
    calls_made: int = 0
    characters: int = 0
    """Of the calls, about."""
    prompt: str | None = None
    system_prompt: str | None = None
    final: str | None = None
    """The text that ended the open turn at verify."""
    turns_played: int = 0
    tools_changed: bool = False
    scores: Mapping[str, float] = field(default_factory=dict)
    reward: float | None = None
    kind: FailureKind | None = None
    reason: str | None = None
    failed_tool: str | None = None

    def phase(self, name: str) -> Phase | None:
        return next((phase for phase in self.phases if phase.name == name), None)


class Observer(Protocol):
    """Called on the server's event loop: it must return at once. What it raises is logged and goes no further."""

    @property
    def full(self) -> bool:
        """Whether it needs each call's arguments and output, the prompts and the final text."""

    @property
    def called(self) -> Callable[[str, float, str | None], None] | None:
        """Told of each tool call of the model's that was answered: its tool, seconds, and error as `Call.error`."""

    def counted(self, record: Record) -> None:
        """A session's fate was settled, or settled anew (`record.before`)."""


class Observers:
    """Those who are told. Nobody by default, which costs nothing."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers
        self.full = any(observer.full for observer in observers)
        hearing = (observer.called for observer in observers if observer.called is not None)
        self.called: Callable[[str, float, str | None], None] = _all(hearing)
        self.counted: Callable[[Record], None] = _all(observer.counted for observer in observers)

    def __bool__(self) -> bool:
        return bool(self._observers)


def _all(told: Iterable[Callable[..., None]]) -> Callable[..., None]:
    """One call for all of them: this is done for every call of every rollout. A fault of one is logged once, and costs
    no rollout."""
    told = tuple(told)
    faulty: set[Callable[..., None]] = set()

    def tell(*what: Any) -> None:
        for tell_one in told:
            try:
                tell_one(*what)
            except Exception:
                if tell_one not in faulty:
                    log.exception("what happens can't be noted, so metrics or log lack it; rollouts go on")
                faulty.add(tell_one)

    return tell
