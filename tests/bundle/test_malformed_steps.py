# ruff: noqa: E501 - problem lines are shown as they are
"""Malformed bundles: faults of steps, and the exact lines they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

DEPLOY = {"id": "a", "type": "deploy_env", "env_id": "shop"}
RESET = {"id": "b", "type": "reset_env", "env_id": "shop"}


def task(*steps: Any) -> dict[str, Any]:
    return {"tasks/t.json": list(steps)}


ROWS = [
    pytest.param(task({"type": "deploy_env"}), ["tasks/t.json: step 1: id must be a non-empty string"], id="noid"),
    pytest.param(
        task({"id": 5, "type": "x"}), ["tasks/t.json: step 1: id must be a non-empty string, not 5"], id="idnum"
    ),
    pytest.param(
        task({"id": " ", "type": "x"}), ["tasks/t.json: step 1: id must be a non-empty string, not ' '"], id="idempty"
    ),
    pytest.param(
        task(DEPLOY, DEPLOY),
        ["tasks/t.json: step 'a': the id is used twice (again by step 2); ids are unique in a task"],
        id="dup",
    ),
    pytest.param(task({"id": "a"}), ["tasks/t.json: step 'a': type must be a non-empty string"], id="notype"),
    pytest.param(
        task({"id": "a", "type": None}),
        ["tasks/t.json: step 'a': type must be a non-empty string, not null"],
        id="typenull",
    ),
    pytest.param(
        task({**DEPLOY, "version": "1"}),
        ["tasks/t.json: step 'a': version must be a whole number or null, not '1'"],
        id="ver",
    ),
    pytest.param(
        task({**DEPLOY, "version": True}),
        ["tasks/t.json: step 'a': version must be a whole number or null, not true"],
        id="verbool",
    ),
    pytest.param(
        task({**DEPLOY, "fail_task_on_error": "no"}),
        ["tasks/t.json: step 'a': fail_task_on_error must be true or false, not 'no'"],
        id="fail",
    ),
    pytest.param(
        task(DEPLOY, {**RESET, "depends_on": "a"}),
        ["tasks/t.json: step 'b': depends_on must be a list of step ids, not 'a'"],
        id="str",
    ),
    pytest.param(
        task(DEPLOY, {**RESET, "depends_on": [1]}),
        ['tasks/t.json: step \'b\': depends_on takes step ids or {"task_step_id": "<step id>"}, not 1'],
        id="num",
    ),
    pytest.param(
        task(DEPLOY, {**RESET, "depends_on": [{"task_step_id": "a", "x": 1}]}),
        [
            "tasks/t.json: step 'b': depends_on takes step ids or {\"task_step_id\": \"<step id>\"}, not {'task_step_id': 'a', 'x': 1}"
        ],
        id="extra",
    ),
    pytest.param(
        task(DEPLOY, {**RESET, "depends_on": {"task_step_id": "a"}}),
        ["tasks/t.json: step 'b': depends_on must be a list of step ids, not {'task_step_id': 'a'}"],
        id="obj",
    ),
    pytest.param(
        task({**DEPLOY, "depends_on": ["b"]}, RESET),
        ["tasks/t.json: step 'a': depends_on 'b' comes later; a step may depend only on steps before it"],
        id="later",
    ),
    pytest.param(
        task({**DEPLOY, "depends_on": ["a"]}), ["tasks/t.json: step 'a': depends_on names the step itself"], id="self"
    ),
    pytest.param(
        task({**DEPLOY, "id": "deploy"}, {**RESET, "depends_on": ["deplay"]}),
        ["tasks/t.json: step 'b': depends_on 'deplay' names no step of this task; did you mean 'deploy'?"],
        id="unknown",
    ),
    pytest.param(
        task(DEPLOY, {**RESET, "retry_config": []}),
        ["tasks/t.json: step 'b': retry_config must be an object, not []"],
        id="list",
    ),
    pytest.param(
        task(DEPLOY, {**RESET, "retry_config": {}}),
        ["tasks/t.json: step 'b': retry_config needs retry_from_step_id, the id of an earlier step"],
        id="none",
    ),
    pytest.param(
        task(DEPLOY, {**RESET, "retry_config": {"retry_from_step_id": "q"}}),
        ["tasks/t.json: step 'b': retry_config.retry_from_step_id 'q' is no step that this one depends on"],
        id="unknown",
    ),
    pytest.param(
        task(DEPLOY, {**RESET, "depends_on": [], "retry_config": {"go_to_step_id": "a"}}),
        ["tasks/t.json: step 'b': retry_config.retry_from_step_id 'a' is no step that this one depends on"],
        id="nonanc",
    ),
    pytest.param(
        task(DEPLOY, {**RESET, "retry_config": {"retry_from_step_id": "a", "max_retry": 1}}),
        ["tasks/t.json: step 'b': retry_config has an unknown key 'max_retry'; did you mean 'max_retries'?"],
        id="key",
    ),
    pytest.param(
        task(DEPLOY, {**RESET, "retry_config": {"retry_from_step_id": "a", "max_retries": -1}}),
        ["tasks/t.json: step 'b': retry_config.max_retries must be a whole number, 0 or more, not -1"],
        id="max",
    ),
    pytest.param(
        task(DEPLOY, {**RESET, "retry_config": {"retry_from_step_id": "a", "go_to_step_id": "a"}}),
        ["tasks/t.json: step 'b': retry_config takes retry_from_step_id or go_to_step_id, not both"],
        id="both",
    ),
]


@pytest.mark.parametrize(("files", "lines"), ROWS)
def test_each_fault_gives_its_exact_lines(
    files: dict[str, Any], lines: list[str], problems: Callable[[dict[str, Any]], list[str]]
) -> None:
    assert problems(files) == lines
