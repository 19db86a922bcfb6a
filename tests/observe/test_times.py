from __future__ import annotations

import pytest

from agent_env.observe.times import BOUNDS, MOST_TOOLS, OTHER, Histogram, Times


def filled(*values: float) -> Histogram:
    histogram = Histogram()
    for value in values:
        histogram.observe(value)
    return histogram


def test_a_value_on_a_bound_counts_below_it_as_prometheus_has_it() -> None:
    cumulative = dict(filled(0.001, 0.5, 0.51, 700.0).cumulative())
    assert (cumulative[0.001], cumulative[0.5], cumulative[1.0], cumulative[600.0]) == (1, 2, 3, 3)
    assert cumulative[float("inf")] == 4


def test_quantiles_are_exact_to_their_bucket_and_never_past_the_largest_value() -> None:
    histogram = filled(*(n / 1000 for n in range(1, 1001)))
    median, late = histogram.quantile(0.5), histogram.quantile(0.95)
    assert median is not None
    assert late is not None
    assert 0.25 <= median <= 0.5
    assert 0.5 <= late <= 1.0
    assert histogram.quantile(1.0) == 1.0
    assert filled(0.3).quantile(0.95) == pytest.approx(0.3, rel=0.2)
    assert filled(4000.0).quantile(0.5) == pytest.approx(2300.0)
    assert Histogram().quantile(0.5) is None


def test_tools_past_the_limit_are_counted_together() -> None:
    times = Times()
    for number in range(MOST_TOOLS + 20):
        times.call(f"tool-{number}", 0.01)
    times.call("tool-0", 0.01)
    assert len(times.calls) == MOST_TOOLS + 1
    assert (times.calls["tool-0"].count, times.calls[OTHER].count) == (2, 20)
    assert times.all_calls().count == MOST_TOOLS + 21


def test_the_bounds_ascend() -> None:
    assert list(BOUNDS) == sorted(set(BOUNDS))
