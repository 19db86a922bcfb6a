"""Plays a task once to see what would fail in training: its env, its tools, its graders."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from agent_env.commands.players import Player
from agent_env.commands.samples import sample
from agent_env.commands.seat import Seat
from agent_env.commands.selection import Chosen
from agent_env.commands.toolcheck import check_tools
from agent_env.episode import Episode, EpisodeFailure, EpisodeSpec, Runtime, TaskPlan, Turn
from agent_env.episode.plan import PlannedStep
from agent_env.errors import AgentEnvError, FailureKind
from agent_env.findings import Finding, error, warning
from agent_env.steps.grade import EnvOutcomeVerifier, GraderStep
from agent_env.steps.rubrics import RubricsVerifier

Json = Any

CALL_TIMEOUT = 60.0
"""seconds for a tool call with made-up arguments"""
_AGAIN = " (again)"
_STEP = re.compile(r"step '(.*?)': (.*)", re.DOTALL)


@dataclass(slots=True)
class Rehearsed:
    """What one task showed."""

    task: str
    toolset: str
    tools: tuple[str, ...] = ()
    scores: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    timings: Mapping[str, float] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)


async def rehearse(task: Chosen, runtime: Runtime, player: Player | None) -> Rehearsed:
    """Plays it with the player, or else by calling each tool once with made-up arguments, and grades it twice.

    When such a call ends the episode, the task is played again without calls, for its graders' sake.
    """
    found = Rehearsed(task.name, task.plan.toolset)
    started = time.perf_counter()
    if not await _play(task, runtime, player, found, calls=True) and player is None and found.tools:
        await _play(task, runtime, None, found, calls=False)
    found.seconds = time.perf_counter() - started
    _look_at_times(task, runtime, found)
    return found


async def _play(task: Chosen, runtime: Runtime, player: Player | None, found: Rehearsed, *, calls: bool) -> bool:
    """False when a made-up call ended it."""
    episode = await EpisodeSpec(graded_twice(task.plan)).start(runtime=runtime)
    try:
        first = await episode.next_turn()
        if first is not None:
            await _play_turns(task, episode, first, player, found, calls=calls)
        scores = await episode.result()
    except _CallFailed as failed:
        found.findings.append(failed.finding)
        return False
    except EpisodeFailure as failure:
        found.findings.append(_failure(task.plan, failure))
    except AgentEnvError as fault:
        found.findings.append(error(task.plan.task.source, str(fault), "see what the player did"))
    else:
        found.scores = {step: score for step, score in scores.items() if not step.endswith(_AGAIN)}
        found.findings += _look_at_scores(task.plan, scores)
    finally:
        await episode.abandon("the check is over")
        found.timings = episode.timings
    found.findings += [_failed_step(task.plan, step) for step in episode.failed_steps]
    return True


async def _play_turns(
    task: Chosen, episode: Episode, first: Turn, player: Player | None, found: Rehearsed, *, calls: bool
) -> None:
    where = _envs(task.plan)
    if not found.tools:
        found.tools = tuple(tool.name for tool in first.list())
        found.findings += check_tools(first.list(), where)
    if player is not None:
        await player.play(Seat(episode, first), task)
        return
    turn: Turn | None = first
    while turn is not None:
        if calls and turn is first:
            await _call_each(turn, where)
        await turn.end("")
        turn = await episode.next_turn()


class _CallFailed(Exception):
    """A made-up tool call ended the episode."""

    def __init__(self, finding: Finding) -> None:
        self.finding = finding


async def _call_each(turn: Turn, where: str) -> None:
    for tool in turn.list():
        arguments = sample(tool.input_schema)
        try:
            await turn.call(tool.name, arguments, timeout=CALL_TIMEOUT)
        except EpisodeFailure as failure:
            shown = json.dumps(arguments)
            problem = f"a call with {shown[:200]} ended the episode: {failure.kind.value}: {failure.reason}"
            remedy = f"a model that calls it so has its rollout masked: {failure.kind.remedy}"
            raise _CallFailed(error(f"{where}: tool {tool.name!r}", problem, remedy)) from failure


def graded_twice(plan: TaskPlan) -> TaskPlan:
    """The plan with each grader followed by a copy of itself; whatever comes after the one waits for the copy too."""
    copies = {p.step.id: f"{p.step.id}{_AGAIN}" for p in plan.steps if isinstance(p.model, GraderStep)}
    steps: list[PlannedStep] = []
    for planned in plan.steps:
        step = planned.step
        after = [name for before in step.depends_on for name in (before, copies.get(before)) if name is not None]
        steps.append(replace(planned, step=replace(step, depends_on=tuple(after))))
        if step.id in copies:
            again = replace(step, id=copies[step.id], depends_on=(step.id,))
            steps.append(PlannedStep(again, planned.model.model_copy(update={"verifier_id": None})))
    return replace(plan, steps=tuple(steps))


def _look_at_scores(plan: TaskPlan, scores: Mapping[str, float]) -> list[Finding]:
    found: list[Finding] = []
    for planned in plan.steps:
        step = planned.step.id
        again = scores.get(f"{step}{_AGAIN}")
        if step not in scores or again is None or again == scores[step]:
            continue
        problem = f"it scored the same state {scores[step]:g} and then {again:g}"
        where = f"{plan.task.source}: step {step!r}{_file(plan, planned)}"
        if isinstance(planned.model, RubricsVerifier):
            found.append(warning(where, problem, "judges vary: expect noise in the reward, or ask it more exactly"))
        else:
            found.append(error(where, problem, "a grader must depend on the state alone, and leave it as it is"))
    if plan.scoring and not scores:
        found.append(error(plan.task.source, "no step recorded a score", FailureKind.NO_SCORE.remedy))
    return found


def _failure(plan: TaskPlan, failure: EpisodeFailure) -> Finding:
    """Where the reason names a step, that is the place."""
    match = _STEP.fullmatch(failure.reason)
    step = match[1].removesuffix(_AGAIN) if match else None
    reason = match[2] if match else failure.reason
    planned = next((p for p in plan.steps if p.step.id == step), None)
    where = (
        f"{plan.task.source}: step {step!r}{_file(plan, planned)}" if planned else f"{plan.task.source} ({_envs(plan)})"
    )
    return error(where, f"{failure.kind.value}: {reason}", failure.kind.remedy)


def _failed_step(plan: TaskPlan, failed: Mapping[str, Json]) -> Finding:
    kind = FailureKind(failed["kind"])
    match = _STEP.fullmatch(failed["error"])
    step = str(failed["step_id"]).removesuffix(_AGAIN)
    where = f"{plan.task.source}: step {step!r}"
    return warning(where, f"failed, the task goes on: {match[2] if match else failed['error']}", kind.remedy)


def _file(plan: TaskPlan, planned: PlannedStep | None) -> str:
    bundle = plan.task.bundle
    if planned is None or not isinstance(planned.model, EnvOutcomeVerifier) or bundle is None:
        return ""
    artifact = bundle.artifacts[planned.model.file_artifact_id]
    return f" (artifacts/{artifact.name}/{artifact.files[0]})"


def _envs(plan: TaskPlan) -> str:
    return "+".join(f"envs/{name}" for name in dict.fromkeys(plan.env_names)) or plan.task.source


def _look_at_times(task: Chosen, runtime: Runtime, found: Rehearsed) -> None:
    spent, limit = found.timings.get("deploy_s", 0.0), runtime.deadlines.deploy
    if spent > limit / 3:
        found.findings.append(
            warning(
                task.plan.task.source,
                f"its sandboxes took {spent:.0f} s to start, and {limit:g} s are allowed when many start at once",
                "raise --deploy-timeout, or make them start sooner",
            )
        )
