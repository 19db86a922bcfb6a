from __future__ import annotations

from random import Random

import pytest

from benchmarks.stats import difference_interval, percentile, ratio_interval


@pytest.mark.parametrize(("share", "value"), [(0.0, 1), (0.5, 5), (0.9, 9), (0.99, 10), (1.0, 10)])
def test_a_percentile_is_one_of_the_values(share: float, value: int) -> None:
    assert percentile(list(range(10, 0, -1)), share) == value


def test_the_interval_holds_the_true_ratio_of_two_noisy_sides() -> None:
    rng = Random(1)
    ours = [rng.gauss(1.0, 0.1) for _ in range(30)]
    peer = [rng.gauss(2.0, 0.2) for _ in range(30)]
    low, high = ratio_interval(ours, peer)
    assert low < 0.5 < high
    assert high - low < 0.1


def test_what_disturbs_both_of_a_pair_does_not_widen_the_interval() -> None:
    rng = Random(2)
    disturbed = [1 + rng.random() for _ in range(31)]
    low, high = ratio_interval(disturbed, [3 * value for value in disturbed])
    assert (low, high) == (pytest.approx(1 / 3), pytest.approx(1 / 3))


def test_the_interval_of_a_difference() -> None:
    rng = Random(3)
    ours = [10 + rng.gauss(3, 0.2) for _ in range(30)]
    peer = [10 + rng.gauss(0, 0.2) for _ in range(30)]
    low, high = difference_interval(ours, peer)
    assert low < 3 < high
    assert high - low < 0.5
