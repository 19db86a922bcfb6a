"""Seconds that the phases of an episode may take. The one place of these defaults."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Deadlines:
    """A phase past its deadline fails with a kind of its own; the error names the flag."""

    deploy: float = 180.0
    load: float = 900.0
    tool: float = 300.0
    verify: float = 300.0
    teardown: float = 120.0
    turn: float | None = None
    """overrides every prompt's own `timeout_seconds`; the clock starts when the turn is ready"""
