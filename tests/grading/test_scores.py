from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.grading.scores import AGGREGATORS, score_rows

RESULTS = st.sampled_from([True, False, 1, 0, "yes", None])
NUMBERS = st.integers(-8, 8).map(lambda eighths: eighths / 4)
ROW = st.fixed_dictionaries(
    {"result": RESULTS}, optional={"score": NUMBERS, "weight": NUMBERS, "skipped": st.booleans(), "id": st.text()}
)
ROWS = st.lists(ROW, max_size=8)


@pytest.mark.parametrize("aggregator", AGGREGATORS)
def test_no_rows_score_nothing(aggregator: str) -> None:
    assert score_rows([], aggregator) == 0.0


@given(ROWS)
def test_all_pass_and_any_pass_look_for_true_itself(rows: list[dict[str, Any]]) -> None:
    passed = [row["result"] is True for row in rows]
    assert score_rows(rows, "all_pass") == (1.0 if passed and all(passed) else 0.0)
    assert score_rows(rows, "any_pass") == (1.0 if any(passed) else 0.0)


@given(ROWS)
def test_the_weighted_average_is_what_the_rules_say_exactly(rows: list[dict[str, Any]]) -> None:
    gained = lost = whole = Fraction(0)
    for row in rows:
        score = Fraction(row.get("score", 1 if row["result"] else 0))
        weight = Fraction(row.get("weight", 1))
        if weight > 0:
            gained += score * weight
            whole += weight
        elif weight < 0:
            lost += (1 - score) * -weight
    expected = min(Fraction(1), max(Fraction(0), (gained - lost) / whole)) if whole else Fraction(0)
    assert score_rows(rows, "weighted_average") == pytest.approx(float(expected), abs=1e-12)


@given(ROWS, st.sampled_from(sorted(AGGREGATORS)))
def test_every_score_of_finite_rows_is_between_nought_and_one(rows: list[dict[str, Any]], aggregator: str) -> None:
    assert 0.0 <= score_rows(rows, aggregator) <= 1.0


@given(st.lists(ROW, min_size=1, max_size=6), st.randoms())
def test_the_order_of_rows_does_not_matter(rows: list[dict[str, Any]], random: Any) -> None:
    shuffled = random.sample(rows, len(rows))
    for aggregator in AGGREGATORS:
        assert score_rows(shuffled, aggregator) == pytest.approx(score_rows(rows, aggregator), abs=1e-12)


@pytest.mark.parametrize(
    ("rows", "score"),
    [
        ([{"result": True, "weight": 2}, {"result": False, "score": 0.25}], 0.75),
        ([{"result": True}, {"result": True, "weight": -1}], 1.0),
        ([{"result": True}, {"result": False, "weight": -1}], 0.0),
        ([{"result": True}, {"score": 0.3, "weight": -0.5}], 0.65),
        ([{"result": True, "weight": 0}], 0.0),
        ([{"result": True, "weight": -1}], 0.0),
        ([{"result": "yes"}], 1.0),
        ([{}], 0.0),
        ([{"result": True, "score": True}], 1.0),
        ([{"result": True, "weight": "2"}, {"result": False, "weight": "2"}], 0.5),
        ([{"result": True}, {"result": False, "skipped": True}], 0.5),
        ([{"score": 2.0}], 1.0),
        ([{"score": -3.0}], 0.0),
    ],
)
def test_weighted_averages_that_the_original_gives(rows: list[dict[str, Any]], score: float) -> None:
    assert score_rows(rows, "weighted_average") == score


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
@pytest.mark.parametrize("key", ["score", "weight"])
def test_what_is_not_finite_is_not_clamped_into_a_score(key: str, value: float) -> None:
    rows = [{"result": True}, {"result": True, key: value}]
    assert not math.isfinite(score_rows(rows, "weighted_average"))
    assert score_rows(rows, "all_pass") == 1.0


def test_a_score_that_does_not_count_need_not_be_finite() -> None:
    assert score_rows([{"result": True}, {"score": math.nan, "weight": 0}], "weighted_average") == 1.0


def test_sums_beyond_the_floats_are_not_finite() -> None:
    rows = [{"score": 1e308, "weight": 1e308}, {"score": -1e308, "weight": -1e308}]
    assert not math.isfinite(score_rows(rows, "weighted_average"))


@pytest.mark.parametrize(
    ("row", "line"),
    [
        ({"score": None}, "row 1: score must be a number, not None"),
        ({"id": "profit", "score": "0.5"}, "row 1 ('profit'): score must be a number, not '0.5'"),
        ({"weight": None}, "row 1: weight must be a number, not None"),
        ({"weight": "heavy"}, "row 1: weight must be a number, not 'heavy'"),
    ],
)
def test_a_score_or_weight_that_is_no_number_is_the_graders_error(row: dict[str, Any], line: str) -> None:
    with pytest.raises(EpisodeFailure) as caught:
        score_rows([row], "weighted_average")
    assert (caught.value.kind, caught.value.reason) == (FailureKind.VERIFIER_ERROR, line)
