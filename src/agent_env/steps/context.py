"""What the steps of one running episode share."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agent_env.bundle import Bundle, Env
from agent_env.env.card import Card
from agent_env.env.http import EnvHttp
from agent_env.limits import Deadlines
from agent_env.sandbox.base import Prepared, Sandbox, SandboxProvider

if TYPE_CHECKING:
    from agent_env.steps.prompt import PromptAgent

Json = Any


@dataclass(slots=True)
class DeployedEnv:
    """An env that answers."""

    env: Env
    sandbox: Sandbox
    http: EnvHttp
    card: Card


@dataclass(frozen=True, slots=True)
class Agent:
    """What `deploy_agent` set up: the outside agent whose turns the trainer plays."""

    name: str
    env_names: tuple[str, ...]
    system_prompt: str | None
    role: str | None


@dataclass(slots=True)
class PromptRecord:
    """One prompt and the reply that ended its turn. Times are Unix seconds."""

    step_id: str
    prompt_id: str
    agent_name: str
    prompt: str
    system_prompt: str | None
    sent_at: float
    reply: str | None = None
    replied_at: float | None = None
    tool_calls: int = 0
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Verification:
    """What a grader step recorded."""

    step_id: str
    results: list[dict[str, Json]]
    score: float


class Grader(Protocol):
    """Runs a `verify.py` outside this process; see `agent_env.grading.pool.GraderPool`."""

    async def verify(
        self, source: Path, mcp_url: str, run: Json | None, *, step_id: str, timeout: float
    ) -> list[dict[str, Json]]: ...


@dataclass(slots=True)
class RunContext:
    """The state of one episode while its steps run."""

    episode_id: str
    bundle: Bundle
    provider: SandboxProvider
    prepared: Mapping[str, Prepared]
    """by env name"""
    starting: Callable[[], AbstractAsyncContextManager[object]]
    """caps how many sandboxes start at once"""
    grader: Grader
    deadlines: Deadlines
    hand_out: Callable[[PromptAgent, PromptRecord], Awaitable[str]]
    """gives the agent its turn and waits for the reply that ends it"""
    sandboxes: list[Sandbox] = field(default_factory=list)
    """everything started, for the teardown; appended before anything else can fail"""
    envs: dict[str, DeployedEnv] = field(default_factory=dict)
    """by env name"""
    env_of_step: dict[str, str] = field(default_factory=dict)
    """env name by id of the step that deployed it"""
    agents: dict[str, Agent] = field(default_factory=dict)
    prompts: list[PromptRecord] = field(default_factory=list)
    verifications: dict[str, Verification] = field(default_factory=dict)
    """by verifier id"""
    timings: dict[str, float] = field(default_factory=dict)
    """seconds by phase: wait_s, deploy_s, load_s, turn_s, verify_s"""

    def spent(self, phase: str, seconds: float) -> None:
        self.timings[phase] = self.timings.get(phase, 0.0) + seconds
