"""Steps that start sandboxes without a server, and steps that take down what earlier ones started."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from agent_env.bundle import Bundle, Env, Step
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.base import SandboxSpec, bare_env
from agent_env.steps.context import RunContext
from agent_env.steps.registry import Phase, StepModel, register

log = logging.getLogger(__name__)


def no_sandbox(name: str, earlier: Mapping[str, StepModel]) -> Iterator[str]:
    """A problem when no earlier step deploys the sandbox."""
    if not any(isinstance(step, DeploySandbox) and step.sandbox_name == name for step in earlier.values()):
        yield f"no earlier deploy_sandbox step deploys {name!r}"


@register
class DeploySandbox(StepModel):
    """Starts a bare sandbox: with docker a container of `--sandbox-image`, with process a private folder."""

    type_name: ClassVar[str] = "deploy_sandbox"
    phase: ClassVar[Phase] = "deploy"
    without_effect: ClassVar[frozenset[str]] = frozenset({"disk_size_gb", "ttl_seconds", "boot_mode", "metadata"})

    sandbox_name: str = Field(min_length=1)
    sandbox_mode: Literal["vm", "container"]
    sandbox_type: str | None = None
    image: str | None = None
    port: int | None = None
    exposed_ports: list[int] | None = None
    env_vars: dict[str, str] | None = None
    network_policy: dict[str, Any] | None = None
    cpu: float | None = None
    memory_mb: int | None = None

    def problems(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        if any(isinstance(step, DeploySandbox) and step.sandbox_name == self.sandbox_name for step in earlier.values()):
            yield f"sandbox {self.sandbox_name!r} is deployed twice in this task"
        for key in ("cpu", "memory_mb"):
            if (value := getattr(self, key)) is not None and value <= 0:
                yield f"{key} must be above 0"

    def unsupported(self, bundle: Bundle) -> Iterator[str]:
        if self.sandbox_type not in (None, "local"):
            yield f"sandbox_type {self.sandbox_type!r} is not run here: leave it out, and choose with --sandbox"
        if self.sandbox_mode == "container":
            yield "sandbox_mode 'container' is not run here: make its image an env in envs/<name>/ and use deploy_env"
        elif self.image is not None:
            yield "an image of a step's own is not run here: leave it out, and choose one with --sandbox-image"
        if self.exposed_ports:
            yield "exposed_ports is not run here: what serves a port is an env, for deploy_env"
        if self.network_policy:
            yield "network_policy is not run here: sandboxes have no network"

    @property
    def env(self) -> Env:
        """What a provider prepares for it."""
        memory = None if self.memory_mb is None else self.memory_mb << 20
        return bare_env(memory=memory, cpus=self.cpu)

    async def run(self, step: Step, context: RunContext) -> None:
        started = time.monotonic()
        limit = context.deadlines.deploy
        try:
            async with asyncio.timeout(limit):
                async with context.starting():
                    spec = SandboxSpec(
                        prepared=context.prepared[self.env.digest],
                        episode=context.episode_id,
                        env_vars=self.env_vars or {},
                    )
                    sandbox = await context.provider.start(spec)
                    context.sandboxes.append(sandbox)
        except TimeoutError:
            raise EpisodeFailure(
                FailureKind.DEPLOY_TIMEOUT,
                f"step {step.id!r}: sandbox {self.sandbox_name!r} was not started after {limit:g} s (--deploy-timeout)",
            ) from None
        context.bare[self.sandbox_name] = sandbox
        context.spent("deploy_s", time.monotonic() - started)


@register
class TeardownSandboxes(StepModel):
    """Takes down envs and sandboxes that the rest of the task does not need. Nothing in it can fail the task."""

    type_name: ClassVar[str] = "teardown_sandboxes"
    phase: ClassVar[Phase] = "load"
    fatal: ClassVar[bool] = False
    references: ClassVar[Mapping[str, str]] = {"env_ids": "envs"}

    env_ids: list[str] = Field(default_factory=list)
    sandbox_names: list[str] = Field(default_factory=list)
    agent_names: list[str] = Field(default_factory=list)
    """accepted: agents have no sandbox here"""

    def problems(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        if not (self.env_ids or self.sandbox_names or self.agent_names):
            yield "give at least one of env_ids, sandbox_names and agent_names"

    async def run(self, step: Step, context: RunContext) -> None:
        envs = [context.envs[name] for name in self.env_ids if name in context.envs]
        bare = [context.bare[name] for name in self.sandbox_names if name in context.bare]
        if absent := [n for n in self.env_ids if n not in context.envs] + [
            n for n in self.sandbox_names if n not in context.bare
        ]:
            log.info("episode %s: step %s: not deployed: %s", context.episode_id, step.id, ", ".join(absent))
        for deployed in envs:
            await deployed.http.aclose()
        await asyncio.gather(*(context.stop(sandbox) for sandbox in (*(env.sandbox for env in envs), *bare)))
