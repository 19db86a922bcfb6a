from __future__ import annotations

from pathlib import Path
from typing import Any

from stubs.stub_bundle import stub_task, write_stub_bundle

from agent_env.bundle import load_bundle
from agent_env.commands.inspection import faults, inspect
from agent_env.episode.plan import plan_task
from agent_env.errors import BundleError
from agent_env.findings import Finding, Level


def found(folder: Path, *, reward: str | None = None, **bundle: Any) -> list[Finding]:
    loaded = load_bundle(write_stub_bundle(folder / bundle.pop("name", "stub-v1"), **bundle))
    plans = {name: plan_task(task, loaded) for name, task in loaded.tasks.items()}
    return inspect(loaded, plans, reward)


def task(*, without: tuple[str, ...] = (), **changes: Any) -> list[dict[str, Any]]:
    """`changes`: more fields by step id."""
    return [{**step, **changes.get(step["id"], {})} for step in stub_task(0.5) if step["type"] not in without]


def test_a_good_bundle_has_no_finding(tmp_path: Path) -> None:
    assert found(tmp_path) == []


def test_a_fault_of_reading_is_placed_at_its_file() -> None:
    wrong = BundleError(["tasks/a.json: step 'x': type must be a non-empty string", "envs/b: no Dockerfile: write one"])
    places = [(finding.level, finding.where, finding.problem) for finding in faults(wrong)]
    assert places == [
        (Level.ERROR, "envs/b", "no Dockerfile: write one"),
        (Level.ERROR, "tasks/a.json: step 'x'", "type must be a non-empty string"),
    ]


def test_an_unknown_key_is_an_error_here_and_told_once(tmp_path: Path) -> None:
    tasks = {f"t{n}": task(ask={"max_turnz": 3}) for n in range(5)}
    (finding,) = found(tmp_path, tasks=tasks)
    assert (finding.level, finding.where, finding.more) == (Level.ERROR, "tasks/t0.json: step 'ask'", 4)
    assert finding.problem == "unknown key 'max_turnz'; did you mean 'max_turns'?"
    assert "remove the key" in finding.remedy
    assert "(and 4 more alike)" in str(finding)


def test_a_key_without_effect_is_a_warning(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, tasks={"t": task(env={"ttl_seconds": 60})})
    assert (finding.level, finding.problem) == (Level.WARNING, "key 'ttl_seconds' has no effect here")


def test_a_problem_of_a_step_is_placed_at_the_step(tmp_path: Path) -> None:
    finding = found(tmp_path, tasks={"t": task(grade={"env_id": "stob"})})[0]
    assert (finding.level, finding.where) == (Level.ERROR, "tasks/t.json: step 'grade'")
    assert "did you mean 'stub'" in finding.problem


def test_a_task_that_is_not_run_here_is_left_out(tmp_path: Path) -> None:
    tasks = {"good": task(), "bad": [*task(), {"id": "stop", "type": "review"}]}
    (finding,) = found(tmp_path, tasks=tasks)
    assert (finding.level, finding.where) == (Level.WARNING, "tasks/bad.json: step 'stop'")
    assert "leave the task out of training" in finding.remedy


def test_a_task_that_can_not_be_scored_is_an_error(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, tasks={"t": task(without=("env_outcome_verifier",))})
    assert (finding.level, finding.where) == (Level.ERROR, "tasks/t.json")
    assert "can't be scored" in finding.problem


def test_a_bundle_of_which_nothing_can_be_trained_on_is_an_error(tmp_path: Path) -> None:
    warned, none = found(tmp_path, tasks={"t": task(without=("deploy_agent", "prompt_agent"))})
    assert (warned.level, warned.where) == (Level.WARNING, "tasks/t.json")
    assert "prompts no agent" in warned.problem
    assert (none.level, none.problem) == (Level.ERROR, "no task can be played in training")


def test_several_scores_need_a_choice(tmp_path: Path) -> None:
    tasks = {"t": [*task(), {**stub_task(0)[-1], "id": "second", "verifier_id": "second"}]}
    (finding,) = found(tmp_path / "none", tasks=tasks)
    assert (finding.level, finding.problem) == (Level.WARNING, "it has several scoring steps (grade, second)")
    assert found(tmp_path / "one", tasks=tasks, reward="second") == []
    (finding,) = found(tmp_path / "wrong", tasks=tasks, reward="third")
    assert finding.level is Level.ERROR
    assert "no such scoring step (it has grade, second)" in finding.problem


def test_names_that_the_writer_refuses_are_told(tmp_path: Path) -> None:
    server, split = found(tmp_path, name="calendar", evals={"example": ["train-0000"]})
    assert (server.where, server.level) == ("calendar", Level.WARNING)
    assert "--name calendar_env" in server.problem
    assert split.where == "evals/example.toml"


def test_a_bundle_without_tasks_is_an_error(tmp_path: Path) -> None:
    (finding,) = found(tmp_path, tasks={}, evals={})
    assert finding.problem == "the bundle has no task"
