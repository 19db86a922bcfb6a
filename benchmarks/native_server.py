"""NeMo Gym's own trivial resources server: one tool, a constant reward. Run by NeMo Gym's python, not by ours."""

from typing import ClassVar

from fastapi import FastAPI
from nemo_gym.base_resources_server import (
    BaseResourcesServerConfig,
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from pydantic import BaseModel


class Look(BaseModel):
    at: str = ""


class Saw(BaseModel):
    saw: str


class TrivialServer(SimpleResourcesServer):
    ray_enabled: ClassVar[bool] = False
    config: BaseResourcesServerConfig

    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()
        app.post("/look")(self.look)
        return app

    async def look(self, body: Look) -> Saw:
        return Saw(saw=body.at)

    async def verify(self, body: BaseVerifyRequest) -> BaseVerifyResponse:
        return BaseVerifyResponse(**body.model_dump(), reward=0.75)


if __name__ == "__main__":
    TrivialServer.run_webserver()
