from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent_env.sandbox.base import ExecResult, Prepared, SandboxSpec, SandboxState
from agent_env.sandbox.conformance import CHECKS, Check, Subject, run, run_check
from agent_env.sandbox.process import ProcessProvider, ProcessSandbox

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENT_ENV_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


async def what_is_there(state: Path) -> Sequence[str]:
    """Folders and processes of sandboxes under this state folder."""
    return await asyncio.to_thread(_what_is_there, state)


def _what_is_there(state: Path) -> list[str]:
    folders = [str(path) for path in (state / "sandboxes").glob("*")]
    processes = []
    for entry in filter(str.isdigit, os.listdir("/proc")):
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        if b"AGENT_ENV_SANDBOX=" in environment and str(state).encode() in environment:
            processes.append(f"process {entry}")
    return folders + processes


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_process_conforms(check: Check, state: Path, tmp_path: Path) -> None:
    subject = Subject(
        make=ProcessProvider,
        leftovers=partial(what_is_there, state),
        factory="agent_env.sandbox.process:ProcessProvider",
    )
    await run_check(check, subject, tmp_path)


class BrokenSandbox:
    """A real one, with the faults that providers have had."""

    def __init__(self, real: ProcessSandbox) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def exec(self, argv: Sequence[str], *, timeout: float, **options: Any) -> ExecResult:
        """Gives up waiting at the deadline, and leaves the command running."""
        try:
            async with asyncio.timeout(timeout):
                real = asyncio.ensure_future(self._real.exec(argv, timeout=3600, **options))
                real.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
                return await asyncio.shield(real)
        except TimeoutError:
            return ExecResult(137, b"", b"", timed_out=True)

    async def state(self) -> SandboxState:
        """Takes every end for a crash."""
        told = await self._real.state()
        return told if told.running else SandboxState(running=False, exit_code=told.exit_code or 1)

    async def logs(self, limit: int = 65_536) -> str:
        """Cuts without a word."""
        return (await self._real.logs(1 << 20))[-limit:]

    async def get(self, path: str, *, limit: int = 64 << 20) -> bytes:
        """Cuts there as well."""
        return (await self._real.get(path))[:limit]


class BrokenProvider:
    name = "broken"

    def __init__(self) -> None:
        self._real = ProcessProvider()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    async def start(self, spec: SandboxSpec) -> BrokenSandbox:
        return BrokenSandbox(await self._real.start(SandboxSpec(spec.prepared, spec.episode)))

    async def prepare(self, env: Any) -> Prepared:
        return await self._real.prepare(env)


async def test_a_broken_provider_fails_where_it_is_broken(state: Path) -> None:
    subject = Subject(make=BrokenProvider, leftovers=partial(what_is_there, state), patience=2.0)
    failures = await run(subject)
    assert set(failures) == {
        "the_env_gets_its_variables",
        "sandboxes_are_apart",
        "exec_ends_at_its_deadline_with_all_that_it_started",
        "a_cancelled_exec_leaves_no_process",
        "a_file_that_is_missing_or_too_large_is_a_failure",
        "logs_hold_the_end_and_say_when_cut",
        "stop_ends_it_and_says_it_was_us",
        "stop_goes_on_to_kill",
    }
