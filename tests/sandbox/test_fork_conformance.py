from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from agent_env.sandbox.conformance import CHECKS, Check, Subject, run_check
from agent_env.sandbox.fork import Isolating
from agent_env.sandbox.process import ProcessProvider

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


def forking() -> Isolating:
    """Also called in processes that the suite starts."""
    return Isolating(ProcessProvider(), "fork")


def what_is_there(state: Path, providers: Sequence[Isolating]) -> list[str]:
    """Folders and processes under this state folder, but for the servers that these providers keep for more forks."""
    hosts = {host.id: host for provider in providers for host in provider.hosts}
    keeping = {host.sandbox.id: host.sandbox.pid for host in hosts.values() if host.sandbox}  # type: ignore[attr-defined]
    found = [str(path) for path in (state / "sandboxes").glob("*") if path.stem not in keeping]
    for folder in (state / "forks").glob("*"):
        kept = [*folder.glob("forks/*"), *folder.glob("control/logs/*")] if folder.name in hosts else [folder]
        found += map(str, kept)
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            variables = Path(f"/proc/{entry}/environ").read_bytes().split(b"\0")
        except OSError:
            continue
        marks = [value.partition(b"=")[2].decode() for value in variables if value.startswith(b"AGENT_ENV_SANDBOX=")]
        ours = any(str(state).encode() in value for value in variables)
        if marks and ours and keeping.get(marks[0]) != int(entry):
            found.append(f"process {entry}")
    return found


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_forks_of_a_process_conform(check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = tmp_path / "state"
    monkeypatch.setenv("AGENT_ENV_STATE", str(state))
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    made: list[Isolating] = []

    def make() -> Isolating:
        made.append(forking())
        return made[-1]

    async def left() -> Sequence[str]:
        for provider in made:
            await provider.settled()
        return await asyncio.to_thread(what_is_there, state, made)

    await run_check(check, Subject(make=make, leftovers=left, factory="test_fork_conformance:forking"), tmp_path)
