"""The resources server inside a process that NeMo Gym starts: what the written folder's `app.py` hands out.

NeMo Gym decides the address and runs uvicorn; every request of a rollout goes to the same `ResourcesServer` that
`serve` runs, so the two can't differ. Only the statistics over finished rollouts are NeMo Gym's own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from fastapi import FastAPI

from agent_env.errors import ConfigError
from agent_env.training.nemo_gym.folder import folder_config
from agent_env.training.nemo_gym.serve import options_without_flags, set_up_logging
from agent_env.training.nemo_gym.server import build_server


class NativeConfig(Protocol):
    """What is read of the config that NeMo Gym made of the YAML and its own command line."""

    name: str
    num_workers: int | None
    agent_env: dict[str, Any]


def webserver(folder: Path, config: NativeConfig, aggregate_metrics: Callable[..., Awaitable[Any]]) -> FastAPI:
    """The app for NeMo Gym's `run_webserver`. Raises ConfigError.

    Of `serve`'s flags two do not apply here, whatever the environment says: clients inside NeMo Gym send no token, and
    an error for a masked rollout would end their collection, where `mask_sample` is read.

    Args:
        folder: the written folder, whose name is the server's.
        aggregate_metrics: NeMo Gym's handler of `/aggregate_metrics`.
    """
    _refuse(config)
    settings = folder_config(folder / "configs" / f"{folder.name}.yaml", folder.name, config.agent_env)
    set_up_logging("info")
    server = build_server(settings, replace(options_without_flags(settings), token=None, masked_as_error=False))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        async with server.running():
            yield
        print(server.sessions.summary(), flush=True)

    app = FastAPI(lifespan=lifespan, openapi_url=None)
    app.post("/aggregate_metrics")(aggregate_metrics)
    app.mount("", server)
    return app


def _refuse(config: NativeConfig) -> None:
    if (getattr(config, "num_workers", None) or 1) > 1:
        raise ConfigError(
            f"{config.name}: num_workers: one process holds every session. For more, write the bundle as several "
            "servers (--name, --rows of the writer)"
        )
    if getattr(config, "expose_tools_over_mcp", False):
        raise ConfigError(f"{config.name}: expose_tools_over_mcp: the tools are routes of their own, not served as MCP")
