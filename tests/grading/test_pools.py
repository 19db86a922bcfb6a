from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest
from stubs.stub_bundle import stub_env

from agent_env.bundle.model import Env
from agent_env.errors import ConfigError, EpisodeFailure, FailureKind
from agent_env.grading import pools as module
from agent_env.grading.pool import DEFAULT_REQUIREMENTS, GraderPool
from agent_env.grading.pools import GraderPools, grader_requirements


def env_with(folder: Path, requirements: str | None) -> Env:
    env = stub_env(folder / "stub")
    if requirements is None:
        return env
    (folder / "stub" / "needs.txt").write_text(requirements)
    return replace(env, settings=replace(env.settings, requirements="needs.txt"))


@pytest.mark.parametrize(
    ("requirements", "expected"),
    [
        (None, DEFAULT_REQUIREMENTS),
        ("", DEFAULT_REQUIREMENTS),
        ("numpy<3\n", ("numpy<3", *DEFAULT_REQUIREMENTS)),
        ("HTTPX==0.28.1 # exactly\n", ("HTTPX==0.28.1", *DEFAULT_REQUIREMENTS[:2])),
        ("agentenv_framework.protocol>=0.1\n", ("agentenv_framework.protocol>=0.1", *DEFAULT_REQUIREMENTS[1:])),
        ("mcp[cli]>=1.25,<2\n", ("mcp[cli]>=1.25,<2", DEFAULT_REQUIREMENTS[0], DEFAULT_REQUIREMENTS[2])),
    ],
)
def test_an_envs_requirements_are_its_graders_too(
    tmp_path: Path, requirements: str | None, expected: tuple[str, ...]
) -> None:
    assert grader_requirements(env_with(tmp_path, requirements)) == expected


def test_gridsims_graders_need_no_venv_of_their_own(tmp_path: Path) -> None:
    text = "agentenv-framework-protocol==0.1.379\nmcp>=1.25,<2\n"
    assert frozenset(grader_requirements(env_with(tmp_path, text))) == frozenset(DEFAULT_REQUIREMENTS)


@pytest.mark.anyio
async def test_envs_share_the_pools_of_their_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, ...]] = []

    class Pool(GraderPool):
        def __init__(self, requirements: tuple[str, ...] = ()) -> None:
            super().__init__(requirements)
            made.append(tuple(requirements))

        async def prepare(self) -> None: ...

    monkeypatch.setattr(module, "GraderPool", Pool)
    pools = GraderPools(Pool())
    plain = env_with(tmp_path / "plain", None)
    one, other = env_with(tmp_path / "one", "numpy"), env_with(tmp_path / "other", "numpy")
    await pools.prepare([plain, one, other])
    assert made == [(), ("numpy", *DEFAULT_REQUIREMENTS)]
    assert pools.of(plain) is pools.default
    assert pools.of(one) is pools.of(other) is not pools.default
    await pools.aclose()


@pytest.mark.anyio
async def test_packages_that_can_not_be_had_are_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Pool(GraderPool):
        async def prepare(self) -> None:
            if self._requirements:
                raise EpisodeFailure(FailureKind.DEPLOY_FAILED, "no matching distribution")

    monkeypatch.setattr(module, "GraderPool", Pool)
    pools = GraderPools(Pool(()))
    env = env_with(tmp_path, "no-such-package-at-all")
    with caplog.at_level(logging.WARNING):
        await pools.prepare([env])
    assert "graders of env stub have the default packages only" in caplog.text
    assert "no matching distribution" in caplog.text
    assert pools.of(env) is pools.default
    await pools.aclose()


@pytest.mark.anyio
async def test_a_requirements_file_that_is_wrong_is_told(tmp_path: Path) -> None:
    pools = GraderPools(GraderPool(requirements=()))
    with pytest.raises(ConfigError, match="only packages of an index"):
        await pools.prepare([env_with(tmp_path, "-e .")])
    await pools.aclose()
