"""Start an env in a process sandbox for one test, and take it down after."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from agent_env.bundle.model import Env
from agent_env.env.card import Card, wait_ready
from agent_env.env.http import EnvHttp
from agent_env.sandbox.base import SandboxSpec
from agent_env.sandbox.process import ProcessProvider, ProcessSandbox


@dataclass
class Deployed:
    sandbox: ProcessSandbox
    card: Card
    http: EnvHttp


@asynccontextmanager
async def deployed(env: Env, *, timeout: float = 30.0) -> AsyncIterator[Deployed]:
    """The env, ready."""
    provider = ProcessProvider()
    try:
        prepared = await provider.prepare(env)
        sandbox = await provider.start(SandboxSpec(prepared, episode="test"))
        card = await wait_ready(sandbox, timeout=timeout, expected_name=env.environment_name)
        http = EnvHttp(sandbox)
        try:
            yield Deployed(sandbox, card, http)
        finally:
            await http.aclose()
    finally:
        await provider.aclose()
