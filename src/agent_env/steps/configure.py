"""Steps that set an env up before the agent sees it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from agent_env.bundle import Bundle, Step
from agent_env.env.data import NotServed, call_extension, data_reset
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.steps.context import DeployedEnv, RunContext
from agent_env.steps.deploy import not_deployed
from agent_env.steps.registry import Phase, StepModel, register

log = logging.getLogger(__name__)


class Directive(BaseModel):
    """One extension call. `service` is an environment's name, or `*` for every server of the env."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    service: str = "*"
    environment: str | None = None
    """the original takes this key for `service` too"""
    uri: str
    args: dict[str, Any] = {}

    @property
    def target(self) -> str:
        return self.environment or self.service


@register
class ApplyServerConfig(StepModel):
    """Calls extensions that the env's card advertises, in order."""

    type_name: ClassVar[str] = "apply_server_config"
    phase: ClassVar[Phase] = "load"
    references: ClassVar[Mapping[str, str]] = {"env_id": "envs"}

    env_id: str
    directives: list[Directive]
    timeout_seconds: float = 30.0
    tolerate_unadvertised: bool = False

    def problems(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        if self.env_id not in bundle.envs:
            return
        for why in not_deployed(bundle, self.env_id, earlier):
            yield f"env_id: {why}"
        served = bundle.envs[self.env_id].environment_name
        for number, directive in enumerate(self.directives):
            if directive.target not in ("*", served):
                yield f"directives.{number}: env {self.env_id!r} serves {served!r}, not {directive.target!r}"

    async def run(self, step: Step, context: RunContext) -> None:
        deployed = context.envs[self.env_id]
        if deployed.dead:
            return
        started = time.monotonic()
        limit = context.deadlines.load
        try:
            async with asyncio.timeout(limit):
                for directive in self.directives:
                    await self._apply(step, deployed, directive)
        except TimeoutError:
            raise EpisodeFailure(
                FailureKind.LOAD_TIMEOUT, f"step {step.id!r}: not done after {limit:g} s (--load-timeout)"
            ) from None
        deployed.set_up = step.id
        context.spent("load_s", time.monotonic() - started)

    async def _apply(self, step: Step, deployed: DeployedEnv, directive: Directive) -> None:
        if directive.uri not in deployed.card.extensions:
            if self.tolerate_unadvertised:
                return
            advertised = ", ".join(deployed.card.extensions) or "none"
            raise EpisodeFailure(
                FailureKind.LOAD_FAILED,
                f"step {step.id!r}: the card of {deployed.card.name!r} does not advertise {directive.uri!r} "
                f"(it advertises: {advertised})",
            )
        try:
            await call_extension(
                deployed.http, deployed.card, directive.uri, directive.args, timeout=self.timeout_seconds
            )
        except EpisodeFailure as failure:
            raise EpisodeFailure(failure.kind, f"step {step.id!r}: {failure.reason}") from failure


@register
class ModifyEnvToolAccess(StepModel):
    """Hides tools of an env from a role, or shows them again. Agents without a role have the role `default`."""

    type_name: ClassVar[str] = "modify_env_tool_access"
    phase: ClassVar[Phase] = "load"
    references: ClassVar[Mapping[str, str]] = {"env_id": "envs"}

    env_id: str
    action: Literal["enable", "disable"]
    role: str = Field(min_length=1)
    tools: list[str]
    """names, or `*` for every tool that the env does not hide by itself"""

    def problems(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        for why in not_deployed(bundle, self.env_id, earlier):
            yield f"env_id: {why}"

    @property
    def rule(self) -> str:
        """The change as one word, for the toolset's key: `-shop:*:buy,sell`."""
        return f"{'-' if self.action == 'disable' else '+'}{self.env_id}:{self.role}:{','.join(sorted(self.tools))}"

    async def run(self, step: Step, context: RunContext) -> None:
        context.envs[self.env_id].access.change(self.role, self.tools, hide=self.action == "disable")


@register
class ResetEnv(StepModel):
    """Has the env drop its data, where it serves that.

    Not what this task has set up: there the original, which resets no mcp_server env at all (measured on
    agentenv-framework 0.9.1364), goes on with the data, and so do tasks that were written for it.
    """

    type_name: ClassVar[str] = "reset_env"
    phase: ClassVar[Phase] = "load"
    fatal: ClassVar[bool] = False
    references: ClassVar[Mapping[str, str]] = {"env_id": "envs"}

    env_id: str

    def problems(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        for why in not_deployed(bundle, self.env_id, earlier):
            yield f"env_id: {why}"

    def warnings(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        for id, step in earlier.items():
            if step.type_name in ("load_artifact", "apply_server_config") and step.env_of() == self.env_id:
                yield f"is skipped: it would drop what step {id!r} sets up in env {self.env_id!r}"

    async def run(self, step: Step, context: RunContext) -> None:
        deployed = context.envs[self.env_id]
        if deployed.dead:
            return
        if deployed.set_up is not None:
            log.info(
                "episode %s: step %s skipped: step %s set the env up", context.episode_id, step.id, deployed.set_up
            )
            return
        started = time.monotonic()
        try:
            await data_reset(deployed.http, card=deployed.card, timeout=context.deadlines.load)
        except NotServed as reason:
            log.info("episode %s: step %s skipped: %s", context.episode_id, step.id, reason.reason)
        except EpisodeFailure as failure:
            raise EpisodeFailure(failure.kind, f"step {step.id!r}: {failure.reason}") from failure
        context.spent("load_s", time.monotonic() - started)
