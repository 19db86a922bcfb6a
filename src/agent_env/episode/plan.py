"""A task checked and typed: what an episode of it will do, or why there can't be one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from agent_env.bundle import Bundle, Env, Step, Task
from agent_env.errors import BundleError
from agent_env.steps import parse_fields, registered, type_problem
from agent_env.steps.access import ANY, DEFAULT_ROLE
from agent_env.steps.configure import ModifyEnvToolAccess
from agent_env.steps.deploy import DeployAgent, DeployEnv
from agent_env.steps.grade import EnvOutcomeVerifier
from agent_env.steps.prompt import PromptAgent
from agent_env.steps.registry import UNKNOWN_KEY, StepModel, meant, resolve_references, stand_in
from agent_env.steps.rubrics import RubricsVerifier
from agent_env.steps.sandboxes import DeploySandbox


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step and its typed fields."""

    step: Step
    model: StepModel

    @property
    def fatal(self) -> bool:
        """Whether its failure ends the episode."""
        given = self.step.fail_task_on_error
        return self.model.fatal if given is None else given


@dataclass(frozen=True, slots=True)
class TaskPlan:
    """`problems` make the bundle wrong; `unsupported` make only this task unplayable here."""

    task: Task
    steps: tuple[PlannedStep, ...]
    problems: tuple[str, ...]
    unsupported: tuple[str, ...]
    warnings: tuple[str, ...]

    @property
    def prompts(self) -> tuple[tuple[str, str | None], ...]:
        """(prompt, system prompt) of each outside turn, in order."""
        systems = {p.model.agent_name: p.model.system_prompt for p in self.steps if isinstance(p.model, DeployAgent)}
        turns = [p.model for p in self.steps if isinstance(p.model, PromptAgent)]
        return tuple(
            (t.prompt or "", t.system_prompt if t.system_prompt is not None else systems.get(t.agent_name))
            for t in turns
        )

    @property
    def agents(self) -> tuple[str, ...]:
        """Names of the agents that are played from outside, in the order of their first prompts."""
        return tuple(dict.fromkeys(p.model.agent_name for p in self.steps if isinstance(p.model, PromptAgent)))

    @property
    def agent(self) -> str | None:
        """Name of the agent that is played from outside."""
        return next(iter(self.agents), None)

    @property
    def unknown_keys(self) -> tuple[str, ...]:
        """Those warnings that are about a step's key that nobody knows."""
        return tuple(line for line in self.warnings if UNKNOWN_KEY in line)

    @property
    def scoring(self) -> tuple[str, ...]:
        """Ids of the steps that record a score."""
        return tuple(p.step.id for p in self.steps if p.model.scores)

    @property
    def env_names(self) -> tuple[str, ...]:
        """Envs that the task deploys."""
        return tuple(p.model.env_id for p in self.steps if isinstance(p.model, DeployEnv))

    @property
    def envs(self) -> tuple[Env, ...]:
        """What a runtime must prepare for the task: the envs it deploys, and bare sandboxes."""
        bundle = self.task.bundle
        found = [bundle.envs[name] for name in self.env_names] if bundle is not None else []
        found += [p.model.env for p in self.steps if isinstance(p.model, DeploySandbox)]
        return tuple({env.digest: env for env in found}.values())

    @property
    def graded_envs(self) -> tuple[Env, ...]:
        """The envs that a `verify.py` looks at."""
        bundle = self.task.bundle
        graders = [p.model for p in self.steps if isinstance(p.model, EnvOutcomeVerifier)]
        return tuple(bundle.envs[name] for name in {g.env_id: None for g in graders}) if bundle is not None else ()

    @property
    def judged(self) -> tuple[tuple[Step, RubricsVerifier], ...]:
        """The steps that ask a judge."""
        return tuple((p.step, p.model) for p in self.steps if isinstance(p.model, RubricsVerifier))

    @property
    def toolset(self) -> str:
        """Equal for tasks that offer the same tools: the agent's envs, its role if it has one, and what is hidden."""
        earlier: dict[str, StepModel] = {}
        parts: list[str] = []
        for planned in self.steps:
            model = planned.model
            if isinstance(model, DeployAgent) and model.agent_name == self.agent:
                parts.append("+".join(sorted(model.env_names(earlier))))
                if model.role not in (None, "", DEFAULT_ROLE):
                    parts.append(f"role={model.role}")
            earlier[planned.step.id] = model
        roles = {part.removeprefix("role=") for part in parts[1:]} or {DEFAULT_ROLE}
        changes = [p.model for p in self.steps if isinstance(p.model, ModifyEnvToolAccess)]
        return "|".join([*parts, *(change.rule for change in changes if change.role in {ANY, *roles})])


def plan_task(
    task: Task, bundle: Bundle, seed: Mapping[str, str] | None = None, *, trainer_agents: Sequence[str] = ()
) -> TaskPlan:
    """Type and check every step of a task. Collects; never raises.

    A task that prompts several agents is unsupported unless `trainer_agents` names them all.
    """
    steps: list[PlannedStep] = []
    problems: list[str] = []
    unsupported: list[str] = []
    warnings: list[str] = []
    earlier: dict[str, StepModel] = {}
    for step in task.steps:
        where = f"{task.source}: step {step.id!r}: "
        model_type = registered().get(step.type)
        if model_type is None:
            why, original_runs_it = type_problem(step.type)
            (unsupported if original_runs_it else problems).append(where + why)
            if intended := registered().get(meant(step.type) or ""):
                earlier[step.id] = stand_in(intended, step.fields)
            continue
        model, wrong, warned = parse_fields(model_type, _seeded(step.fields, seed) if seed else step.fields)
        warnings += [where + line for line in warned]
        problems += [where + line for line in wrong]
        if model is None:
            earlier[step.id] = stand_in(model_type, step.fields)
            continue
        model, missing = resolve_references(model, bundle)
        problems += [where + line for line in (*missing, *model.problems(bundle, earlier))]
        warnings += [where + line for line in model.warnings(bundle, earlier)]
        if not missing:
            unsupported += [where + line for line in model.unsupported(bundle)]
        if step.retry_config is not None:
            unsupported.append(where + "retry_config is not run here")
        earlier[step.id] = model
        steps.append(PlannedStep(step, model))
    plan = TaskPlan(task, tuple(steps), tuple(problems), tuple(unsupported), tuple(warnings))
    return plan if problems or unsupported else _playable(plan, trainer_agents)


def plan_bundle(bundle: Bundle) -> dict[str, TaskPlan]:
    """The plan of every task, by name.

    Raises:
        BundleError: some task has problems; all of them are listed.
    """
    plans = {name: plan_task(task, bundle) for name, task in bundle.tasks.items()}
    problems = [line for plan in plans.values() for line in plan.problems]
    if problems:
        raise BundleError(problems)
    return plans


def _playable(plan: TaskPlan, trainer_agents: Sequence[str]) -> TaskPlan:
    if len(plan.agents) <= 1 or set(plan.agents) == set(trainer_agents):
        return plan
    names = ", ".join(plan.agents)
    why = f"{plan.task.source}: it prompts several agents ({names}); name all of them as trainer_agents, or prompt one"
    return replace(plan, unsupported=(why,))


def _seeded(value: Any, seed: Mapping[str, str]) -> Any:
    """`<key>` in every string replaced by the seed's value."""
    if isinstance(value, str):
        for key, text in seed.items():
            value = value.replace(f"<{key}>", text)
        return value
    if isinstance(value, Mapping):
        return {key: _seeded(item, seed) for key, item in value.items()}
    if isinstance(value, Iterable):
        return [_seeded(item, seed) for item in value]
    return value
