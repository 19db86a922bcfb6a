from __future__ import annotations

from pathlib import Path

import pytest
from stubs.crosstalk import NOT_ISOLATED, Crosstalk, secret_env

from agent_env.sandbox.docker import DockerProvider
from agent_env.sandbox.fork import Isolating

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


async def test_no_fork_sees_what_another_one_keeps(
    provider: DockerProvider, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_ENV_STATE", str(tmp_path / "state"))
    forking = Isolating(provider, "fork")
    talk = Crosstalk(forking, await forking.prepare(secret_env(sources / "secret")))
    try:
        await talk.play(episodes=30, at_once=6)
    finally:
        await forking.aclose()
    everywhere = {"global", "builtins", "module", "environ", "working folder", "home", "TMPDIR", "database"}
    everywhere |= {"/dev/shm", "System V", "/tmp", "/var/tmp", "process cmdline"}
    assert everywhere <= set(talk.own), "a place in which not even its own secret is found shows nothing"
    assert set(talk.at_once) <= NOT_ISOLATED
    assert not talk.afterwards
