"""What can be said of a bundle before anything runs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from agent_env.bundle import Bundle
from agent_env.episode import TaskPlan
from agent_env.errors import BundleError, ConfigError
from agent_env.findings import Finding, Level, error, warning
from agent_env.training.nemo_gym.names import check_split, folder_name

_STEP = re.compile(r"(.*?: step '.*?'): (.*)", re.DOTALL)
_FIELDS = "docs/bundles.md lists the step types and their fields"


def faults(wrong: BundleError) -> list[Finding]:
    """Of a bundle that can't be read."""
    return [error(*_place(line), "put it right there") for line in wrong.problems]


def inspect(bundle: Bundle, plans: Mapping[str, TaskPlan], reward: str | None) -> list[Finding]:
    """Problems of the steps, tasks that training leaves out, rewards that can't be had, names that clients refuse.

    The same problem of many tasks is one finding.
    """
    found = [finding for plan in plans.values() for finding in _task(plan, reward)]
    if plans and not any(trainable(plan) for plan in plans.values()):
        found.append(
            error("tasks/", "no task can be played in training", "one needs a prompt_agent step, and steps that run")
        )
    if not plans:
        found.append(error("tasks/", "the bundle has no task", "write tasks/<name>.json"))
    return [*grouped(found), *_names(bundle)]


def trainable(plan: TaskPlan) -> bool:
    """Does a server offer it to trainers?"""
    return bool(plan.prompts) and not plan.unsupported and not plan.problems


def grouped(findings: Iterable[Finding]) -> list[Finding]:
    """Each problem once, at the first place that has it."""
    first: dict[tuple[Level, str, str], Finding] = {}
    counts: Counter[tuple[Level, str, str]] = Counter()
    for finding in findings:
        key = (finding.level, finding.problem, finding.remedy)
        first.setdefault(key, finding)
        counts[key] += 1
    return [replace(finding, more=counts[key] - 1) for key, finding in first.items()]


def _task(plan: TaskPlan, reward: str | None) -> Iterator[Finding]:
    for line in plan.problems:
        yield error(*_place(line), _FIELDS)
    for line in plan.warnings:
        if line in plan.unknown_keys:
            yield error(*_place(line), "remove the key, or spell it right: a key that nobody knows is not read")
        else:
            yield warning(*_place(line), "change it where you count on it")
    for line in plan.unsupported:
        yield warning(*_place(line), "servers leave the task out of training")
    if plan.problems or plan.unsupported:
        return
    if not plan.prompts:
        yield warning(
            plan.task.source,
            "it prompts no agent, so servers leave it out of training",
            "add a prompt_agent step; agent-env run plays it as it is",
        )
    yield from _reward(plan, reward)


def _reward(plan: TaskPlan, reward: str | None) -> Iterator[Finding]:
    where, steps = plan.task.source, ", ".join(plan.scoring)
    if not plan.scoring:
        problem = "it can't be scored: none of its steps is a grader"
        remedy = "add one, such as env_outcome_verifier"
        yield error(where, problem, remedy) if plan.prompts else warning(where, problem, remedy)
    elif reward is not None and reward not in plan.scoring and plan.prompts:
        yield error(where, f"--reward {reward}: it has no such scoring step (it has {steps})", "choose another step")
    elif reward is None and len(plan.scoring) > 1 and plan.prompts:
        yield warning(
            where,
            f"it has several scoring steps ({steps})",
            "choose its reward: --reward STEP, here and of agent-env serve",
        )


def _names(bundle: Bundle) -> Iterator[Finding]:
    """What the writer of rows and NeMo Gym make of the bundle's names."""
    try:
        folder_name(bundle.name)
    except ConfigError as wrong:
        yield warning(bundle.name, str(wrong), "the writer needs --name then")
    for name in bundle.evals:
        try:
            check_split(name)
        except ConfigError as wrong:
            yield warning(f"evals/{name}.toml", str(wrong), "no rows can be written for it as it is")


def _place(line: str) -> tuple[str, str]:
    """Where a problem line is, with the step where it names one, and what it says."""
    if match := _STEP.fullmatch(line):
        return match[1], match[2]
    where, _, problem = line.partition(": ")
    return (where, problem) if problem else ("bundle", where)
