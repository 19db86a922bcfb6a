from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stubs.judge import verdicts

from agent_env.grading.rubrics import Unusable, judge_prompt, read_verdicts

CRITERIA: list[dict[str, Any]] = [
    {"id": "polite", "criterion": "Is polite.", "weight": 2},
    {"id": "invents", "criterion": "Invents an order.", "weight": -1},
]


def prompt(**more: Any) -> str:
    usual: dict[str, Any] = {"prompt": "P", "reply": "R", "criteria": CRITERIA, "format": "rubric_binary"}
    return judge_prompt(**{**usual, **more})


def test_the_judge_reads_task_reply_and_numbered_criteria_but_no_weights_or_ids() -> None:
    text = prompt(prompt="Refund it.", reply="Done.")
    assert "Refund it." in text
    assert "Done." in text
    (start, end) = text.index("["), text.index("\n]") + 2
    assert json.loads(text[start:end]) == [
        {"number": 1, "criterion": "Is polite."},
        {"number": 2, "criterion": "Invents an order.", "negative": True},
    ]


def test_what_is_not_there_is_not_spoken_of() -> None:
    text = prompt()
    assert "what the agent did" not in text
    assert "the conversation" not in text
    assert "Rules for grading" not in text
    fuller = prompt(transcript="call: x", conversation="user: hi", policy="Be strict.")
    for part in ("call: x", "user: hi", "Rules for grading:\nBe strict."):
        assert part in fuller


def test_each_verdict_becomes_the_row_of_its_criterion() -> None:
    answer = json.dumps({"verdicts": [{"number": 2, "score": 0}, {"number": 1, "score": 1.0, "justification": "kind"}]})
    assert read_verdicts(answer, CRITERIA, "rubric_binary") == [
        {**CRITERIA[0], "score": 1.0, "result": True, "justification": "kind"},
        {**CRITERIA[1], "score": 0.0, "result": False, "justification": ""},
    ]


@pytest.mark.parametrize(
    "wrapped",
    ["{0}", "```json\n{0}\n```", "Here it is:\n```\n{0}\n```\nDone.", "My verdicts: {0} That is all."],
)
def test_what_a_model_puts_around_the_json_does_not_matter(wrapped: str) -> None:
    rows = read_verdicts(wrapped.replace("{0}", verdicts(1, 0)), CRITERIA, "rubric_binary")
    assert [row["result"] for row in rows] == [True, False]


def test_a_bare_list_is_read_too() -> None:
    rows = read_verdicts(json.dumps(json.loads(verdicts(1, 1))["verdicts"]), CRITERIA, "rubric_binary")
    assert len(rows) == 2


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("I can't judge this.", "not JSON"),
        ("", "not JSON"),
        ("{}", 'no object with a list "verdicts"'),
        ('{"verdicts": 3}', 'no object with a list "verdicts"'),
        (verdicts(1), "there is no verdict for criterion 2"),
        (verdicts(1, 0, 1), "a verdict is for criterion 3"),
        ('{"verdicts": [{"number": 1, "score": 1}, {"number": 1, "score": 1}]}', "two verdicts for criterion 1"),
        ('{"verdicts": [{"number": true, "score": 1}, {"number": 2, "score": 1}]}', "is for criterion True"),
        ('{"verdicts": ["yes", "no"]}', "a verdict is for criterion None"),
        ('{"verdicts": [{"number": 1, "score": "high"}, {"number": 2, "score": 1}]}', "is 'high', not a number"),
        ('{"verdicts": [{"number": 1, "score": NaN}, {"number": 2, "score": 1}]}', "is nan, not a number"),
        ('{"verdicts": [{"number": 1}, {"number": 2, "score": 1}]}', "is None, not a number"),
        (verdicts(1, 0.5), "it must be 0 or 1"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_an_answer_that_is_no_verdict_on_each_criterion_is_unusable(answer: str, why: str) -> None:
    with pytest.raises(Unusable) as caught:
        read_verdicts(answer, CRITERIA, "rubric_binary")
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("criterion", "raw", "score", "passed"),
    [
        ({}, 0.5, 0.5, True),
        ({}, 0.49, 0.49, False),
        ({}, 7, 1.0, True),
        ({}, -7, 0.0, False),
        ({"pass_threshold": 0.9}, 0.8, 0.8, False),
        ({"outcomes": [{"label": "bad", "score": 0.1}, {"label": "good", "score": 0.9}]}, 0.7, 0.9, True),
        ({"outcomes": [{"label": "no score"}]}, 0.7, 0.7, True),
        ({"outcomes": {"min": {"value": -1.0}, "max": {"value": 1.0}}}, 0.0, 0.5, True),
        ({"outcomes": {"min": {"value": -1.0}, "max": {"value": 1.0}}, "pass_threshold": 0.5}, 0.4, 0.7, False),
        ({"outcomes": {"min": 0, "max": 10}}, 3, 0.3, False),
        ({"outcomes": {"min": 5, "max": 5}}, 0.4, 0.4, False),
        ({"outcomes": {"min": "low", "max": 5}}, 0.4, 0.4, False),
    ],
)
def test_partial_credit_is_brought_between_0_and_1(criterion: Any, raw: float, score: float, passed: bool) -> None:
    (row,) = read_verdicts(verdicts(raw), [{"id": "x", **criterion}], "rubric_partial")
    assert (row["score"], row["raw_score"], row["result"]) == (pytest.approx(score), raw, passed)


@given(st.text(), st.integers(1, 3))
def test_any_text_is_rows_or_unusable(answer: str, count: int) -> None:
    criteria = [{"id": str(number)} for number in range(count)]
    try:
        rows = read_verdicts(answer, criteria, "rubric_partial")
    except Unusable:
        return
    assert len(rows) == count
