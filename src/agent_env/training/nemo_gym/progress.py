"""How far a play of rows has come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agent_env import progress as shared
from agent_env.training.nemo_gym.client import RolloutResult

Advance = Callable[[RolloutResult], None]


class Tally:
    """Of the rollouts so far."""

    def __init__(self, policy: str, total: int) -> None:
        self.policy, self.total = policy, total
        self.done = self.measured = self.masked = self.errors = 0
        self.sum = 0.0

    def add(self, result: RolloutResult) -> None:
        self.done += 1
        self.masked += result.masked
        self.errors += result.error is not None
        if result.measured and result.reward is not None:
            self.measured += 1
            self.sum += result.reward

    def __str__(self) -> str:
        mean = f"{self.sum / self.measured:.4f}" if self.measured else "-"
        return (
            f"{self.policy}: {self.done}/{self.total} rollouts, mean {mean}, {self.errors} errors, {self.masked} masked"
        )


@contextmanager
def progress(policy: str, total: int) -> Iterator[Advance]:
    """Shows the rollouts of one policy as they end."""
    with shared.progress(Tally(policy, total)) as advance:
        yield advance
