"""How long things took, as histograms that cost next to nothing to add to."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from math import inf

BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
"""upper bounds of the buckets, in seconds; one more bucket takes what is longer"""
MOST_TOOLS = 50
OTHER = "other"
"""what is past a limit of names is counted under this one"""


class Histogram:
    """Seconds, by bucket. `observe` only takes a value down: they are sorted into their buckets when somebody looks, or
    by `fold`, which costs a small part of what each alone would."""

    __slots__ = ("_counts", "_largest", "_new", "_total", "observe")

    def __init__(self) -> None:
        self._counts = [0] * (len(BOUNDS) + 1)
        self._total = 0.0
        self._largest = 0.0
        self._new: list[float] = []
        self.observe: Callable[[float], None] = self._new.append

    def fold(self) -> None:
        if not (new := self._new):
            return
        new.sort()
        below = 0
        for place, bound in enumerate(BOUNDS):
            upto = bisect_right(new, bound)
            self._counts[place] += upto - below
            below = upto
        self._counts[-1] += len(new) - below
        self._total += sum(new)
        self._largest = max(self._largest, new[-1])
        new.clear()

    def add(self, other: Histogram) -> None:
        """Counts the other's values here too."""
        self._counts = [mine + more for mine, more in zip(self.counts, other.counts, strict=True)]
        self._total += other.total
        self._largest = max(self._largest, other.largest)

    @property
    def counts(self) -> list[int]:
        """By bucket."""
        self.fold()
        return self._counts

    @property
    def total(self) -> float:
        """The sum of all values."""
        self.fold()
        return self._total

    @property
    def largest(self) -> float:
        self.fold()
        return self._largest

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each bound, with how many values it does not fall short of; infinity last."""
        so_far = 0
        for bound, count in zip((*BOUNDS, inf), self.counts, strict=True):
            so_far += count
            yield bound, so_far

    def quantile(self, share: float) -> float | None:
        """About the value that this share of all stays below: exact to its bucket. None when there is none."""
        count = self.count
        if not count:
            return None
        wanted = share * count
        below, lower = 0, 0.0
        for upper, inside in zip((*BOUNDS, self.largest), self.counts, strict=True):
            if inside and below + inside >= wanted:
                top = min(upper, self.largest)
                return lower + (top - lower) * max(0.0, wanted - below) / inside
            below, lower = below + inside, upper
        return self.largest


class Times:
    """Histograms by phase and by tool."""

    def __init__(self, *phases: str, told: Mapping[str, str] | None = None) -> None:
        """`phases` of a record that count here; `told`: phases by the names of the timings that tell them."""
        told = told or {}
        self.phases = {name: Histogram() for name in (*phases, *told.values())}
        self.of_timing = {timing: self.phases[name] for timing, name in told.items()}
        self.calls: dict[str, Histogram] = {}

    def taker(self, phase: str) -> Callable[[float], None]:
        """What takes a value of the phase down; of one that is not known here, nothing does."""
        histogram = self.phases.get(phase)
        return _ignored if histogram is None else histogram.observe

    def call(self, tool: str, seconds: float) -> None:
        if tool in self.calls:
            self.calls[tool].observe(seconds)
        else:
            name = tool if len(self.calls) < MOST_TOOLS else OTHER
            self.calls.setdefault(name, Histogram()).observe(seconds)

    def all_calls(self) -> Histogram:
        """Of every tool."""
        whole = Histogram()
        for histogram in self.calls.values():
            whole.add(histogram)
        return whole

    def fold(self) -> None:
        """Keeps small what was taken down."""
        for histogram in (*self.phases.values(), *self.calls.values()):
            histogram.fold()


def _ignored(seconds: float) -> None:
    """Of a phase that nobody asked for."""
