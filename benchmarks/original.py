"""agentenv-framework 0.9.1364 with its lean env provider, in a venv, HOME and DOCKER_CONFIG of its own.

It calls the `docker` command, so the first one on its PATH is a wrapper: builds get this machine's network and base
image, the bridge's gateway is told (old daemons leave it out), and the two plugins that it asks for, and does not use
with this provider, are there when asked for their version.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from agent_env.sandbox.venvs import ensure_venv
from benchmarks.ours import base_image
from benchmarks.processes import Failed, Process, listening

REQUIREMENTS = ("agentenv-framework==0.9.1364", "openenv==0.10.0", "agentenv-framework-protocol==0.1.379")
_APP = """\
import sys
from pathlib import Path

import uvicorn
from agent_env.openenv import build_app

uvicorn.run(build_app(Path(sys.argv[1]), max_concurrent_envs=32), port=int(sys.argv[2]), log_level="warning")
"""
_WRAPPER = """\
#!/bin/sh
case "$1 $2" in
  "build "*) shift; exec {docker} build --network host {build_args} "$@" ;;
  "buildx version" | "compose version") echo "not needed"; exit 0 ;;
esac
if [ "$1 $2 $3" = "network inspect bridge" ]; then echo {gateway}; exit 0; fi
exec {docker} "$@"
"""
_GATEWAY = "172.17.0.1"


@contextmanager
def original(bundle: Path, work: Path, port: int) -> Iterator[Process]:
    """Its OpenEnv server on the bundle. Containers that it leaves behind are removed at the end."""
    docker = shutil.which("docker")
    if docker is None:
        raise Failed("the original needs the docker command")
    python = asyncio.run(ensure_venv(REQUIREMENTS))
    for name in ("home", "docker", "bin"):
        (work / name).mkdir(parents=True, exist_ok=True)
    base = base_image()
    wrapper = work / "bin" / "docker"
    build_args = f"--build-arg BASE_IMAGE={base}" if base else ""
    wrapper.write_text(_WRAPPER.format(docker=docker, build_args=build_args, gateway=_GATEWAY))
    wrapper.chmod(0o755)
    app = work / "app.py"
    app.write_text(_APP)
    env = os.environ | {
        "HOME": str(work / "home"),
        "DOCKER_CONFIG": str(work / "docker"),
        "PATH": f"{wrapper.parent}{os.pathsep}{os.environ['PATH']}",
    }
    before = containers()
    command = [str(python), str(app), str(bundle), str(port)]
    try:
        with listening(command, f"http://127.0.0.1:{port}", work / "original.log", env) as process:
            yield process
    finally:
        left = [name for name in containers() if name not in before]
        if left:
            subprocess.run(["docker", "rm", "--force", *left], capture_output=True, check=False)


def containers() -> list[str]:
    """Names of its containers, running or not."""
    listed = subprocess.run(
        ["docker", "ps", "--all", "--filter", "name=^agent-local-", "--format", "{{.Names}}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return listed.stdout.split()
