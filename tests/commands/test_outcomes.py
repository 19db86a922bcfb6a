from __future__ import annotations

import pytest

from agent_env.commands.outcomes import SHOWN, Outcome, Status, Tally, means, status_of, table


@pytest.mark.parametrize(
    ("scores", "failed", "status"),
    [
        ({"a": 1.0}, [], Status.PASSED),
        ({"a": 1.0, "b": 2.0}, [], Status.PASSED),
        ({"a": 1.0, "b": 0.99}, [], Status.BELOW_ONE),
        ({}, [], Status.UNSCORED),
        ({"a": 1.0}, [{"step_id": "x"}], Status.FAILED),
    ],
)
def test_the_status_follows_from_scores_and_failed_steps(
    scores: dict[str, float], failed: list[object], status: Status
) -> None:
    assert status_of(scores, failed) is status


def outcome(task: str, status: Status = Status.PASSED, **more: object) -> Outcome:
    return Outcome(task, "all", 0, status, **more)  # type: ignore[arg-type]


def test_a_table_has_a_line_for_each_task_and_why_it_failed() -> None:
    text = table(
        [
            outcome("good", scores={"grade": 1.0}, turns=1, calls=2, seconds=0.5),
            outcome("two", Status.BELOW_ONE, scores={"a": 0.5, "b": 1.0}),
            outcome("bad", Status.FAILED, kind="env_crashed", reason="exit code 3\nlast words"),
            outcome("step", Status.FAILED, failed_steps=[{"step_id": "load", "error": "refused"}]),
        ]
    )
    head, good, two, bad, step = text.splitlines()
    assert head.split() == ["task", "status", "score", "turns", "calls", "seconds", "note"]
    assert good.split() == ["good", "PASSED", "1.0000", "1", "2", "0.50"]
    assert "a=0.5000 b=1.0000" in two
    assert bad.endswith("env_crashed: exit code 3 last words")
    assert step.endswith("step 'load': refused")


def test_of_many_tasks_only_those_without_a_score_are_listed() -> None:
    many = [outcome(f"t{n}", scores={"grade": 1.0}) for n in range(SHOWN)]
    text = table([*many, outcome("bad", Status.FAILED, kind="policy", reason="no idea")])
    assert "bad" in text
    assert "t5 " not in text
    assert f"({SHOWN} more tasks are not listed)" in text


def test_a_long_reason_is_cut() -> None:
    assert len(outcome("t", Status.FAILED, kind="model", reason="x" * 1000).note) == 160


def test_the_tally_counts_by_status_and_takes_the_mean_of_measured_tasks() -> None:
    tally = Tally(4)
    assert str(tally) == "0/4 tasks"
    for each in (
        outcome("a", scores={"g": 1.0}),
        outcome("b", Status.BELOW_ONE, scores={"g": 0.0, "h": 1.0}),
        outcome("c", Status.FAILED, scores={"g": 0.0}),
    ):
        tally.add(each)
    assert str(tally) == "3/4 tasks: 1 PASSED, 1 BELOW_ONE, 1 FAILED, mean score 0.7500"


def test_means_are_taken_by_step() -> None:
    found = means([outcome("a", scores={"g": 1.0, "h": 0.0}), outcome("b", scores={"g": 0.0})])
    assert found == {"g": 0.5, "h": 0.0}
