"""How long things took, as histograms that cost well under a microsecond to add to."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping

BOUNDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0),
)
"""upper bounds of the buckets, in seconds; one more bucket takes what is longer"""
MOST_TOOLS = 50
OTHER = "other"
"""what is past a limit of names is counted under this one"""


class Histogram:
    """Seconds, by bucket."""

    __slots__ = ("counts", "largest", "total")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.total = 0.0
        self.largest = 0.0

    def observe(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds
        if seconds > self.largest:
            self.largest = seconds

    @property
    def count(self) -> int:
        return sum(self.counts)

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Each bound, with how many values it does not fall short of; infinity last."""
        so_far = 0
        for bound, count in zip((*BOUNDS, float("inf")), self.counts, strict=True):
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
        self.of_phase = {name: self.phases[name] for name in phases}
        self.of_timing = {timing: self.phases[name] for timing, name in told.items()}
        self.calls: dict[str, Histogram] = {}

    def call(self, tool: str, seconds: float) -> None:
        histogram = self.calls.get(tool)
        if histogram is None:
            name = tool if len(self.calls) < MOST_TOOLS else OTHER
            histogram = self.calls.setdefault(name, Histogram())
        histogram.observe(seconds)

    def all_calls(self) -> Histogram:
        """Of every tool."""
        whole = Histogram()
        for histogram in self.calls.values():
            whole.counts = [mine + more for mine, more in zip(whole.counts, histogram.counts, strict=True)]
            whole.total += histogram.total
            whole.largest = max(whole.largest, histogram.largest)
        return whole
