"""Writes bundles around the stub env, and makes the stub's `Env` without a bundle."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_env.bundle.model import Env, EnvSettings

STUB_SERVER = Path(__file__).with_name("stub_env.py")

_DOCKERFILE = """\
ARG BASE_IMAGE=python:3.12-slim
FROM ${BASE_IMAGE}
WORKDIR /app
COPY server.py .
CMD ["python", "server.py"]
"""

_VERIFY = """\
import json
import urllib.request


async def verify(mcp_url):
    request = {"jsonrpc": "2.0", "id": 1, "method": "data/get", "params": {}}
    url = mcp_url.removesuffix("/mcp") + "/agentenv"
    headers = {"Content-Type": "application/json"}
    posted = urllib.request.Request(url, json.dumps(request).encode(), headers)
    with urllib.request.urlopen(posted, timeout=30) as answer:
        state = json.load(answer)["result"]["parts"][0]["data"]
    score = state["submission"]
    if score is None:
        return [{"id": "value", "result": False, "score": 0.0, "description": "nothing submitted"}]
    return [{"id": "value", "result": score >= 1, "score": score, "description": f"submitted {score}"}]
"""


def write_stub_env(folder: Path, *, env_vars: Mapping[str, str] | None = None, settings: str = "") -> Path:
    """Write one env folder: server, Dockerfile, env.toml and agent-env.toml. `settings`: more lines of the last."""
    folder.mkdir(parents=True)
    shutil.copy(STUB_SERVER, folder / "server.py")
    (folder / "Dockerfile").write_text(_DOCKERFILE)
    (folder / "env.toml").write_text('environment_name = "stub"\nenv_provider_type = "server"\n')
    lines = ['command = ["python", "server.py"]', settings]
    if env_vars:
        lines += ["[env]", *(f"{name} = {json.dumps(value)}" for name, value in env_vars.items())]
    (folder / "agent-env.toml").write_text("\n".join(lines) + "\n")
    return folder


def stub_task(value: float, *, prompts: Sequence[str] = ("Submit the value.",)) -> list[dict[str, Any]]:
    """A task: deploy, load `value`, one prompt a turn, grade. Its score is what `submit` was called with."""
    steps: list[dict[str, Any]] = [
        {"id": "env", "type": "deploy_env", "env_id": "stub"},
        {
            "id": "load",
            "type": "apply_server_config",
            "env_id": "stub",
            "directives": [{"service": "stub", "uri": "urn:stub:load/v1", "args": {"value": value}}],
        },
        {"id": "agent", "type": "deploy_agent", "env_ids": ["stub"], "system_prompt": "You test stubs."},
    ]
    steps += [
        {"id": f"ask{n}" if n else "ask", "type": "prompt_agent", "prompt": prompt} for n, prompt in enumerate(prompts)
    ]
    steps.append(
        {
            "id": "grade",
            "type": "env_outcome_verifier",
            "env_id": "stub",
            "file_artifact_id": "verify",
            "verifier_id": "grade",
            "score_aggregator": "weighted_average",
        }
    )
    return steps


def write_stub_bundle(
    folder: Path,
    *,
    tasks: Mapping[str, list[dict[str, Any]]] | None = None,
    evals: Mapping[str, Sequence[str]] | None = None,
    env_vars: Mapping[str, str] | None = None,
    settings: str = "",
) -> Path:
    """Write a whole bundle with the env `stub`, the artifact `verify` and, by default, three tasks and one eval.

    Args:
        tasks: step lists by task name; default `train-0000` to `train-0002`.
        evals: task names by eval name; default one eval `train` of every task.
        env_vars: the stub's knobs (see stub_env.py).
        settings: more lines for agent-env.toml, such as `start_timeout = 2.0`.
    """
    given = tasks if tasks is not None else {f"train-{n:04}": stub_task(n / 10) for n in range(3)}
    write_stub_env(folder / "envs" / "stub", env_vars=env_vars, settings=settings)
    (folder / "artifacts" / "verify").mkdir(parents=True)
    (folder / "artifacts" / "verify" / "verify.py").write_text(_VERIFY)
    (folder / "tasks").mkdir()
    for name, steps in given.items():
        (folder / "tasks" / f"{name}.json").write_text(json.dumps(steps, indent=1))
    (folder / "evals").mkdir()
    for name, members in (evals if evals is not None else {"train": list(given)}).items():
        (folder / "evals" / f"{name}.toml").write_text(f"tasks = {json.dumps(list(members))}\n")
    (folder / "README.md").write_text("A bundle for tests.\n")
    return folder


def stub_env(folder: Path, *, env_vars: Mapping[str, str] | None = None, **settings: Any) -> Env:
    """The stub as an `Env` of its own, for tests of the sandbox and env layers. `folder` must not exist."""
    write_stub_env(folder, env_vars=env_vars)
    return Env(
        name="stub",
        path=folder,
        environment_name="stub",
        digest=f"stub-{folder.name}",
        settings=EnvSettings(command=("python", "server.py"), env=dict(env_vars or {}), **settings),
    )
