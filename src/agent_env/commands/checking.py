"""What `agent-env check` does: read, look at the machine, build, play each toolset once, say what would fail."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from agent_env.bundle import Bundle, Env, load_bundle
from agent_env.commands.episodes import Ground
from agent_env.commands.forkcheck import compare_forks
from agent_env.commands.inspection import faults, inspect, trainable
from agent_env.commands.players import Player
from agent_env.commands.rehearsal import Rehearsed, rehearse
from agent_env.commands.selection import Chosen, choose
from agent_env.episode import Runtime, TaskPlan
from agent_env.episode.plan import plan_task
from agent_env.errors import AgentEnvError, BundleError, EpisodeFailure
from agent_env.findings import Finding, Level, error
from agent_env.sandbox import choose_provider
from agent_env.sandbox.base import Prepared, SandboxProvider
from agent_env.sandbox.capacity import Capacity
from agent_env.sandbox.preflight import build, preflight
from agent_env.steps.grade import EnvOutcomeVerifier

Json = Any
Say = Callable[[str], None]


@dataclass(slots=True)
class Report:
    """What was done and found."""

    bundle: str
    digest: str | None = None
    tasks: int = 0
    sandbox: str | None = None
    concurrency: int = 0
    done: list[str] = field(default_factory=list)
    """a line for each thing that is right"""
    notes: list[str] = field(default_factory=list)
    """what was not looked at"""
    findings: list[Finding] = field(default_factory=list)
    played: list[Rehearsed] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Nothing would fail."""
        return not any(finding.level is Level.ERROR for finding in self.findings)

    def as_json(self) -> dict[str, Json]:
        record = asdict(self)
        for played in record["played"]:
            del played["findings"]
            played["seconds"] = round(played["seconds"], 3)
        return {"ok": self.ok, **record}


@dataclass(frozen=True, slots=True)
class Check:
    """What was asked for."""

    bundle: str
    ground: Ground
    reward: str | None = None
    every_task: bool = False


async def check_bundle(asked: Check, player: Player | None, say: Say) -> Report:
    """Never raises for what is wrong with the bundle or the machine: the report says it.

    Raises:
        ConfigError: a flag is wrong.
    """
    report = Report(asked.bundle, concurrency=asked.ground.places)
    try:
        bundle = load_bundle(asked.bundle)
    except BundleError as wrong:
        report.findings += faults(wrong)
        return report
    report.bundle, report.digest, report.tasks = bundle.name, bundle.digest, len(bundle.tasks)
    plans = {name: plan_task(task, bundle) for name, task in bundle.tasks.items()}
    report.findings += inspect(bundle, plans, asked.reward)
    if any(plan.problems for plan in plans.values()) or not plans:
        return report
    report.done.append(
        f"read {_count(len(plans), 'task')}, {_count(len(bundle.envs), 'env')}, {_count(len(bundle.evals), 'eval')}"
    )
    try:
        provider = await choose_provider(asked.ground.sandbox, **asked.ground.options)
    except EpisodeFailure as failure:
        report.findings.append(error(asked.ground.sandbox, failure.reason, failure.kind.remedy))
        return report
    report.sandbox = provider.name
    try:
        await _on(provider, _Look(asked, bundle, plans, report, player, say))
    finally:
        await provider.aclose()
    return report


@dataclass(frozen=True, slots=True)
class _Look:
    asked: Check
    bundle: Bundle
    plans: Mapping[str, TaskPlan]
    report: Report
    player: Player | None
    say: Say


async def _on(provider: SandboxProvider, look: _Look) -> None:
    report, places = look.report, look.asked.ground.places
    runnable = [plan for plan in look.plans.values() if not plan.unsupported]
    envs = list({env.digest: env for plan in runnable for env in plan.envs}.values())
    found = await preflight(provider, envs, places=places)
    report.findings += found
    if not any(finding.level is Level.ERROR for finding in found):
        report.done.append(f"this machine takes {_count(places, 'episode')} at once ({provider.name} sandbox)")
    prepared = await _build(provider, envs, look)
    playable = [plan for plan in runnable if all(env.digest in prepared for env in plan.envs)]
    places = min(places, os.cpu_count() or 1)
    runtime = Runtime(
        provider,
        capacity=Capacity(places, look.asked.ground.starting),
        deadlines=look.asked.ground.deadlines,
        prepared=prepared,
        close_provider=False,
    )
    try:
        chosen = [chosen for chosen in _chosen(look, playable) if _can_be_judged(chosen.plan, runtime, report)]
        if chosen and await _graders(runtime, [task.plan for task in chosen], look):
            await _play(chosen, runtime, look)
            await _compare_forks(chosen, runtime, look)
    finally:
        await runtime.aclose()


async def _build(provider: SandboxProvider, envs: list[Env], look: _Look) -> dict[str, Prepared]:
    prepared: dict[str, Prepared] = {}
    for env in envs:
        look.say(f"building env {env.name} ({provider.name} sandbox)")
        started = time.perf_counter()
        made, found = await build(provider, [env])
        prepared |= made
        look.report.findings += found
        if made:
            look.report.done.append(f"env {env.name} is built ({time.perf_counter() - started:.1f} s)")
    return prepared


async def _graders(runtime: Runtime, plans: list[TaskPlan], look: _Look) -> bool:
    look.say("building what graders need")
    try:
        await runtime.prepare_tasks(plans)
    except AgentEnvError as wrong:
        remedy = wrong.kind.remedy if isinstance(wrong, EpisodeFailure) else "put it right there"
        look.report.findings.append(error("graders", str(wrong), remedy))
        return False
    return True


def _can_be_judged(plan: TaskPlan, runtime: Runtime, report: Report) -> bool:
    problems = [(step.id, why) for step, model in plan.judged if (why := model.judge_problem(runtime.judge))]
    for step, why in problems:
        report.findings.append(error(f"{plan.task.source}: step {step!r}", why, "set the judge where this runs"))
    return not problems


def _chosen(look: _Look, playable: list[TaskPlan]) -> list[Chosen]:
    """Every task, or the first of each toolset; tasks that no agent plays by what they deploy."""
    selection = choose(look.bundle, look.plans, tasks=list(look.bundle.tasks))
    kept = {plan.task.name for plan in playable}
    tasks = [task for task in selection.tasks if task.name in kept]
    if look.asked.every_task:
        return tasks
    first: dict[tuple[bool, str], Chosen] = {}
    for task in tasks:
        plan = task.plan
        named = plan.toolset if trainable(plan) else " ".join(env.digest for env in plan.envs)
        first.setdefault((trainable(plan), named), task)
    return list(first.values())


async def _play(tasks: list[Chosen], runtime: Runtime, look: _Look) -> None:
    jobs = iter(tasks)

    async def worker() -> None:
        for task in jobs:
            look.say(f"playing {task.name}")
            look.report.played.append(await rehearse(task, runtime, look.player))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(runtime.capacity.places, len(tasks))):
            group.create_task(worker())
    _note_graders(tasks, look)
    order = {task.name: place for place, task in enumerate(tasks)}
    look.report.played.sort(key=lambda played: order[played.task])
    for played in look.report.played:
        look.report.findings += played.findings
        if not any(finding.level is Level.ERROR for finding in played.findings):
            look.report.done.append(_line(played))


async def _compare_forks(tasks: list[Chosen], runtime: Runtime, look: _Look) -> None:
    for task in tasks:
        envs = [runtime.prepared[env.digest].env for env in task.plan.envs]
        if not any(env.settings.isolation == "fork" for env in envs):
            continue
        look.say(f"playing {task.name} in two forks, and in sandboxes of its own")
        found = await compare_forks(task, runtime)
        look.report.findings += found
        if not found:
            look.report.done.append(f"task {task.name} is the same in two forks at once as in a sandbox of its own")


def _note_graders(tasks: list[Chosen], look: _Look) -> None:
    """A toolset's tasks may each have a grader of their own."""
    ran = {grader for task in tasks for grader in _grader_files(task.plan)}
    others = {grader for plan in look.plans.values() if trainable(plan) for grader in _grader_files(plan)} - ran
    if others:
        count = f"{len(others)} other graders were" if len(others) > 1 else "another grader was"
        look.report.notes.append(f"{count} not run ({', '.join(sorted(others)[:3])}, ...): --all plays every task")


def _grader_files(plan: TaskPlan) -> list[str]:
    return [p.model.file_artifact_id for p in plan.steps if isinstance(p.model, EnvOutcomeVerifier)]


def _count(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _line(played: Rehearsed) -> str:
    tools = f" with {_count(len(played.tools), 'tool')}" if played.tools else ""
    scores = ", ".join(f"{step} {score:.4f}" for step, score in played.scores.items())
    graded = f"graded twice alike ({scores})" if scores else "no score"
    return f"task {played.task} played{tools} in {played.seconds:.1f} s, {graded}"
