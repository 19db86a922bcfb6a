"""The line that an OpenEnv server ends with."""

from __future__ import annotations

from collections import Counter

from agent_env.errors import FailureKind

LEFT = (FailureKind.CLIENT_GONE, FailureKind.CANCELLED)
"""kinds of episodes that their client abandoned"""


def episodes_summary(started: int, scored: int, failed: Counter[FailureKind]) -> str:
    """How many episodes were started, scored, failed by kind, and abandoned by their client."""
    kinds = ", ".join(f"{count} {kind.value}" for kind, count in sorted(failed.items()) if kind not in LEFT)
    left = sum(failed[kind] for kind in LEFT)
    broken = failed.total() - left
    return (
        f"episodes: {started} started, {scored} scored, {left} abandoned, {broken} failed"
        f"{f' ({kinds})' if kinds else ''}"
    )
