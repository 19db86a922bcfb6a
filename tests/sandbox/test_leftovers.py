"""What is left of sandboxes when servers and keepers are killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from stubs.stub_bundle import stub_env

from agent_env.sandbox.base import SandboxSpec
from agent_env.sandbox.layout import Layout
from agent_env.sandbox.leftovers import reap
from agent_env.sandbox.ownership import owner
from agent_env.sandbox.process import ProcessProvider, sandboxes_dir

SERVER = """
import asyncio, json, os, sys, time
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from agent_env.bundle.model import Env, EnvSettings
from agent_env.env.card import wait_ready
from agent_env.sandbox.base import SandboxSpec
from agent_env.sandbox.process import ProcessProvider

async def main():
    provider = ProcessProvider()
    settings = EnvSettings(command=("python", "server.py"), env={"STUB_SPAWN": "2", "STUB_IGNORE_TERM": "1"})
    env = Env(name="stub", path=Path(sys.argv[2]), environment_name="stub", digest="d", settings=settings)
    sandbox = await provider.start(SandboxSpec(await provider.prepare(env), "episode"))
    await wait_ready(sandbox, timeout=20)
    if os.fork() == 0:
        time.sleep(600)  # holds every descriptor open, as a forked worker would
    exec_task = asyncio.create_task(sandbox.exec(["sleep", "600"], timeout=600))
    await asyncio.sleep(0.2)
    print(json.dumps({"id": sandbox.id, "keeper": sandbox._kept.keeper_pid}), flush=True)
    await exec_task

asyncio.run(main())
"""

pytestmark = pytest.mark.integration


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("AGENT_ENV_STATE", str(folder))
    return folder


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], str, int]]:
    """A server of its own with one sandbox: (process, the sandbox's id, its keeper's pid)."""
    env = stub_env(tmp_path / "stub")
    tests = str(Path(__file__).parents[1])
    command = [sys.executable, "-W", "ignore", "-c", SERVER, tests, str(env.path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        yield process, told["id"], told["keeper"]
        os.killpg(process.pid, signal.SIGKILL)


def processes_of(sandbox: str) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                if f"AGENT_ENV_SANDBOX={sandbox}".encode() in Path(f"/proc/{entry}/environ").read_bytes():
                    found.append(int(entry))
            except OSError:
                continue
    return found


def comes_true(condition: Callable[[], bool], within: float = 5.0) -> bool:
    until = time.monotonic() + within
    while not condition():
        if time.monotonic() > until:
            return False
        time.sleep(0.02)
    return True


def test_a_server_that_is_killed_takes_its_sandboxes_along(
    server: tuple[subprocess.Popen[str], str, int], state: Path
) -> None:
    process, sandbox, _ = server
    assert len(processes_of(sandbox)) == 4
    process.kill()
    process.wait()
    assert comes_true(lambda: not processes_of(sandbox))
    assert comes_true(lambda: not list((state / "sandboxes").iterdir()))


def test_what_a_killed_server_and_killed_keepers_left_is_reaped(
    server: tuple[subprocess.Popen[str], str, int], state: Path
) -> None:
    process, sandbox, keeper = server
    os.kill(keeper, signal.SIGSTOP)
    process.kill()
    process.wait()
    os.kill(keeper, signal.SIGKILL)
    assert len(processes_of(sandbox)) >= 2
    assert reap(sandboxes_dir()) == 1
    assert comes_true(lambda: not processes_of(sandbox))
    assert not list((state / "sandboxes").iterdir())
    assert reap(sandboxes_dir()) == 0


def test_the_sandboxes_of_a_live_server_are_never_touched(
    server: tuple[subprocess.Popen[str], str, int],
) -> None:
    _, sandbox, _ = server
    assert reap(sandboxes_dir()) == 0
    assert len(processes_of(sandbox)) == 4
    assert Layout(sandboxes_dir(), sandbox).app.exists()


@pytest.mark.anyio
async def test_a_provider_does_not_reap_its_own(tmp_path: Path) -> None:
    provider = ProcessProvider()
    try:
        sandbox = await provider.start(SandboxSpec(await provider.prepare(stub_env(tmp_path / "stub")), "episode"))
        assert await provider.reap() == 0
        assert (await sandbox.state()).running
    finally:
        await provider.aclose()


def record(name: str, owner_id: str, deadline: float) -> Layout:
    layout = Layout(sandboxes_dir(), name)
    (layout.folder / "root" / "locked").mkdir(parents=True)
    (layout.folder / "root" / "link").symlink_to("/etc")
    (layout.folder / "root" / "locked").chmod(0)
    layout.owner_file.write_text(json.dumps({"owner": owner_id, "deadline": deadline, "episode": "e"}))
    return layout


def test_a_foreign_owners_sandbox_goes_only_past_its_deadline() -> None:
    machine, boot, namespace, pid, start = owner().split(".")
    foreign = ".".join(["f" * 16, "b" * 32, namespace, pid, start])
    young = record("young", foreign, time.time() + 100)
    old = record("old", foreign, time.time() - 1)
    dead = record("dead", ".".join([machine, boot, namespace, pid, str(int(start) + 1)]), time.time() + 100)
    assert reap(sandboxes_dir()) == 2
    assert young.folder.exists()
    assert not old.folder.exists()
    assert not old.owner_file.exists()
    assert not dead.folder.exists()
    assert Path("/etc").exists()


def test_a_file_that_is_no_record_is_left_alone_and_told(caplog: pytest.LogCaptureFixture) -> None:
    odd = sandboxes_dir() / "odd.json"
    odd.write_text("{}")
    assert reap(sandboxes_dir()) == 0
    assert odd.exists()
    assert "odd.json" in caplog.text


def test_a_record_that_was_never_finished_goes_after_an_hour() -> None:
    young, old = sandboxes_dir() / "young.new", sandboxes_dir() / "old.new"
    for file in (young, old):
        file.write_text("")
    os.utime(old, (1, 1))
    assert reap(sandboxes_dir()) == 0
    assert (young.exists(), old.exists()) == (True, False)
