from __future__ import annotations

import logging
from importlib.metadata import EntryPoint
from typing import Any

import pytest

from agent_env import sandbox
from agent_env.errors import ConfigError, EpisodeFailure, FailureKind
from agent_env.sandbox import choose_provider, provider
from agent_env.sandbox.process import ProcessProvider

pytestmark = pytest.mark.anyio

NOBODY = "tcp://127.0.0.1:1"


async def test_an_unknown_sandbox_is_refused_with_the_known_ones() -> None:
    for choose in (lambda: choose_provider("podman"), lambda: choose_provider("Docker")):
        with pytest.raises(ConfigError, match="auto, docker, process"):
            await choose()


async def test_auto_is_process_where_no_daemon_answers_and_it_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DOCKER_HOST", NOBODY)
    caplog.set_level(logging.INFO)
    chosen = await choose_provider("auto")
    assert chosen.name == "process"
    assert "sandbox: process, because Docker can't be used" in caplog.text
    await chosen.aclose()


async def test_docker_asked_for_and_absent_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", NOBODY)
    with pytest.raises(EpisodeFailure) as raised:
        await choose_provider("docker")
    assert raised.value.kind is FailureKind.PROVIDER_UNAVAILABLE
    assert "\n" not in str(raised.value)
    assert "127.0.0.1:1" in str(raised.value)


def made(**options: Any) -> ProcessProvider:
    chosen = ProcessProvider()
    chosen.name = f"third party {options}"
    return chosen


async def test_third_parties_register_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = EntryPoint("cloud", f"{__name__}:made", sandbox.ENTRY_POINTS)
    monkeypatch.setattr(EntryPoint, "load", lambda self: made)
    monkeypatch.setattr(sandbox, "entry_points", lambda group: [entry] if group == sandbox.ENTRY_POINTS else [])
    assert provider("cloud", region="x").name == "third party {'region': 'x'}"
    with pytest.raises(ConfigError, match="auto, docker, process, cloud"):
        provider("clod")
