"""The step that gives the agent its turn."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar

from agent_env.bundle import Bundle, Step
from agent_env.errors import EpisodeFailure
from agent_env.steps.context import PromptRecord, RunContext
from agent_env.steps.deploy import DEFAULT_AGENT, DeployAgent
from agent_env.steps.registry import Phase, StepModel, register


@register
class PromptAgent(StepModel):
    """Hands the agent a prompt and waits for the reply that ends its turn."""

    type_name: ClassVar[str] = "prompt_agent"
    phase: ClassVar[Phase] = "turn"
    without_effect: ClassVar[frozenset[str]] = frozenset(
        {
            "poll_interval_seconds",
            "model",
            "model_params",
            "max_thinking_tokens",
            "effort",
            "harness",
            "context_id",
            "live_trajectory",
            "trajectory_output_prefix",
            "user_agent_name",
            "user_agent_timeout_seconds",
            "user_output_format",
            "user_model",
        }
    )

    prompt: str | None = None
    parts: list[Any] | None = None
    prompt_id: str | None = None
    agent_name: str = DEFAULT_AGENT
    timeout_seconds: float = 600.0
    system_prompt: str | None = None
    max_turns: int | None = None
    output_format: Any = None
    agentenv_tools: Any = None
    snapshot_config: Any = None
    max_conversation_turns: int = 1
    user_a2a_url: str | None = None

    def problems(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        if (self.prompt is None) == (self.parts is None):
            yield "give either prompt or parts"
        if self.timeout_seconds <= 0:
            yield "timeout_seconds must be above 0"
        agents = [step for step in earlier.values() if isinstance(step, DeployAgent)]
        if not any(agent.agent_name == self.agent_name for agent in agents):
            yield f"agent_name: no earlier deploy_agent step deploys {self.agent_name!r}"

    def unsupported(self, bundle: Bundle) -> Iterator[str]:
        for key in ("parts", "output_format", "agentenv_tools", "snapshot_config", "user_a2a_url"):
            if getattr(self, key):
                yield f"{key} is not run here: prompts are text"
        if self.max_conversation_turns != 1:
            yield "a simulated user (max_conversation_turns) is not run here"

    async def run(self, step: Step, context: RunContext) -> None:
        agent = context.agents[self.agent_name]
        record = PromptRecord(
            step_id=step.id,
            prompt_id=self.prompt_id or uuid.uuid4().hex,
            agent_name=agent.name,
            prompt=self.prompt or "",
            system_prompt=self.system_prompt if self.system_prompt is not None else agent.system_prompt,
            sent_at=time.time(),
            events=[] if context.transcribe else None,
        )
        context.prompts.append(record)
        started = time.monotonic()
        try:
            record.reply = await context.hand_out(self, record)
        except EpisodeFailure as failure:
            record.failure = failure
            raise
        record.replied_at = time.time()
        context.spent("turn_s", time.monotonic() - started)


def no_prompt(prompt_id: str, earlier: Mapping[str, StepModel]) -> Iterator[str]:
    """A problem when no earlier step prompts under that id."""
    if not any(isinstance(step, PromptAgent) and step.prompt_id == prompt_id for step in earlier.values()):
        yield f"no earlier prompt_agent step has prompt_id {prompt_id!r}"
