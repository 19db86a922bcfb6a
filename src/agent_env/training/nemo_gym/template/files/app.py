"""The bundle's resources server for NeMo Gym 0.5 to 0.7, which starts this file itself.

What it answers is `agent_env`'s: the same as of `python -m agent_env.training.nemo_gym serve`.
"""

from pathlib import Path
from typing import Any, ClassVar

from fastapi import FastAPI
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)

from agent_env.training.nemo_gym.native import webserver


class AgentEnvConfig(BaseResourcesServerConfig):
    agent_env: dict[str, Any]


class AgentEnvServer(SimpleResourcesServer):
    ray_enabled: ClassVar[bool] = False
    config: AgentEnvConfig

    def setup_webserver(self) -> FastAPI:
        return webserver(Path(__file__).resolve().parent, self.config, self.aggregate_metrics)

    def setup_exception_middleware(self, app: FastAPI) -> None:
        """Not installed: every error has its answer already, and slow answers must not pass through a buffer."""

    def setup_cancellation_middleware(self, app: FastAPI) -> None:
        """Not installed: what a lost connection means depends on the request. A verify goes on, for its retry."""

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        raise RuntimeError("POST /verify has a route of its own, see setup_webserver")


if __name__ == "__main__":
    AgentEnvServer.run_webserver()
