"""Settings of the resources server: every default in one place."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

MIB = 1024 * 1024
ANSWER_MARGIN = 5.0
"""Seconds from the OpenEnv server's deadline of a phase to our own limit: the server always answers first."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """Seconds and bytes. `serve --help` says what each flag means; `AGENT_ENV_<FLAG>` sets it too."""

    host: str = "127.0.0.1"
    port: int = 9100
    openenv: tuple[str, ...] = ()
    """OpenEnv servers that stand in for the folder's own."""
    openenv_file: str | None = None
    """A list of more, read again while the server runs."""
    openenv_listed: tuple[str, ...] = ()
    """What stood in it at the start."""
    masked_as_error: bool = False
    idle_timeout: float = 600.0
    first_call_timeout: float | None = None
    """None: the idle timeout."""
    reset_timeout: float = 600.0
    ready_wait: float = 280.0
    seed_wait: float | None = None
    """None: a seed is held as long as `reset_timeout`."""
    keepalive_after: float = 20.0
    keepalive_every: float = 5.0
    tool_timeout: float = 300.0
    verify_timeout: float = 300.0
    deploy_timeout: float = 180.0
    load_timeout: float = 900.0
    refused_for: float = 30.0
    """A restarting OpenEnv server refuses connections for a while; past this it counts as away."""
    max_body: int = 64 * MIB
    max_output: int = MIB
    metrics: frozenset[str] | None = None
    """None: the scores of tasks that have two or more."""
    episode_log: Path | None = None
    token: str | None = None
    openenv_token: str | None = None
    tombstones: int = 4096
    tombstone_ttl: float = 3600.0

    @property
    def first_call(self) -> float:
        return self.idle_timeout if self.first_call_timeout is None else self.first_call_timeout

    @property
    def tool_limit(self) -> float:
        return self.tool_timeout + ANSWER_MARGIN

    @property
    def verify_limit(self) -> float:
        return self.verify_timeout + ANSWER_MARGIN

    @property
    def start_limit(self) -> float:
        return self.deploy_timeout + self.load_timeout + ANSWER_MARGIN

    @property
    def longest_answer(self) -> float:
        """The longest that a tool call or a verify can take: the wait for its turn, then its own work."""
        return self.ready_wait + max(self.tool_limit, self.verify_limit)
