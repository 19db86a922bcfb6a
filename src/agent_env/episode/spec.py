"""What to play: a task that has been checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from agent_env.bundle import Task
from agent_env.episode.plan import TaskPlan, plan_task
from agent_env.episode.run import Episode
from agent_env.episode.runtime import Runtime
from agent_env.errors import BundleError, EpisodeError
from agent_env.limits import Deadlines
from agent_env.sandbox import choose_provider
from agent_env.sandbox.base import SandboxProvider


class EpisodeSpec:
    """A task as an episode: made by `from_task`, played by `start`."""

    def __init__(self, plan: TaskPlan, *, turn_timeout: float | None = None) -> None:
        self.plan = plan
        self.turn_timeout = turn_timeout

    @classmethod
    def from_task(
        cls,
        task: Task,
        *,
        trainer_agents: Sequence[str] | None = None,
        seed: Mapping[str, str] | None = None,
        turn_timeout: float | None = None,
    ) -> EpisodeSpec:
        """Check a task of a loaded bundle.

        `seed` replaces `<key>` in every string of every step; `turn_timeout` (seconds) overrides every prompt's own.

        Raises:
            BundleError: the task's steps are wrong.
            EpisodeError: the task can't run as an episode; every reason is listed.
        """
        if task.bundle is None:
            raise EpisodeError(f"task {task.name!r} belongs to no bundle: take it from load_bundle(...).tasks")
        plan = plan_task(task, task.bundle, seed, trainer_agents=trainer_agents or ())
        if plan.problems:
            raise BundleError(plan.problems)
        reasons = list(plan.unsupported)
        if not plan.prompts:
            reasons.append(f"{task.source}: it prompts no agent")
        if trainer_agents is not None and set(trainer_agents) != set(plan.agents) and not plan.unsupported:
            prompted = ", ".join(plan.agents) or "nobody"
            reasons.append(f"{task.source}: trainer_agents are {list(trainer_agents)}, and it prompts {prompted}")
        if reasons:
            raise EpisodeError(f"task {task.name} can't run as an episode: " + "; ".join(reasons))
        return cls(plan, turn_timeout=turn_timeout)

    @property
    def prompts(self) -> tuple[tuple[str, str | None], ...]:
        """(prompt, system prompt) of each turn."""
        return self.plan.prompts

    @property
    def trainer_agents(self) -> tuple[str, ...]:
        """Names of the agents whose turns are handed out."""
        return self.plan.agents

    async def start(
        self,
        sandbox: str | SandboxProvider | None = None,
        *,
        runtime: Runtime | None = None,
        deadlines: Deadlines | None = None,
        sandbox_options: Mapping[str, Any] | None = None,
    ) -> Episode:
        """Begin an episode; returns once it exists, before any deploy.

        Without a `runtime` it gets one of its own: what the task needs is built first, and all of it is closed when the
        episode has ended. `sandbox` is then `docker`, `process`, `auto` (the default) or a provider, which stays open.
        A given `runtime` must have prepared the task, and decides these things itself.

        Raises:
            ConfigError: no such sandbox, or a setting of an env is wrong.
            EpisodeFailure: the provider is away, or an env can't be built.
        """
        if runtime is not None:
            if sandbox is not None or deadlines is not None or sandbox_options is not None:
                raise EpisodeError("a runtime has a sandbox provider and deadlines already: give one or the other")
            return Episode(self.plan, runtime, turn_timeout=self.turn_timeout)
        given = isinstance(sandbox, SandboxProvider)
        provider = (
            sandbox
            if isinstance(sandbox, SandboxProvider)
            else await choose_provider(sandbox or "auto", **(sandbox_options or {}))
        )
        own = Runtime(provider, deadlines=deadlines, close_provider=not given)
        try:
            await own.prepare_tasks([self.plan])
        except BaseException:
            await own.aclose()
            raise
        return Episode(self.plan, own, turn_timeout=self.turn_timeout, at_end=own.aclose)
