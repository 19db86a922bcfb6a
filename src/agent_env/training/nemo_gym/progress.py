"""How far a play has come: a bar on a terminal, a line every few seconds elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agent_env.training.nemo_gym.client import RolloutResult
from agent_env.training.nemo_gym.flags import say

Advance = Callable[[RolloutResult], None]

_EVERY = 5.0


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
    tally = Tally(policy, total)
    if sys.stderr.isatty():
        with _bar(tally) as advance:
            yield advance
        return
    said = time.monotonic()

    def line(result: RolloutResult) -> None:
        nonlocal said
        tally.add(result)
        if time.monotonic() - said >= _EVERY or tally.done == total:
            said = time.monotonic()
            say(str(tally))

    yield line


@contextmanager
def _bar(tally: Tally) -> Iterator[Advance]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(bar_width=24), TextColumn("{task.description}"), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(str(tally), total=tally.total)

        def advance(result: RolloutResult) -> None:
            tally.add(result)
            bar.update(task, completed=tally.done, description=str(tally))

        yield advance
