"""How far a play has come: a bar on a terminal, a line every few seconds elsewhere. Shown on stderr."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, TypeVar

T = TypeVar("T")
Item = TypeVar("Item", contravariant=True)

_EVERY = 5.0


class Tally(Protocol[Item]):
    """Counts what has ended; its text is what is shown."""

    done: int
    total: int

    def add(self, item: Item) -> None: ...


@contextmanager
def progress(tally: Tally[T]) -> Iterator[Callable[[T], None]]:
    """Gives a function that adds an item to the tally and shows it."""
    if sys.stderr.isatty():
        with _bar(tally) as advance:
            yield advance
        return
    said = time.monotonic()

    def line(item: T) -> None:
        nonlocal said
        tally.add(item)
        if time.monotonic() - said >= _EVERY or tally.done == tally.total:
            said = time.monotonic()
            sys.stderr.write(f"{tally}\n")
            sys.stderr.flush()

    yield line


@contextmanager
def _bar(tally: Tally[T]) -> Iterator[Callable[[T], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (BarColumn(bar_width=24), TextColumn("{task.description}", markup=False), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as bar:
        shown = bar.add_task(str(tally), total=tally.total)

        def advance(item: T) -> None:
            tally.add(item)
            bar.update(shown, completed=tally.done, description=str(tally))

        yield advance
