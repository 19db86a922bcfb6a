"""A bundle whose tasks each have a fault of their own in the env, the load, the turn or the grader."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stubs.stub_bundle import stub_task, write_stub_bundle, write_stub_env

SLOW = 60
"""seconds of what is too slow: no deadline of these tests is half as long"""

GRADERS = {
    "raises": "async def verify(mcp_url):\n    raise RuntimeError('the grader is broken')\n",
    "hangs": f"import time\n\n\nasync def verify(mcp_url):\n    time.sleep({SLOW})\n",
    "ends": "import os\n\n\nasync def verify(mcp_url):\n    os._exit(7)\n",
    "nan": "async def verify(mcp_url):\n    return [{'id': 'x', 'result': True, 'score': float('nan')}]\n",
    "texts": "async def verify(mcp_url):\n    return [{'id': 'x', 'result': True, 'score': 'high'}]\n",
}


@dataclass(frozen=True)
class TaskFault:
    """What is wrong with a task; by default nothing."""

    env: str = "stub"
    load: Any = 0.75
    load_timeout: float | None = None
    turn_timeout: float | None = None
    grader: str = "verify"


def write_fault_bundle(folder: Path, tasks: Mapping[str, TaskFault]) -> Path:
    """One task for each name, in that order in the eval `faults`; the eval `probe` holds the sound task `sound`.

    A task's prompt is its name. The env `exits` ends at its start, `late` takes longer than its `start_timeout`, and
    `stuck` never finishes a load.
    """
    steps = {name: _steps(name, fault) for name, fault in tasks.items()} | {"sound": _steps("sound", TaskFault())}
    write_stub_bundle(folder, tasks=steps, evals={"probe": ["sound"], "faults": list(tasks)})
    write_stub_env(folder / "envs" / "exits", env_vars={"STUB_EXIT_AT_START": "4"})
    write_stub_env(folder / "envs" / "late", env_vars={"STUB_START_DELAY": str(SLOW)}, settings="start_timeout = 1.5")
    write_stub_env(folder / "envs" / "stuck", env_vars={"STUB_LOAD_DELAY": str(SLOW)})
    for name, source in GRADERS.items():
        (folder / "artifacts" / name).mkdir()
        (folder / "artifacts" / name / "verify.py").write_text(source)
    return folder


def _steps(name: str, fault: TaskFault) -> list[dict[str, Any]]:
    steps = stub_task(fault.load, prompts=(name,))
    for step in steps:
        if "env_id" in step:
            step["env_id"] = fault.env
        if step["type"] == "deploy_agent":
            step["env_ids"] = [fault.env]
        elif step["type"] == "apply_server_config" and fault.load_timeout is not None:
            step["timeout_seconds"] = fault.load_timeout
        elif step["type"] == "prompt_agent" and fault.turn_timeout is not None:
            step["timeout_seconds"] = fault.turn_timeout
        elif step["type"] == "env_outcome_verifier":
            step["file_artifact_id"] = fault.grader
    return steps
