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
from agent_env.env.opening import OpenEnv
from agent_env.env.tools import Tool, ToolSession
from agent_env.errors import EpisodeFailure
from agent_env.limits import Deadlines
from agent_env.sandbox.base import Prepared, Sandbox, SandboxProvider
from agent_env.sandbox.pool import WarmPool
from agent_env.steps.access import ToolAccess

if TYPE_CHECKING:
    from agent_env.grading.judge import Judge
    from agent_env.steps.prompt import PromptAgent

Json = Any


@dataclass(slots=True)
class DeployedEnv:
    """An env that answered when it was deployed."""

    env: Env
    sandbox: Sandbox
    http: EnvHttp
    card: Card
    access: ToolAccess = field(default_factory=ToolAccess)
    tools: tuple[Tool, ...] = ()
    """as they were last listed"""
    set_up: str | None = None
    """id of the last step that loaded something into it"""
    dead: str | None = None
    """why it answers nothing any more, where the env has that scored and not masked (`on_oom = "score"`)"""
    session: ToolSession | None = None
    """opened ahead of need, for the first agent without a role that comes"""

    async def open_tools(self, role: str | None, timeout: float) -> ToolSession:
        """A session with the tools as they are now. Raises `EpisodeFailure`."""
        session, self.session = (self.session, None) if role is None else (None, self.session)
        if session is None:
            return await ToolSession.open(self.http, self.card, role=role, timeout=timeout)
        await session.list_again(timeout=timeout)
        return session


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
    failure: EpisodeFailure | None = None
    """why its turn has no reply"""
    events: list[dict[str, Json]] | None = None
    """the turn as a judge reads it, where there is one: `{"said"}` and `{"tool", "arguments", "answer", "is_error"}`,
    long texts cut"""


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
    """by env digest"""
    pool: WarmPool[OpenEnv]
    """gives out sandboxes of envs, started ahead or now"""
    starting: Callable[[], AbstractAsyncContextManager[object]]
    """caps how many sandboxes start at once"""
    grader: Grader
    grader_of: Callable[[Env], Grader]
    """the grader whose venv has what the env's `requirements` name"""
    judge: Judge
    deadlines: Deadlines
    hand_out: Callable[[PromptAgent, PromptRecord], Awaitable[str]]
    """gives the agent its turn and waits for the reply that ends it"""
    stop: Callable[[Sandbox], Awaitable[None]]
    """takes a sandbox down within the teardown's deadline; never fails"""
    transcribe: bool = False
    """a judge will read what happened in the turns"""
    sandboxes: list[Sandbox] = field(default_factory=list)
    """everything started, for the teardown; appended before anything else can fail"""
    envs: dict[str, DeployedEnv] = field(default_factory=dict)
    """by env name"""
    env_of_step: dict[str, str] = field(default_factory=dict)
    """env name by id of the step that deployed it"""
    bare: dict[str, Sandbox] = field(default_factory=dict)
    """what deploy_sandbox started, by sandbox_name"""
    agents: dict[str, Agent] = field(default_factory=dict)
    prompts: list[PromptRecord] = field(default_factory=list)
    verifications: dict[str, Verification] = field(default_factory=dict)
    """by verifier id"""
    timings: dict[str, float] = field(default_factory=dict)
    """seconds by phase: wait_s, deploy_s, load_s, turn_s, verify_s"""

    def spent(self, phase: str, seconds: float) -> None:
        self.timings[phase] = self.timings.get(phase, 0.0) + seconds
