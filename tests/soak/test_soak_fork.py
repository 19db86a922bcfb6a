"""Five hundred forks that leave secrets and look for those of others."""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from pathlib import Path

import pytest
from requirements import absent
from stubs.crosstalk import NOT_ISOLATED, Crosstalk, secret_env

from agent_env.sandbox.docker import DockerProvider
from agent_env.sandbox.fork import Isolating

EPISODES = int(os.environ.get("AGENT_ENV_CROSSTALK", "500"))

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.soak, pytest.mark.timeout(EPISODES * 6 + 120)]


@pytest.fixture
def base() -> str:
    image = os.environ.get("AGENT_ENV_TEST_BASE_IMAGE", "agent-env-test-base:latest")
    if shutil.which("docker") is None:
        absent("docker", "no docker command")
    if subprocess.run(["docker", "image", "inspect", image], capture_output=True, check=False).returncode:
        absent("docker", f"no image {image}")
    return image


async def test_no_fork_sees_what_another_one_keeps(base: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_STATE", str(tmp_path / "state"))
    forking = Isolating(
        DockerProvider(build_args={"BASE_IMAGE": base}, labels={"agent-env.test": uuid.uuid4().hex}), "fork"
    )
    talk = Crosstalk(forking, await forking.prepare(secret_env(tmp_path / "envs" / "secret")))
    try:
        await talk.play(episodes=EPISODES, at_once=12)
    finally:
        await forking.aclose()
    print(f"{EPISODES} episodes; seen at once: {dict(talk.at_once)}; afterwards: {dict(talk.afterwards)}")
    assert set(talk.at_once) <= NOT_ISOLATED
    assert not talk.afterwards
