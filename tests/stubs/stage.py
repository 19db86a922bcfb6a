"""Plays tasks of a bundle in this process, with real graders that have no packages."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from stubs.stub_bundle import write_stub_bundle, write_stub_env

from agent_env.bundle import Bundle, load_bundle
from agent_env.episode import Deadlines, Episode, EpisodeSpec, Runtime, plan_bundle, plan_task
from agent_env.grading.judge import Judge
from agent_env.grading.pool import GraderPool
from agent_env.sandbox.base import SandboxProvider
from agent_env.sandbox.capacity import Capacity
from agent_env.sandbox.process import ProcessProvider

Steps = list[dict[str, Any]]

ENV = {"id": "env", "type": "deploy_env", "env_id": "stub"}
AGENT = {"id": "agent", "type": "deploy_agent", "env_ids": ["stub"]}
ASK = {"id": "ask", "type": "prompt_agent", "prompt": "Do it.", "prompt_id": "ask"}
GRADE = {
    "id": "grade",
    "type": "env_outcome_verifier",
    "env_id": "stub",
    "file_artifact_id": "verify",
    "score_aggregator": "weighted_average",
}


def a_bundle(
    folder: Path, *steps: Mapping[str, Any], artifacts: Mapping[str, Mapping[str, str]] | None = None, **more: Any
) -> Bundle:
    """The stub's bundle with one task `t`. `artifacts`: texts by path by name; `more`: see `write_stub_bundle`."""
    write_stub_bundle(folder, tasks={"t": [dict(step) for step in steps]}, **more)
    for name, files in (artifacts or {}).items():
        for path, text in files.items():
            file = folder / "artifacts" / name / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
    return load_bundle(folder)


def another_env(folder: Path, name: str, **more: Any) -> None:
    """A second env in a bundle's folder, whose card has that name."""
    write_stub_env(folder / "envs" / name, **more)
    (folder / "envs" / name / "env.toml").write_text(f'environment_name = "{name}"\n')


def problems_of(folder: Path, *steps: Mapping[str, Any], **more: Any) -> tuple[str, ...]:
    """What makes the task wrong, without the file's name."""
    bundle = a_bundle(folder, *steps, **more)
    plan = plan_task(bundle.tasks["t"], bundle)
    return tuple(line.removeprefix("tasks/t.json: ") for line in plan.problems)


def refusals_of(folder: Path, *steps: Mapping[str, Any], **more: Any) -> tuple[str, ...]:
    """Why the task is not run here, without the file's name."""
    bundle = a_bundle(folder, *steps, **more)
    plan = plan_task(bundle.tasks["t"], bundle)
    assert not plan.problems
    return tuple(line.removeprefix("tasks/t.json: ") for line in plan.unsupported)


def warnings_of(folder: Path, *steps: Mapping[str, Any], **more: Any) -> tuple[str, ...]:
    bundle = a_bundle(folder, *steps, **more)
    plan = plan_task(bundle.tasks["t"], bundle)
    return tuple(line.removeprefix("tasks/t.json: ") for line in plan.warnings)


@asynccontextmanager
async def staged(
    bundle: Bundle,
    *,
    provider: SandboxProvider | None = None,
    deadlines: Deadlines | None = None,
    judge: Judge | None = None,
    workers: int = 1,
) -> AsyncIterator[Callable[..., Any]]:
    """A function that starts an episode of a task by name (default `t`)."""
    runtime = Runtime(
        provider or ProcessProvider(),
        capacity=Capacity(8),
        grader=GraderPool(requirements=(), workers=workers),
        judge=judge,
        deadlines=deadlines,
    )
    plans = plan_bundle(bundle)
    try:
        await runtime.prepare_tasks(plans.values())

        async def start(name: str = "t", **more: Any) -> Episode:
            return await EpisodeSpec(plans[name], **more).start(runtime=runtime)

        yield start
    finally:
        await runtime.aclose()
    assert runtime.capacity.snapshot()["running"] == 0


async def played(
    episode: Episode, calls: Sequence[tuple[str, dict[str, Any]]] = (), reply: str = ""
) -> dict[str, float]:
    """Plays every turn the same way; the scores."""
    while (turn := await episode.next_turn()) is not None:
        for name, arguments in calls:
            await turn.call(name, arguments)
        await turn.end(reply)
    return await episode.result()
