"""A bundle the size of a training set is read and planned while nobody has to wait."""

from __future__ import annotations

import time
from pathlib import Path

from agent_env.bundle import load_bundle
from agent_env.episode import plan_bundle
from agent_env.examples.gridsim.bundle import write_bundle

TASKS = 2_200
SECONDS = 2.0


def test_2200_tasks_are_read_and_planned_in_two_seconds(tmp_path: Path) -> None:
    folder = tmp_path / "gridsim-v1"
    write_bundle(folder)
    taken = []
    for _ in range(3):  # the best of three: other work on the machine is not ours
        begun = time.perf_counter()
        plans = plan_bundle(load_bundle(folder))
        taken.append(time.perf_counter() - begun)
    assert len(plans) == TASKS
    assert all(plan.prompts and not plan.unsupported for plan in plans.values())
    assert min(taken) < SECONDS, taken
