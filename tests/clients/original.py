"""agentenv-framework 0.9.1364, the framework whose bundles run here too, in a venv of its own.

Its two Docker plugins are looked for, and not used with the lean env provider; its containers are on the default
bridge, which not every daemon has, and its builds reach a package index from the host's network alone. A `docker`
before the real one on its PATH sees to these things. Nothing of the framework is kept in this repository.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from agent_env.errors import AgentEnvError
from agent_env.sandbox.venvs import ensure_venv, requirements_of

VERSION = "0.9.1364"
REQUIREMENTS = Path(__file__).with_name(f"original-{VERSION}.txt")
SERVE = Path(__file__).with_name("serve_original.py")

_WRAPPER = """\
#!/bin/sh
case "$1 $2" in
  "compose version" | "buildx version") echo "Docker plugin version v2.30.0"; exit 0 ;;
  "network inspect") [ "$3" = bridge ] && {{ echo 172.17.0.1; exit 0; }} ;;
esac
case "$1" in
  build) echo "$@" >>'{builds}'; shift; exec '{docker}' build --network host "$@" ;;
  run | create) verb=$1; shift; exec '{docker}' "$verb" --network '{network}' "$@" ;;
esac
exec '{docker}' "$@"
"""

_TASK = re.compile(r"^\s+tasks/(\S+)\.json v\d+: (?:passed|below 1) \(([^)]*)\)", re.MULTILINE)
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "DOCKER_HOST", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
_START = 300.0
"""seconds until its server answers: it may build an image first"""


class OriginalMissing(Exception):
    """The framework can't be installed or run here; the message says why."""


@dataclass(frozen=True)
class Original:
    """The installed framework and where it may write."""

    python: Path
    folder: Path
    environment: dict[str, str]

    @property
    def examples(self) -> Path:
        """The example bundles in its wheel."""
        found = subprocess.run(
            [self.python, "-c", "import agent_env; print(agent_env.__path__[0])"],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            check=True,
        )
        return Path(found.stdout.strip()) / "examples"

    def run(self, bundle: Path | str) -> dict[str, dict[str, float]]:
        """`agent-env run`: scores by step, by task."""
        done = subprocess.run(
            [self.python.with_name("agent-env"), "run", str(bundle)],
            env=self.environment,
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return {
            task: {step: float(score) for step, score in (item.split(": ") for item in scores.split(", "))}
            for task, scores in _TASK.findall(done.stdout)
        }

    @contextmanager
    def serving(self, bundle: Path, reward: str = "") -> Iterator[str]:
        """The URL of its OpenEnv server of the bundle."""
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        log = self.folder / f"{uuid.uuid4().hex}.log"
        with log.open("w") as output:
            server = subprocess.Popen(
                [self.python, SERVE, str(bundle), str(port), reward],
                env=self.environment,
                cwd=self.folder,
                stdout=output,
                stderr=output,
            )
        try:
            _wait_for(f"http://127.0.0.1:{port}/health", server, log)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()
            try:
                server.wait(60)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


@contextmanager
def original(folder: Path) -> Iterator[Original]:
    """The framework, installed on first use (from a package index; a minute or two), with a home below `folder`.

    Raises:
        OriginalMissing: it can't be installed.
    """
    docker = shutil.which("docker")
    if docker is None:
        raise OriginalMissing("the docker command is not on PATH")
    try:
        python = asyncio.run(ensure_venv(requirements_of(REQUIREMENTS)))
    except (AgentEnvError, OSError) as error:
        raise OriginalMissing(f"agentenv-framework {VERSION} can't be installed: {error}") from error
    network = f"agent-env-test-{uuid.uuid4().hex[:12]}"
    wrapper = folder / "bin" / "docker"
    wrapper.parent.mkdir(parents=True)
    builds = folder / "builds.log"
    builds.touch()
    wrapper.write_text(_WRAPPER.format(docker=docker, network=network, builds=builds))
    wrapper.chmod(0o755)
    home = folder / "home"
    home.mkdir()
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    path = os.pathsep.join([str(wrapper.parent), str(python.parent), kept.get("PATH", os.defpath)])
    environment = kept | {
        "PATH": path,
        "HOME": str(home),
        "DOCKER_CONFIG": str(folder / "docker-config"),
        "NO_PROXY": "127.0.0.1,localhost",
    }
    subprocess.run([docker, "network", "create", network], check=True, capture_output=True)
    try:
        yield Original(python, folder, environment)
    finally:
        subprocess.run([docker, "network", "rm", network], check=True, capture_output=True)
        if images := re.findall(r"-t (\S+)", builds.read_text()):
            subprocess.run([docker, "image", "rm", *images], check=False, capture_output=True)


def _wait_for(url: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _START
    while time.monotonic() < until:
        assert server.poll() is None, log.read_text()
        try:
            with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"it does not answer after {_START:g} s: {log.read_text()}")
