"""What a check finds of an env that forks don't suit."""

from __future__ import annotations

from pathlib import Path

import pytest
from stubs.stub_bundle import stub_task, write_stub_bundle

from agent_env.bundle import load_bundle
from agent_env.commands.forkcheck import compare_forks
from agent_env.commands.selection import choose
from agent_env.episode import Runtime, plan_bundle
from agent_env.findings import Finding, Level
from agent_env.grading.pool import GraderPool
from agent_env.sandbox import Isolating
from agent_env.sandbox.capacity import Capacity
from agent_env.sandbox.process import ProcessProvider

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


LOOK = 'return structured({"loaded": STATE["loaded"], "submission": STATE["submission"]})'
FORKED = "'_agent_env_keeper' in sys.modules"
TOOLS = '[{"name": "look", "inputSchema": {"type": "object"}}]'


async def compared(folder: Path, isolation: str = "fork", *, replaced: tuple[str, str] = ("", "")) -> list[Finding]:
    path = write_stub_bundle(folder / "b", tasks={"t": stub_task(0.5)}, env_vars={"STUB_TOOLS": TOOLS})
    server = path / "envs" / "stub" / "server.py"
    old, new = replaced
    assert old in server.read_text()
    server.write_text(server.read_text().replace(old, new, 1) if old else server.read_text())
    loaded = load_bundle(path)
    runtime = Runtime(
        Isolating(ProcessProvider(), isolation),
        capacity=Capacity(2),
        grader=GraderPool(requirements=(), workers=1),
    )
    try:
        (task,) = choose(loaded, plan_bundle(loaded)).tasks
        await runtime.prepare_tasks([task.plan])
        return await compare_forks(task, runtime)
    finally:
        await runtime.aclose()


async def test_an_env_that_is_the_same_in_a_fork_is_fine(tmp_path: Path) -> None:
    assert await compared(tmp_path) == []


async def test_where_nothing_is_forked_nothing_is_compared(tmp_path: Path) -> None:
    assert await compared(tmp_path, "container", replaced=(LOOK, f"return text(str({FORKED}))")) == []


async def test_a_tool_that_answers_differently_in_a_fork_is_an_error(tmp_path: Path) -> None:
    (found,) = await compared(tmp_path, replaced=(LOOK, f"return text(str({FORKED}))"))
    assert found.level is Level.ERROR
    assert found.where == "envs/stub"
    assert "tool 'look': in a fork 'True', in a sandbox of its own 'False'" in found.problem
    assert 'isolation = "container"' in found.remedy


async def test_what_differs_each_time_is_not_the_forks_doing(tmp_path: Path) -> None:
    assert await compared(tmp_path, replaced=(LOOK, "return text(str(time.time_ns()))")) == []


async def test_an_env_that_fails_only_in_a_fork_is_an_error(tmp_path: Path) -> None:
    (found,) = await compared(tmp_path, replaced=(LOOK, f"os._exit(9) if {FORKED} else None; {LOOK}"))
    assert found.level is Level.ERROR
    assert "fails in a fork, and not in a sandbox of its own: env_crashed" in found.problem
