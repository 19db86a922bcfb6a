"""The echo bundle, which both toolkits play: one env with one tool, one task, one grader that calls the tool again."""

from __future__ import annotations

import json
from pathlib import Path

from agent_env.state import cache_dir

_SERVER = '''\
from agentenv_protocol import AgentEnvEnvironment, environment_card, tool


@environment_card(name="echo")
class Echo(AgentEnvEnvironment):
    @tool(structured_output=False)
    def echo(self, text: str) -> str:
        """Answers the text."""
        return text


if __name__ == "__main__":
    Echo().serve()
'''
_DOCKERFILE = """\
ARG BASE_IMAGE=python:3.12-slim
FROM ${BASE_IMAGE}
WORKDIR /app
COPY requirements.txt .
RUN pip install --no-cache-dir -r requirements.txt
COPY server.py .
CMD ["python", "server.py"]
"""
_REQUIREMENTS = """\
agentenv-framework-protocol==0.1.379
mcp>=1.25,<2
"""
_SETTINGS = """\
command = ["python", "server.py"]
requirements = "requirements.txt"
network = "none"
preload = [
    "agentenv_protocol",
    "anyio._backends._asyncio",
    "encodings.idna",
    "mcp.server.fastmcp",
    "mcp.server.streamable_http_manager",
    "sse_starlette.sse",
    "starlette.applications",
    "starlette.middleware.errors",
    "starlette.middleware.exceptions",
    "uvicorn",
    "uvicorn.lifespan.on",
    "uvicorn.logging",
    "uvicorn.loops.asyncio",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.http.h11_impl",
    "uvicorn.protocols.websockets.auto",
]
"""
_VERIFY = """\
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def verify(mcp_url):
    async with streamable_http_client(mcp_url) as (read, write, _), ClientSession(read, write) as session:
        await session.initialize()
        answer = await session.call_tool("echo", {"text": "still there?"})
    said = answer.content[0].text
    return [{"id": "alive", "result": said == "still there?", "score": 1.0, "description": said}]
"""
_TASK = [
    {"id": "env", "type": "deploy_env", "env_id": "echo"},
    {"id": "agent", "type": "deploy_agent", "env_ids": ["echo"], "system_prompt": "Be brief."},
    {"id": "ask", "type": "prompt_agent", "prompt": "Have something echoed."},
    {
        "id": "grade",
        "type": "env_outcome_verifier",
        "env_id": "echo",
        "file_artifact_id": "check",
        "verifier_id": "grade",
    },
]


def write_echo() -> Path:
    """The bundle's folder, always the same: the original names its images by it.

    `.dockerignore` keeps our own settings out of the image, and env.toml names the other's lean env provider.
    """
    folder = cache_dir() / "benchmarks" / "echo-v1"
    files = {
        "envs/echo/server.py": _SERVER,
        "envs/echo/Dockerfile": _DOCKERFILE,
        "envs/echo/requirements.txt": _REQUIREMENTS,
        "envs/echo/env.toml": 'env_provider_type = "server"\n',
        "envs/echo/agent-env.toml": _SETTINGS,
        "envs/echo/.dockerignore": "agent-env.toml\n.dockerignore\n",
        "artifacts/check/verify.py": _VERIFY,
        "tasks/say.json": json.dumps(_TASK, indent=1) + "\n",
        "README.md": "One env that echoes, for measurements.\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
