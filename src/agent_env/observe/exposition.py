"""`/metrics`: what a server counted, as Prometheus reads it (text format 0.0.4).

Nothing is kept in the library's own metrics: their `observe` costs more than all that is counted for a rollout. A
collector reads our counts when it is asked.
"""

from __future__ import annotations

import asyncio
import importlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import inf
from typing import TYPE_CHECKING

from agent_env.observe.lag import LoopLag
from agent_env.observe.times import OTHER, Histogram
from agent_env.observe.watcher import Watcher

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry
    from prometheus_client.core import Metric

MEDIA = b"text/plain; version=0.0.4; charset=utf-8"
MOST_LABELS = 100
"""tasks, and tools, with a series of their own: the first ones that were masked; all others count as `other`"""


@dataclass(frozen=True, slots=True)
class Series:
    """One metric: its values by the values of its labels. The name of a counter ends in `_total`."""

    name: str
    help: str
    values: Mapping[tuple[str, ...], float]
    labels: tuple[str, ...] = ()


def single(name: str, help: str, value: float) -> Series:
    return Series(name, help, {(): value})


def by(name: str, help: str, label: str, values: Mapping[str, float]) -> Series:
    return Series(name, help, {(key,): value for key, value in values.items()}, (label,))


def shown(name: str) -> str:
    """A name as UTF-8 can write it: a model may call a tool by half of a surrogate pair."""
    return name.encode("utf-8", "backslashreplace").decode()


class Exposition:
    """A registry of its own for each server: there may be several in a process."""

    def __init__(self, watcher: Watcher, lag: LoopLag) -> None:
        self._watcher = watcher
        self._lag = lag
        self._more: tuple[Series, ...] = ()
        self._registry: CollectorRegistry | None = None

    async def text(self, more: Iterable[Series]) -> bytes:
        """`more` is what only this kind of server has."""
        # Imported when first asked for, and not on the loop: it takes longer than many a rollout.
        library = await asyncio.to_thread(importlib.import_module, "prometheus_client")
        if self._registry is None:
            self._registry = library.CollectorRegistry(auto_describe=False)
            library.ProcessCollector(registry=self._registry)
            self._registry.register(self)
        self._more = tuple(more)
        text: bytes = library.generate_latest(self._registry)
        return text

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

        for series in (*self._more, *_series(self._watcher, self._lag)):
            kind = CounterMetricFamily if series.name.endswith("_total") else GaugeMetricFamily
            family = kind(series.name, series.help, labels=series.labels)
            for labels, value in series.values.items():
                family.add_metric([shown(label) for label in labels], value)
            yield family
        times = self._watcher.times
        for name, help, label, histograms in (
            ("agent_env_phase_seconds", "How long the phases of a rollout took.", "phase", times.phases),
            ("agent_env_call_seconds", "How long the calls of each tool took.", "tool", times.calls),
        ):
            took = HistogramMetricFamily(name, help, labels=(label,))
            for which, histogram in histograms.items():
                took.add_metric([shown(which)], _buckets(histogram), histogram.total)
            yield took


def _series(watcher: Watcher, lag: LoopLag) -> Iterator[Series]:
    kinds = {kind.value: count for kind, count in watcher.kinds.items()}
    yield by("agent_env_masked_total", "Rollouts that the environment failed, by failure kind.", "kind", kinds)
    tasks, tools = _first(watcher.tasks), _first(watcher.tools)
    yield by("agent_env_masked_by_task_total", "The same by task; all past the first 100 as other.", "task", tasks)
    yield by("agent_env_masked_by_tool_total", "Those that failed in a tool call, by tool.", "tool", tools)
    yield by("agent_env_call_errors_total", "Tool calls answered with an error.", "error", watcher.errors)
    listed = len(watcher.troubles.listed())
    yield single("agent_env_failing_tasks", "Tasks that failed 5 times in a row and did not succeed since.", listed)
    yield single("agent_env_event_loop_lag_seconds", "How late the event loop was, when last looked at.", lag.last)
    yield single("agent_env_event_loop_lag_max_seconds", "The most of the last minute.", lag.largest)


def _first(counter: Counter[str]) -> dict[str, float]:
    """The counts of the first names, which keep their series, and those of all others together."""
    shown: dict[str, float] = {}
    for name, count in counter.items():
        if name != OTHER and len(shown) < MOST_LABELS:
            shown[name] = count
        else:
            shown[OTHER] = shown.get(OTHER, 0) + count
    return shown


def _buckets(histogram: Histogram) -> Sequence[tuple[str, float]]:
    return [("+Inf" if bound == inf else f"{bound:g}", count) for bound, count in histogram.cumulative()]
