from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stubs.stub_bundle import stub_task, write_stub_bundle

from agent_env.bundle import load_bundle
from agent_env.episode import EpisodeSpec, plan_bundle, plan_task
from agent_env.errors import BundleError, EpisodeError


def changed(step: str, **fields: Any) -> list[dict[str, Any]]:
    """The stub's task with keys of one step set, or taken out where the value is None."""
    steps = stub_task(0.5)
    for item in steps:
        if item["id"] == step:
            item.update(fields)
            for key in [key for key, value in item.items() if value is None]:
                del item[key]
    return steps


def problems_of(folder: Path, steps: list[dict[str, Any]]) -> tuple[str, ...]:
    bundle = load_bundle(write_stub_bundle(folder / "b", tasks={"t": steps}))
    with pytest.raises(BundleError) as caught:
        plan_bundle(bundle)
    return caught.value.problems


@pytest.mark.parametrize(
    ("step", "fields", "expected"),
    [
        ("env", {"type": "deploy_envv"}, "unknown step type 'deploy_envv'; did you mean 'deploy_env'?"),
        ("env", {"env_id": "stubb"}, "env_id: no env 'stubb' in this bundle; did you mean 'stub'?"),
        ("env", {"env_id": None}, "env_id is required"),
        ("env", {"env_id": 3}, "env_id: input should be a valid string"),
        (
            "load",
            {"directives": [{"service": "other", "uri": "u"}]},
            "directives.0: env 'stub' serves 'stub', not 'other'",
        ),
        ("load", {"directives": [{}]}, "directives.0.uri is required"),
        ("agent", {"env_ids": ["none"]}, "env_ids: no env 'none' in this bundle"),
        ("ask", {"prompt": None}, "give either prompt or parts"),
        ("ask", {"timeout_seconds": 0}, "timeout_seconds must be above 0"),
        ("ask", {"agent_name": "bob"}, "agent_name: no earlier deploy_agent step deploys 'bob'"),
        ("grade", {"file_artifact_id": "x"}, "file_artifact_id: no artifact 'x' in this bundle"),
        (
            "grade",
            {"score_aggregator": "mean"},
            "score_aggregator: input should be 'all_pass', 'any_pass' or 'weighted_average'",
        ),
        ("grade", {"prompt_id": "p"}, "prompt_id: no earlier prompt_agent step has prompt_id 'p'"),
    ],
)
def test_a_wrong_step_is_named_with_its_file_and_id(
    tmp_path: Path, step: str, fields: dict[str, Any], expected: str
) -> None:
    assert f"tasks/t.json: step {step!r}: {expected}" in problems_of(tmp_path, changed(step, **fields))


def test_all_problems_of_all_tasks_come_together(tmp_path: Path) -> None:
    tasks = {"a": changed("env", type="x_y_z"), "b": changed("grade", file_artifact_id="q")}
    bundle = load_bundle(write_stub_bundle(tmp_path / "b", tasks=tasks))
    with pytest.raises(BundleError) as caught:
        plan_bundle(bundle)
    assert {line.split(":")[0] for line in caught.value.problems} == {"tasks/a.json", "tasks/b.json"}


@pytest.mark.parametrize(
    ("step", "fields", "expected"),
    [
        ("env", {"type": "run_code"}, "step type 'run_code' is not run here"),
        ("env", {"sandbox_type": "modal"}, "sandbox_type 'modal' is not run here"),
        ("ask", {"parts": [{"kind": "text"}], "prompt": None}, "parts is not run here"),
        ("ask", {"max_conversation_turns": 3}, "a simulated user (max_conversation_turns) is not run here"),
        ("agent", {"skills": ["x"]}, "skills needs the agent's own sandbox"),
    ],
)
def test_what_only_the_original_runs_is_refused_by_name(
    tmp_path: Path, step: str, fields: dict[str, Any], expected: str
) -> None:
    bundle = load_bundle(write_stub_bundle(tmp_path / "b", tasks={"t": changed(step, **fields)}))
    plan = plan_task(bundle.tasks["t"], bundle)
    assert any(expected in line for line in plan.unsupported), plan.unsupported
    if step != "env" or "sandbox_type" in fields:
        with pytest.raises(EpisodeError, match="can't run as an episode"):
            EpisodeSpec.from_task(bundle.tasks["t"])


def test_unknown_keys_are_warnings_that_propose_the_right_one(tmp_path: Path) -> None:
    steps = changed("ask", timeout_second=5, comment="x", model="m")
    bundle = load_bundle(write_stub_bundle(tmp_path / "b", tasks={"t": steps}))
    plan = plan_task(bundle.tasks["t"], bundle)
    assert plan.warnings == (
        "tasks/t.json: step 'ask': key 'model' has no effect here",
        "tasks/t.json: step 'ask': unknown key 'timeout_second'; did you mean 'timeout_seconds'?",
        "tasks/t.json: step 'ask': unknown key 'comment'",
    )
    assert not plan.problems


def test_a_plan_knows_prompts_toolset_and_scoring_steps(tmp_path: Path) -> None:
    steps = stub_task(0.5, prompts=("one", "two"))
    steps[2]["role"] = "operator"
    steps[4]["system_prompt"] = "Other."
    bundle = load_bundle(write_stub_bundle(tmp_path / "b", tasks={"t": steps}))
    plan = plan_task(bundle.tasks["t"], bundle)
    assert plan.prompts == (("one", "You test stubs."), ("two", "Other."))
    assert plan.toolset == "stub|role=operator"
    assert plan.scoring == ("grade",)
    assert plan.env_names == ("stub",)


def test_a_seed_replaces_its_placeholders_in_every_string(tmp_path: Path) -> None:
    steps = changed("ask", prompt="Refund <order>.")
    bundle = load_bundle(write_stub_bundle(tmp_path / "b", tasks={"t": steps}))
    assert EpisodeSpec.from_task(bundle.tasks["t"], seed={"order": "17"}).prompts[0][0] == "Refund 17."
