"""Forks of a plain process; tests/docker/test_fork_docker.py has those of a container."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from stubs.crosstalk import Crosstalk, secret_env
from stubs.stub_bundle import stub_env

from agent_env.bundle.model import Env, EnvSettings
from agent_env.env.card import wait_ready
from agent_env.errors import ConfigError, EpisodeFailure, FailureKind
from agent_env.sandbox import fork_host
from agent_env.sandbox.base import Sandbox, SandboxSpec, bare_env
from agent_env.sandbox.conformance_checks import answers, ask
from agent_env.sandbox.fork import Isolating
from agent_env.sandbox.fork_sandbox import ForkSandbox
from agent_env.sandbox.process import ProcessProvider, ProcessSandbox

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

REPORT = Path(__file__).parents[1] / "stubs" / "report_env.py"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENT_ENV_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def report_env(folder: Path, *command: str, **settings: Any) -> Env:
    folder.mkdir()
    (folder / "server.py").write_text(REPORT.read_text())
    (folder / "neighbour.py").write_text("")
    chosen = EnvSettings(command=command or ("python", "server.py"), **settings)
    return Env(name="report", path=folder, environment_name="report", digest=str(folder), settings=chosen)


@asynccontextmanager
async def forking(isolation: str = "fork", **options: Any) -> AsyncIterator[Isolating]:
    provider = Isolating(ProcessProvider(), isolation, **options)
    try:
        yield provider
    finally:
        await provider.aclose()


async def start(provider: Isolating, env: Env, **variables: str) -> Sandbox:
    prepared = await provider.prepare(env)
    sandbox = await provider.start(SandboxSpec(prepared=prepared, episode="test", env_vars=variables))
    await answers(sandbox)
    return sandbox


async def ended(sandbox: Sandbox) -> Any:
    async with asyncio.timeout(20):
        while (state := await sandbox.state()).running:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return state


async def report(isolation: str, env: Env, ask_for: str = "/report") -> dict[str, Any]:
    async with forking(isolation) as provider:
        sandbox = await start(provider, env)
        assert isinstance(sandbox, ForkSandbox if isolation == "fork" else ProcessSandbox)
        told = await ask(sandbox, ask_for)
        root = sandbox.path("/")  # type: ignore[attr-defined]
        return {key: _relative(value, root) for key, value in told.items()}


def _relative(value: Any, root: str) -> Any:
    if isinstance(value, str):
        return value.replace(root, "ROOT")
    return [_relative(item, root) for item in value] if isinstance(value, list) else value


COMMANDS = {
    "script": ("python", "server.py", "--day", "1"),
    "module": ("python", "-m", "server", "x"),
    "options": ("python", "-O", "-X", "utf8", "server.py"),
    "code": ("python", "-c", "import runpy; runpy.run_path('server.py', run_name='__main__')", "x"),
    "isolated": ("python", "-I", "-c", "import sys; sys.path.insert(0, '.'); import server; server.main()"),
    "shell": ("sh", "-c", "exec python3 server.py"),
}


@pytest.mark.parametrize("command", COMMANDS)
async def test_a_fork_finds_itself_as_if_it_had_been_started_anew(command: str, tmp_path: Path) -> None:
    env = report_env(tmp_path / "env", *COMMANDS[command], preload=("json", "tempfile", "multiprocessing", "asyncio"))
    forked, plain = await report("fork", env), await report("container", env)
    for told in (forked, plain):
        assert told["exit code"] == 4
        assert told["leads its session"]
    assert forked == plain


def other_pythons() -> list[str]:
    """Installed beside ours, as pyenv and uv do, from 3.9 on."""
    found = []
    for path in sorted(Path(sys.base_prefix).parent.glob("*/bin/python3")):
        done = subprocess.run(
            [path, "-c", "import sys; print(*sys.version_info[:2])"], capture_output=True, check=False
        )
        version = tuple(map(int, done.stdout.split())) if done.returncode == 0 else (0,)
        if version >= (3, 9) and version != sys.version_info[:2]:
            found.append(str(path))
    return found


@pytest.mark.parametrize("python", other_pythons())
async def test_envs_of_other_pythons_than_ours(python: str, tmp_path: Path) -> None:
    env = report_env(tmp_path / "env", python, "server.py", preload=("json", "tempfile", "multiprocessing", "asyncio"))
    assert await report("fork", env) == await report("container", env)


async def test_what_must_be_different_in_each_fork_is(tmp_path: Path) -> None:
    env = report_env(tmp_path / "env", preload=("random", "multiprocessing", "uuid"))
    async with forking() as provider:
        told = [await ask(await start(provider, env), "/unique") for _ in range(3)]
    for key in told[0]:
        assert len({one[key] for one in told}) == 3, key


@pytest.mark.parametrize(
    ("way", "code", "printed"),
    [
        ("return", 0, "at exit"),
        ("5", 5, "at exit"),
        ("raise", 1, "ValueError: as asked"),
        ("text", 1, "with a word"),
        ("thread", 0, "thread done"),
    ],
)
async def test_a_fork_ends_as_any_program_does(way: str, code: int, printed: str, tmp_path: Path) -> None:
    async with forking() as provider:
        sandbox = await start(provider, report_env(tmp_path / "env"))
        with suppress(OSError, ValueError):  # it may end before it has answered
            await ask(sandbox, f"/{way}")
        state = await ended(sandbox)
        assert (state.exit_code, state.lost, state.stopped_by_us) == (code, False, False)
        assert printed in await sandbox.logs()
        assert "at exit" in await sandbox.logs()


async def test_a_fork_that_crashes_harms_no_sibling(tmp_path: Path) -> None:
    async with forking() as provider:
        env = report_env(tmp_path / "env")
        first, second = await start(provider, env), await start(provider, env)
        assert len(provider.hosts) == 1
        os.kill(await _pid(first), signal.SIGSEGV)
        state = await ended(first)
        assert (state.exit_code, state.lost) == (128 + signal.SIGSEGV, False)
        await answers(second)
        await answers(await start(provider, env))


async def test_what_a_fork_started_ends_with_it(tmp_path: Path) -> None:
    async with forking() as provider:
        sandbox = await start(provider, stub_env(tmp_path / "env", env_vars={"STUB_SPAWN": "2"}))
        assert isinstance(sandbox, ForkSandbox)
        keeper = sandbox._kept.keeper_pid
        below = _below(keeper)
        assert len(below) == 3
        await sandbox.stop(grace=0)
        assert [pid for pid in [keeper, *below] if _lives(pid)] == []
        assert provider.hosts[0].used == 0


async def test_a_server_that_is_killed_loses_its_forks_and_the_next_ones_get_another(tmp_path: Path) -> None:
    async with forking() as provider:
        env = report_env(tmp_path / "env")
        sandbox = await start(provider, env)
        host = provider.hosts[0]
        assert isinstance(host.sandbox, ProcessSandbox)
        os.kill(host.sandbox.pid, signal.SIGKILL)
        state = await ended(sandbox)
        assert state.lost
        assert not state.stopped_by_us
        other = await start(provider, env)
        assert isinstance(other, ForkSandbox)
        assert other.host is not host
        await sandbox.stop()
        assert host not in provider.hosts


async def test_a_keeper_that_is_killed_retires_its_server(tmp_path: Path) -> None:
    async with forking() as provider:
        env = report_env(tmp_path / "env")
        sandbox, sibling = await start(provider, env), await start(provider, env)
        assert isinstance(sandbox, ForkSandbox)
        os.kill(sandbox._kept.keeper_pid, signal.SIGKILL)
        assert (await ended(sandbox)).lost
        await sandbox.stop()
        assert provider.hosts[0].retired
        await answers(sibling)
        await answers(await start(provider, env))
        await sibling.stop()
        assert len(provider.hosts) == 1
        assert not provider.hosts[0].retired


async def test_servers_are_replaced_before_they_are_due_and_nobody_waits(tmp_path: Path, state: Path) -> None:
    async with forking(episodes=2, forks=4) as provider:
        env = report_env(tmp_path / "env")
        hosts = set()
        for _ in range(12):
            sandbox = await start(provider, env)
            assert isinstance(sandbox, ForkSandbox)
            hosts.add(sandbox.host)
            await sandbox.stop(grace=0)
            await provider.settled()
        assert len(hosts) in (3, 4)
        assert all(host.forks <= 4 for host in hosts)
    assert not list((state / "forks").iterdir())


async def test_a_server_that_grows_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_host, "GROWTH", -(1 << 40))
    async with forking() as provider:
        prepared = await provider.prepare(stub_env(tmp_path / "env"))
        hosts = set()
        for _ in range(60):
            sandbox = await provider.start(SandboxSpec(prepared=prepared, episode="test"))
            assert isinstance(sandbox, ForkSandbox)
            hosts.add(sandbox.host)
            await sandbox.stop(grace=0)
        assert len(hosts) == 2


async def test_more_episodes_than_one_server_holds_get_another_server(tmp_path: Path) -> None:
    async with forking(episodes=3) as provider:
        env = report_env(tmp_path / "env")
        sandboxes = await asyncio.gather(*(start(provider, env) for _ in range(7)))
        assert sorted(host.used for host in provider.hosts) == [1, 3, 3]
        await asyncio.gather(*(sandbox.stop(grace=0) for sandbox in sandboxes))
        assert [host.used for host in provider.hosts] == [0]


async def test_an_env_that_does_not_use_mcp_port_is_told_so(tmp_path: Path) -> None:
    env = report_env(tmp_path / "env")
    (env.path / "server.py").write_text("import socket, time\ns = socket.create_server(('', 0))\ntime.sleep(60)\n")
    async with forking() as provider:
        prepared = await provider.prepare(env)
        sandbox = await provider.start(SandboxSpec(prepared=prepared, episode="test"))
        with pytest.raises(EpisodeFailure, match="must use MCP_PORT"):
            await wait_ready(sandbox, timeout=1)


async def test_a_module_that_can_not_be_preloaded_is_named(tmp_path: Path) -> None:
    env = report_env(tmp_path / "env", preload=("json", "no_such_module"))
    async with forking() as provider:
        with pytest.raises(EpisodeFailure, match="preload: no_such_module: ModuleNotFoundError") as raised:
            await start(provider, env)
        assert raised.value.kind is FailureKind.DEPLOY_FAILED


async def test_an_interpreter_that_does_not_start_is_quoted(tmp_path: Path) -> None:
    env = report_env(tmp_path / "env", sys.executable, "-X", "no_such=", "-Wno-such-filter::::::", "server.py")
    (env.path / "sitecustomize.py").write_text("raise SystemExit('not today')")
    env = Env(**{**_fields(env), "settings": EnvSettings(command=env.settings.command, env={"PYTHONPATH": "."})})
    async with forking() as provider:
        with pytest.raises(EpisodeFailure, match=r"its fork server: it ended; its last output: .*not today"):
            await start(provider, env)


async def test_secrets_do_not_reach_the_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUR_KEY", "hush-hush")
    env = report_env(tmp_path / "env", env={"KEY": "env:OUR_KEY"})
    (env.path / "neighbour.py").write_text("import os\nprint('the key is', os.environ['KEY'], flush=True)\n")
    async with forking() as provider:
        sandbox = await start(provider, env)
        assert "the key is ***" in await sandbox.logs()


async def test_paths_lead_nowhere_but_into_the_fork(tmp_path: Path) -> None:
    async with forking() as provider:
        sandbox = await start(provider, report_env(tmp_path / "env"))
        assert isinstance(sandbox, ForkSandbox)
        await sandbox.put("notes/day.txt", b"beside the server")
        assert await sandbox.get(sandbox.path("notes/day.txt")) == b"beside the server"
        done = await sandbox.exec(["sh", "-c", "cat notes/day.txt; ln -s /etc out; ln -s /etc/passwd file"], timeout=20)
        assert done.stdout == b"beside the server"
        for path in ("../../../outside", "out/passwd", "file", "/home/../../../x"):
            with pytest.raises(EpisodeFailure):
                await sandbox.get(path)
            with pytest.raises(EpisodeFailure, match=r"leads out|symbolic"):
                await sandbox.put(path, b"x")
        for path in ("fifo", "/home"):
            await sandbox.exec(["mkfifo", "fifo"], timeout=20)
            with pytest.raises(EpisodeFailure, match="reading"):
                await sandbox.get(path)


async def test_no_fork_finds_a_secret_of_another_in_a_place_of_its_own(tmp_path: Path) -> None:
    async with forking() as provider:
        talk = Crosstalk(provider, await provider.prepare(secret_env(tmp_path / "env", own_only=True)))
        await talk.play(episodes=30, at_once=6)
    own = {"global", "builtins", "module", "environ", "working folder", "home", "TMPDIR", "database"}
    assert set(talk.own) == own
    assert not talk.at_once
    assert not talk.afterwards


async def test_other_envs_pass_as_ever(tmp_path: Path) -> None:
    provider = Isolating(ProcessProvider())
    try:
        assert isinstance(await start(provider, report_env(tmp_path / "env")), ProcessSandbox)
        prepared = await provider.prepare(bare_env())
        assert isinstance(await provider.start(SandboxSpec(prepared=prepared, episode="bare")), ProcessSandbox)
        as_it_says = await start(provider, report_env(tmp_path / "other", isolation="fork"))
        assert isinstance(as_it_says, ForkSandbox)
    finally:
        await provider.aclose()


async def test_only_known_isolations_and_providers_that_can(tmp_path: Path) -> None:
    class Other(ProcessProvider):
        """Somebody else's."""

    with pytest.raises(ConfigError, match=r"isolation 'vm' is not known; there are: container, fork"):
        Isolating(ProcessProvider(), "vm")
    provider = Isolating(ProcessProvider(), "fork")
    provider._ground = None
    with pytest.raises(ConfigError, match="not available in the process sandbox"):
        await provider.prepare(report_env(tmp_path / "env"))
    await provider.aclose()


def _fields(env: Env) -> dict[str, Any]:
    return {name: getattr(env, name) for name in ("name", "path", "environment_name", "digest")}


async def _pid(sandbox: Sandbox) -> int:
    assert isinstance(sandbox, ForkSandbox)
    return sandbox._kept.pid


def _below(pid: int) -> list[int]:
    from agent_env.sandbox.keeper import descendants

    return descendants(pid)


def _lives(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False
