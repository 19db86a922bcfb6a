"""A real daemon and a base image, or the reason why there is none. Nothing here starts or stops a daemon."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import docker
import pytest
from requirements import absent
from stubs.containers import client_of_the_daemon

from agent_env.sandbox.docker import DockerProvider
from agent_env.sandbox.netns import can_enter_namespaces

TEST_LABEL = "agent-env.test"
BASE_IMAGES = ("agent-env-test-base:latest", "python:3.12-slim")


@pytest.fixture(scope="session")
def api() -> Iterator[docker.APIClient]:
    yield from client_of_the_daemon()


@pytest.fixture(scope="session")
def base_image(api: docker.APIClient) -> str:
    """`$AGENT_ENV_TEST_BASE_IMAGE`, else one that happens to be here; .ci/base-image makes one."""
    given = os.environ.get("AGENT_ENV_TEST_BASE_IMAGE")
    for tag in (given,) if given else BASE_IMAGES:
        if api.images(name=tag):
            return tag
    return absent(
        "docker", f"no base image; looked for {given or ', '.join(BASE_IMAGES)} (.ci/base-image TAG makes one)"
    )


@pytest.fixture(scope="session")
def mark(api: docker.APIClient) -> Iterator[str]:
    """The value of the label that everything of this test session has; its images go in the end."""
    value = uuid.uuid4().hex
    yield value
    for image in api.images(filters={"label": f"{TEST_LABEL}={value}"}):
        api.remove_image(image["Id"], force=True)


@pytest.fixture(scope="session")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for env sources: the same for the whole session, so that an image is built once."""
    return tmp_path_factory.mktemp("bundle") / "envs"


@pytest.fixture
def by_netns() -> None:
    """For tests of what only root on Linux can do."""
    if not can_enter_namespaces():
        absent("netns", "entering a container's network namespace needs root on Linux")


@pytest.fixture
def options(base_image: str, mark: str) -> dict[str, object]:
    """For a provider."""
    return {"build_args": {"BASE_IMAGE": base_image}, "labels": {TEST_LABEL: mark}}


@pytest.fixture
async def provider(options: dict[str, object]) -> AsyncIterator[DockerProvider]:
    made = DockerProvider(**options)  # type: ignore[arg-type]
    yield made
    await made.aclose()


@pytest.fixture
def whats_there(api: docker.APIClient, mark: str) -> Callable[[], list[str]]:
    """Containers and networks of this test session."""

    def look() -> list[str]:
        mine = {"label": f"{TEST_LABEL}={mark}"}
        containers = [
            f"container {entry['Names']} {entry['Status']}" for entry in api.containers(all=True, filters=mine)
        ]
        return containers + [f"network {entry['Name']}" for entry in api.networks(filters=mine)]

    return look


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """Every test ends with no container and no network of its own."""
    if "api" not in request.fixturenames and "provider" not in request.fixturenames:
        yield
        return
    look = request.getfixturevalue("whats_there")
    yield
    assert look() == []


def cli(*arguments: str, check: bool = True) -> str:
    """The docker command, as a user types it."""
    done = subprocess.run(["docker", *arguments], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0 or not check, done.stderr
    return done.stdout.strip()
