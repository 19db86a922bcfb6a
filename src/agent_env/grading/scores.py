"""Rows of a grader -> one number. Facts on the original's scores were measured on agentenv-framework 0.9.1364."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from agent_env.errors import EpisodeFailure, FailureKind

Row = Mapping[str, Any]


def score_rows(rows: Sequence[Row], aggregator: str) -> float:
    """The score of a grader's rows; 0.0 when there are none.

    A row has `result`, and may have `score` (default 1.0 or 0.0, from `result`) and `weight` (default 1.0). Where a
    score or weight that counts is not finite, so is the answer: the caller masks it. The original clamps it to 1.0.

    Raises:
        EpisodeFailure: VERIFIER_ERROR, a score or weight is no number.
        KeyError: no such aggregator.
    """
    return AGGREGATORS[aggregator](rows)


def all_pass(rows: Sequence[Row]) -> float:
    """1.0 when every row's `result` is `True` itself, so that a 1 or a numpy bool fails."""
    return float(bool(rows) and all(row.get("result") is True for row in rows))


def any_pass(rows: Sequence[Row]) -> float:
    """1.0 when any row's `result` is `True` itself."""
    return float(any(row.get("result") is True for row in rows))


def weighted_average(rows: Sequence[Row]) -> float:
    """The mean score by weight; what rows of negative weight lack is taken off. Between 0.0 and 1.0."""
    weighed = [(_weight(row, place), row, place) for place, row in enumerate(rows)]
    if odd := [weight for weight, _, _ in weighed if not math.isfinite(weight)]:
        return odd[0]
    counted = [(weight, _score(row, place)) for weight, row, place in weighed if weight != 0]
    if odd := [score for _, score in counted if not math.isfinite(score)]:
        return odd[0]
    whole = sum(weight for weight, _ in counted if weight > 0)
    if whole == 0:
        return 0.0
    gained = sum(score * weight for weight, score in counted if weight > 0)
    lost = sum((1.0 - score) * -weight for weight, score in counted if weight < 0)
    value = (gained - lost) / whole
    return value if math.isnan(value) else max(0.0, min(1.0, value))


AGGREGATORS: Mapping[str, Callable[[Sequence[Row]], float]] = {
    "all_pass": all_pass,
    "any_pass": any_pass,
    "weighted_average": weighted_average,
}


def _score(row: Row, place: int) -> float:
    if "score" not in row:
        return 1.0 if row.get("result") else 0.0
    value = row["score"]
    if not isinstance(value, int | float):
        raise _no_number(row, place, "score")
    return _float(value)


def _weight(row: Row, place: int) -> float:
    value = row.get("weight", 1.0)
    try:
        return _float(value)
    except (TypeError, ValueError):
        raise _no_number(row, place, "weight") from None


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf


def _no_number(row: Row, place: int, key: str) -> EpisodeFailure:
    name = f"row {place + 1}" + (f" ({row['id']!r})" if "id" in row else "")
    return EpisodeFailure(FailureKind.VERIFIER_ERROR, f"{name}: {key} must be a number, not {row[key]!r}"[:500])
