"""Medians, percentiles, and intervals of ratios between two sides that were measured in turn."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from statistics import median

_RESAMPLES = 2000


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least this share of them does not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1))]


def ratio_interval(ours: Sequence[float], peer: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Of median(ours) / median(peer): bootstrap over the pairs, so that what disturbed both sides of one stays
    together."""
    pairs = list(zip(ours, peer, strict=True))
    rng = Random(0)
    ratios = []
    for _ in range(_RESAMPLES):
        drawn = rng.choices(pairs, k=len(pairs))
        ratios.append(median(mine for mine, _ in drawn) / median(theirs for _, theirs in drawn))
    return _middle(ratios, confidence)


def difference_interval(ours: Sequence[float], peer: Sequence[float], confidence: float = 0.95) -> tuple[float, float]:
    """Of median(ours) - median(peer), in the same way."""
    pairs = list(zip(ours, peer, strict=True))
    rng = Random(0)
    differences = []
    for _ in range(_RESAMPLES):
        drawn = rng.choices(pairs, k=len(pairs))
        differences.append(median(mine for mine, _ in drawn) - median(theirs for _, theirs in drawn))
    return _middle(differences, confidence)


def _middle(values: Sequence[float], confidence: float) -> tuple[float, float]:
    rest = (1 - confidence) / 2
    return percentile(values, rest), percentile(values, 1 - rest)
