"""Why an env stopped answering: the sandbox is asked before anybody guesses."""

from __future__ import annotations

import asyncio
import time

from agent_env.env.http import BadAnswer, HttpError
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.base import Sandbox, SandboxState

SETTLE = 1.0
"""seconds that a provider may need to hear of a death which we have seen as a broken connection"""
_LAST_LINES = 8
_LAST_CHARACTERS = 1200


async def env_failure(sandbox: Sandbox, what: str, error: HttpError) -> EpisodeFailure:
    """The failure behind a failed request: a crash, an OOM kill, a lost sandbox, or an env that does not answer."""
    if isinstance(error, BadAnswer):
        return EpisodeFailure(FailureKind.ENV_PROTOCOL_ERROR, f"{what}: {error}")
    state = await settled_state(sandbox)
    if state.running:
        return EpisodeFailure(FailureKind.ENV_UNREACHABLE, f"{what}: {error}")
    return await death(sandbox, state, what)


async def settled_state(sandbox: Sandbox) -> SandboxState:
    """Its state once a death that we have seen as a broken connection would be known."""
    # A server that is shut down closes its connections well before it ends, and no provider can announce an end that
    # has not come: so ask for a while.
    until = time.monotonic() + SETTLE
    state = await sandbox.state()
    while state.running and time.monotonic() < until:
        await asyncio.sleep(0.05)
        state = await sandbox.state()
    return state


async def death(sandbox: Sandbox, state: SandboxState, what: str) -> EpisodeFailure:
    """The failure of a sandbox that has ended."""
    if state.oom_killed:
        kind, why = FailureKind.PROVIDER_OOM_KILLED, "the env was killed because it used up its memory"
    elif state.stopped_by_us:
        kind, why = FailureKind.SANDBOX_LOST, "we ended the sandbox"
    elif state.lost or state.exit_code is None:
        kind, why = FailureKind.SANDBOX_LOST, "the sandbox was ended from outside"
    else:
        kind, why = FailureKind.ENV_CRASHED, f"the env's process ended with exit code {state.exit_code}"
    detail = f" ({state.detail})" if state.detail and f"exit code {state.exit_code}" not in state.detail else ""
    return EpisodeFailure(kind, f"{what}: {why}{detail}{await last_lines(sandbox)}")


async def last_lines(sandbox: Sandbox) -> str:
    """`; its last output: ...` on one line, or nothing when there is none to be had."""
    try:
        text = await sandbox.logs(_LAST_CHARACTERS * 2)
    except EpisodeFailure:
        return ""
    lines = [line.strip() for line in text.splitlines() if line.strip()][-_LAST_LINES:]
    shown = " | ".join(lines)[-_LAST_CHARACTERS:]
    return f"; its last output: {shown}" if shown else "; it printed nothing"
