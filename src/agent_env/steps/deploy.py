"""Steps that put envs and agents in place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from pydantic import Field

from agent_env.bundle import Bundle, Step
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.steps.context import Agent, DeployedEnv, RunContext
from agent_env.steps.registry import Phase, StepModel, register

DEPLOYABLE = "mcp_server"
DEFAULT_AGENT = "default-agent"


def not_deployed(bundle: Bundle, name: str, earlier: Mapping[str, StepModel]) -> Iterator[str]:
    """A problem when no earlier step deploys the env; nothing when the bundle has no such env, which is another."""
    if name in bundle.envs and not any(isinstance(s, DeployEnv) and s.env_id == name for s in earlier.values()):
        yield f"no earlier deploy_env step deploys {name!r}"


@register
class DeployEnv(StepModel):
    """Starts an env's sandbox and waits until its card answers."""

    type_name: ClassVar[str] = "deploy_env"
    phase: ClassVar[Phase] = "deploy"
    references: ClassVar[Mapping[str, str]] = {"env_id": "envs"}
    without_effect: ClassVar[frozenset[str]] = frozenset(
        {"env_version", "ttl_seconds", "disk_size_gb", "gateway_mode", "cpu", "memory_mb", "metadata"}
    )

    env_id: str
    sandbox_type: str | None = None
    env_state_type: str | None = None
    env_state_instance_id: str | None = None
    artifact_id: str | None = None
    artifact_version: int | None = None

    def problems(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        if any(isinstance(step, DeployEnv) and step.env_id == self.env_id for step in earlier.values()):
            yield f"env {self.env_id!r} is deployed twice in this task"

    def unsupported(self, bundle: Bundle) -> Iterator[str]:
        kind = bundle.envs[self.env_id].type
        if kind != DEPLOYABLE:
            yield f"env {self.env_id!r} is a {kind} env; only {DEPLOYABLE} envs are deployed here"
        if self.sandbox_type not in (None, "local"):
            yield f"sandbox_type {self.sandbox_type!r} is not run here: leave it out, and choose with --sandbox"
        if self.env_state_type or self.env_state_instance_id or self.artifact_id:
            yield "an env state to start from is not run here: load it with load_artifact"

    async def run(self, step: Step, context: RunContext) -> None:
        env = context.bundle.envs[self.env_id]
        started = time.monotonic()
        limit = context.deadlines.deploy
        try:
            async with asyncio.timeout(limit):
                ready = await context.pool.take(
                    context.prepared[env.digest], context.episode_id, context.sandboxes.append
                )
        except TimeoutError:
            raise EpisodeFailure(
                FailureKind.DEPLOY_TIMEOUT, f"step {step.id!r}: env {env.name!r} was not ready after {limit:g} s"
            ) from None
        context.envs[env.name] = DeployedEnv(
            env=env, sandbox=ready.sandbox, http=ready.opened.http, card=ready.opened.card, session=ready.opened.session
        )
        context.env_of_step[step.id] = env.name
        context.spent("deploy_s", time.monotonic() - started)


@register
class DeployAgent(StepModel):
    """Names the envs whose tools the outside agent gets."""

    type_name: ClassVar[str] = "deploy_agent"
    phase: ClassVar[Phase] = "deploy"
    references: ClassVar[Mapping[str, str]] = {"env_ids": "envs"}
    without_effect: ClassVar[frozenset[str]] = frozenset(
        {
            "a2a_agent_id",
            "a2a_agent_version",
            "agent_description",
            "env_vars",
            "ttl_seconds",
            "cpu",
            "memory_mb",
            "disk_size_gb",
            "network_policy",
            "litellm_base_url",
            "sandbox_type",
        }
    )

    env_ids: list[str] = Field(default_factory=list)
    env_step_id: str | None = None
    agent_name: str = DEFAULT_AGENT
    system_prompt: str | None = None
    role: str | None = None
    skills: list[Any] | None = None
    sandbox_name: str | None = None
    enable_docker: bool | None = None
    snapshot_config: dict[str, Any] | None = None

    def problems(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        for name in self.env_ids:
            for why in not_deployed(bundle, name, earlier):
                yield f"env_ids: {why}"
        if self.env_step_id is not None and not isinstance(earlier.get(self.env_step_id), DeployEnv):
            yield f"env_step_id: {self.env_step_id!r} is not an earlier deploy_env step"
        if any(isinstance(step, DeployAgent) and step.agent_name == self.agent_name for step in earlier.values()):
            yield f"agent {self.agent_name!r} is deployed twice in this task"

    def unsupported(self, bundle: Bundle) -> Iterator[str]:
        for key in ("skills", "sandbox_name", "enable_docker", "snapshot_config"):
            if getattr(self, key):
                yield f"{key} needs the agent's own sandbox, which is not run here"

    def env_names(self, earlier: Mapping[str, StepModel]) -> tuple[str, ...]:
        """The envs whose tools this agent gets, in order."""
        names = list(self.env_ids)
        source = earlier.get(self.env_step_id) if self.env_step_id else None
        if isinstance(source, DeployEnv) and source.env_id not in names:
            names.append(source.env_id)
        return tuple(names)

    async def run(self, step: Step, context: RunContext) -> None:
        names = list(self.env_ids)
        if self.env_step_id is not None and context.env_of_step[self.env_step_id] not in names:
            names.append(context.env_of_step[self.env_step_id])
        context.agents[self.agent_name] = Agent(
            name=self.agent_name,
            env_names=tuple(names),
            system_prompt=self.system_prompt,
            role=None if self.role in (None, "", "default") else self.role,
        )
