"""The workflows run what is there: targets of the Makefile, variables that are read, files that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[1]
WORKFLOWS = sorted((REPOSITORY / ".github" / "workflows").glob("*.yml"))


def steps(workflow: Path) -> list[dict[str, Any]]:
    jobs = yaml.safe_load(workflow.read_text("utf-8"))["jobs"]
    return [step for job in jobs.values() for step in job["steps"]]


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.name)
def test_what_a_workflow_runs_exists(workflow: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text("utf-8"), re.MULTILINE))
    commands = "\n".join(step.get("run", "") for step in steps(workflow))
    named = re.findall(r"\bmake ([a-z-]+)", commands)
    assert named or ".ci/run" in commands
    assert set(named) <= targets
    for file in re.findall(r"(?:^|\s)((?:\.ci|tests|examples)/[\w./-]+)", commands):
        assert (REPOSITORY / file).is_file(), file


def test_the_clients_are_chosen_by_variables_that_are_read() -> None:
    """tests/clients/chosen.py makes them of the package's name."""
    workflow = REPOSITORY / ".github/workflows/clients.yml"
    (play,) = [step for step in steps(workflow) if "test-clients" in step.get("run", "")]
    assert set(play["env"]) == {"AGENT_ENV_VERIFIERS", "AGENT_ENV_NEMO_GYM"}
