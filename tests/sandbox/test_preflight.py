from __future__ import annotations

import logging
import os
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stubs.stub_bundle import stub_env

from agent_env.bundle.model import Env
from agent_env.errors import ConfigError, EpisodeFailure, FailureKind
from agent_env.findings import Level
from agent_env.sandbox import preflight as module
from agent_env.sandbox.base import Prepared
from agent_env.sandbox.ports import BLOCK, BLOCKS
from agent_env.sandbox.preflight import FILES_BESIDE, FILES_EACH, announce, build, disk_findings, preflight
from agent_env.sandbox.process import ProcessProvider

pytestmark = pytest.mark.anyio


@pytest.fixture
def few_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (FILES_BESIDE + 8 * FILES_EACH, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def places_of(places: int, *envs: Env) -> list[str]:
    provider = ProcessProvider()
    try:
        return [finding.where for finding in await preflight(provider, envs, places=places)]
    finally:
        await provider.aclose()


async def test_a_machine_with_room_has_no_finding() -> None:
    assert await places_of(4) == []


async def test_open_files_are_counted_for_the_asked_places(few_files: None) -> None:
    assert await places_of(8) == []
    assert await places_of(9) == ["open files"]


async def test_more_places_than_ports_are_refused() -> None:
    assert "ports" in await places_of(BLOCK * BLOCKS + 1)


async def test_the_limit_of_processes_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_task_limits", lambda: iter([("the limit of a test", 100)]))
    assert await places_of(3) == []
    assert await places_of(4) == ["processes"]


async def test_an_env_that_asks_for_more_memory_than_there_is_is_named(tmp_path: Path) -> None:
    env = stub_env(tmp_path / "stub")
    settings = replace(env.settings, memory=1 << 60)
    assert await places_of(1, replace(env, settings=settings)) == ["envs/stub/agent-env.toml"]


@pytest.mark.parametrize(
    ("free", "files", "found"),
    [
        (10 << 30, 1_000_000, []),
        (1 << 30, 1_000_000, [Level.WARNING]),
        (100 << 20, 1_000_000, [Level.ERROR]),
        (10 << 30, 100, [Level.WARNING]),
    ],
)
def test_a_disk_without_room_is_named_with_what_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int, files: int, found: list[Level]
) -> None:
    there = os.statvfs(tmp_path)
    values = list(there)
    values[1], values[4], values[5], values[7] = 4096, free // 4096, 10_000_000, files

    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(values))
    findings = list(disk_findings("the test", tmp_path, 8))
    assert [finding.level for finding in findings] == found
    assert all(str(tmp_path) in finding.where for finding in findings)


class Refusing(ProcessProvider):
    """Can't start anything, or can't build."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def check(self) -> None:
        raise self.error

    async def prepare(self, env: Env) -> Prepared:
        raise self.error


async def test_a_provider_that_can_not_start_anything_is_the_only_finding() -> None:
    failure = EpisodeFailure(FailureKind.PROVIDER_UNAVAILABLE, "nobody is there")
    (finding,) = await preflight(Refusing(failure), [], places=1 << 20)
    assert (finding.level, finding.problem) == (Level.ERROR, "nobody is there")
    assert finding.remedy == FailureKind.PROVIDER_UNAVAILABLE.remedy


@pytest.mark.parametrize(
    ("error", "words"),
    [(EpisodeFailure(FailureKind.IMAGE_MISSING, "for arm64"), "for arm64"), (ConfigError("no command"), "no command")],
)
async def test_an_env_that_can_not_be_built_is_a_finding(tmp_path: Path, error: Exception, words: str) -> None:
    prepared, (finding,) = await build(Refusing(error), [stub_env(tmp_path / "stub")])
    assert prepared == {}
    assert (finding.level, finding.where, finding.problem) == (Level.ERROR, "envs/stub", words)


async def test_what_can_be_built_is_given_by_digest(tmp_path: Path) -> None:
    env = stub_env(tmp_path / "stub")
    provider = ProcessProvider()
    prepared, found = await build(provider, [env])
    await provider.aclose()
    assert (list(prepared), found) == ([env.digest], [])


async def test_servers_log_what_is_found(few_files: None, caplog: Any) -> None:
    provider = ProcessProvider()
    with caplog.at_level(logging.WARNING, "agent_env.sandbox.preflight"):
        await announce(provider, [], places=96)
    await provider.aclose()
    (record,) = [record for record in caplog.records if record.name == "agent_env.sandbox.preflight"]
    assert record.levelno == logging.ERROR
    assert "preflight: error: open files: this process may open" in record.getMessage()
    assert "; first: ulimit -n 1664" in record.getMessage()
