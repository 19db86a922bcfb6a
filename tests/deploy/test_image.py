"""The image and the compose file for real: built, brought up on the host's daemon, played, killed, taken down.

By hand, because the build alone takes a minute: `pytest -m docker tests/deploy`.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import docker
import httpx
import pytest
from deploy.test_manifests import CHECKERS, DEPLOY, REPOSITORY
from stubs.containers import client_of_the_daemon
from stubs.processes import NEMO_GYM, finished
from stubs.stub_bundle import write_stub_bundle

from agent_env.sandbox.docker_config import OWNER_LABEL
from agent_env.sandbox.venvs import ensure_venv

pytestmark = [pytest.mark.docker, pytest.mark.soak, pytest.mark.timeout(900)]
BASE_IMAGE = os.environ.get("AGENT_ENV_TEST_BASE_IMAGE", "python:3.12-slim")


@pytest.fixture(scope="module")
def api() -> Iterator[docker.APIClient]:
    yield from client_of_the_daemon()


@pytest.fixture(scope="module")
def image(api: docker.APIClient) -> Iterator[str]:
    tag = f"agent-env-servers:test-{uuid.uuid4().hex[:8]}"
    network = os.environ.get("BUILD_NETWORK", "default")
    arguments = ("--network", network, "--build-arg", f"BASE_IMAGE={BASE_IMAGE}", "-f", str(DEPLOY / "Dockerfile"))
    done = subprocess.run(
        ["docker", "build", *arguments, "-t", tag, "."], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    yield tag
    api.remove_image(tag, force=True)


class Compose:
    def __init__(self, folder: Path, image: str) -> None:
        self.bundle = write_stub_bundle(folder / f"stub-{uuid.uuid4().hex[:8]}")
        self.env_image = f"agent-env/{self.bundle.name}-stub"
        self.token = folder / "token"
        self.token.write_text("token-of-both\n")
        self.gym_root = folder / "gym-root"
        self.ports = free_ports()
        daemon = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
        self._environment = {
            **os.environ,
            "AGENT_ENV_IMAGE": image,
            "BASE_IMAGE": BASE_IMAGE,
            "BUNDLE": str(self.bundle),
            "COMPOSE_PROJECT_NAME": f"agent-env-test-{uuid.uuid4().hex[:8]}",
            "DOCKER_SOCKET": daemon.removeprefix("unix://"),
            "GYM_ROOT": str(self.gym_root),
            "OPENENV_PORT": str(self.ports[0]),
            "PLACES": "4",
            "RESOURCES_PORT": str(self.ports[1]),
            "STATE": str(folder / "state"),
            "TOKEN_FILE": str(self.token),
        }
        self._command = asyncio.run(ensure_venv(CHECKERS)).with_name("docker-compose")

    def __call__(self, *words: str) -> str:
        done = subprocess.run(
            [self._command, "-f", DEPLOY / "compose.yaml", *words],
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        logs = "" if done.returncode == 0 or words[0] == "logs" else self("logs")
        assert done.returncode == 0, done.stdout + done.stderr + logs
        return done.stdout


@pytest.fixture
def compose(tmp_path: Path, image: str, api: docker.APIClient) -> Iterator[Compose]:
    made = Compose(tmp_path, image)
    try:
        yield made
    finally:
        made("down", "--volumes")
        for container in ours(api, made):
            api.remove_container(container, force=True, v=True)
        for image_of_env in api.images(name=made.env_image):
            api.remove_image(image_of_env["Id"], force=True)


def test_compose_brings_both_servers_up_and_a_killed_one_leaves_nothing(
    compose: Compose, api: docker.APIClient, capsys: pytest.CaptureFixture[str]
) -> None:
    began = time.monotonic()
    compose("up", "--detach", "--no-build", "--wait")
    with capsys.disabled():
        print(f"\nboth servers are up after {time.monotonic() - began:.1f} s")
    assert play(compose) == [0.0] * 3
    assert "ERROR" not in compose("logs")
    strangers = [httpx.get(f"http://127.0.0.1:{port}/capacity", trust_env=False).status_code for port in compose.ports]
    assert strangers == [401, 401]

    compose("kill", "--signal", "KILL", "openenv")
    left = ours(api, compose)
    assert left, "a spare was to be there"
    compose("up", "--detach", "--no-build", "--wait")
    until(lambda: not left & ours(api, compose))
    assert play(compose) == [0.0] * 3

    compose("stop")
    assert ours(api, compose) == set()


def play(compose: Compose) -> list[float | None]:
    out = compose.token.with_name("played.jsonl")
    rows = compose.gym_root / "resources_servers/served/data/train.jsonl"
    url = f"http://127.0.0.1:{compose.ports[1]}"
    flags = ("--rows", str(rows), "--policy", "idle", "--token-file", str(compose.token), "--out", str(out))
    done = finished(NEMO_GYM, "play", url, *flags)
    assert done.process.returncode == 0, done.log + compose("logs")
    return [json.loads(line)["reward"] for line in out.read_text().splitlines()]


def ours(api: docker.APIClient, compose: Compose) -> set[str]:
    """Containers of the bundle's env, whoever started them."""
    images = {image["Id"] for image in api.images(name=compose.env_image)}
    entries = api.containers(all=True, filters={"label": OWNER_LABEL})
    return {entry["Id"] for entry in entries if entry["ImageID"] in images}


def free_ports() -> list[int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        return [one.getsockname()[1], two.getsockname()[1]]


def until(true: Callable[[], bool], seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.2)
