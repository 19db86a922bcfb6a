from __future__ import annotations

from pathlib import Path
from typing import Any

import docker
import pytest

from agent_env.sandbox.base import SandboxSpec
from agent_env.sandbox.conformance import conformance_env
from agent_env.sandbox.docker import DockerProvider
from agent_env.sandbox.garbage import collect

TEST_LABEL = "agent-env.test"

pytestmark = [pytest.mark.docker, pytest.mark.anyio]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other commands of this machine work with the daemon, too."""
    monkeypatch.setenv("AGENT_ENV_STATE", str(tmp_path / "state"))


async def test_an_image_goes_once_nobody_works_with_the_daemon(
    options: dict[str, Any], mark: str, tmp_path: Path, api: docker.APIClient
) -> None:
    env = conformance_env(tmp_path / "gc-bundle" / "envs")
    label = f"{TEST_LABEL}={mark}-gc"
    provider = DockerProvider(**{**options, "labels": {TEST_LABEL: f"{mark}-gc"}})
    prepared = await provider.prepare(env)
    sandbox = await provider.start(SandboxSpec(prepared, episode="e"))

    looked = await collect(dry_run=False, label=label)
    assert looked.skipped == ["images: a server or run of yours is working with them"]
    assert [item for item in looked.items if item.kind == "image"] == []
    assert (await sandbox.state()).running, "what lives is left alone"

    await provider.aclose()
    dry = await collect(dry_run=True, label=label)
    (name,) = [item.name for item in dry.items if item.kind == "image"]
    assert name.startswith("agent-env/gc-bundle-conformance:")
    assert api.images(name=name)
    done = await collect(dry_run=False, label=label)
    assert [item.name for item in done.items if item.kind == "image"] == [name]
    assert not api.images(name=name)


async def test_an_image_that_a_container_is_made_from_stays(
    options: dict[str, Any], mark: str, tmp_path: Path, api: docker.APIClient
) -> None:
    env = conformance_env(tmp_path / "gc-used" / "envs")
    label = f"{TEST_LABEL}={mark}-used"
    provider = DockerProvider(**{**options, "labels": {TEST_LABEL: f"{mark}-used"}})
    prepared = await provider.prepare(env)
    await provider.aclose()
    container = api.create_container(prepared.handle, labels={TEST_LABEL: mark})
    try:
        kept = await collect(dry_run=False, label=label)
        assert [item for item in kept.items if item.kind == "image"] == []
    finally:
        api.remove_container(container["Id"], v=True)
    gone = await collect(dry_run=False, label=label)
    assert [item.kind for item in gone.items if item.kind == "image"] == ["image"]
