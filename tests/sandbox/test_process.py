from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from stubs.stub_bundle import stub_env

from agent_env.bundle.model import Env, EnvSettings
from agent_env.env.card import wait_ready
from agent_env.env.http import EnvHttp
from agent_env.env.tools import ToolSession
from agent_env.errors import ConfigError, EpisodeFailure, FailureKind
from agent_env.sandbox import process, supervision
from agent_env.sandbox.base import Prepared, Sandbox, SandboxProvider, SandboxSpec
from agent_env.sandbox.keeper import descendants
from agent_env.sandbox.process import ProcessProvider, ProcessSandbox, command_of

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("AGENT_ENV_STATE", str(folder))
    return folder


@pytest.fixture(autouse=True)
def nothing_is_left(state: Path) -> Iterator[None]:
    yield
    left = state / "sandboxes"
    assert not left.exists() or not list(left.iterdir())
    assert not marked_processes(str(state))


def marked_processes(text: str) -> list[int]:
    """Processes that have this text in their environment as a sandbox would."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid():
            try:
                environment = Path(f"/proc/{entry}/environ").read_bytes()
            except OSError:
                continue
            if b"AGENT_ENV_SANDBOX=" in environment and text.encode() in environment:
                found.append(int(entry))
    return found


@asynccontextmanager
async def providing() -> AsyncIterator[ProcessProvider]:
    provider = ProcessProvider()
    try:
        yield provider
    finally:
        await provider.aclose()


@asynccontextmanager
async def started(env: Env, **spec: float) -> AsyncIterator[ProcessSandbox]:
    async with providing() as provider:
        yield await provider.start(SandboxSpec(await provider.prepare(env), "episode", **spec))  # type: ignore[arg-type]


@asynccontextmanager
async def playing(sandbox: ProcessSandbox) -> AsyncIterator[ToolSession]:
    card = await wait_ready(sandbox, timeout=20, expected_name="stub")
    http = EnvHttp(sandbox)
    try:
        session = await ToolSession.open(http, card)
        yield session
        await session.close()
    finally:
        await http.aclose()


async def ready(sandbox: ProcessSandbox) -> None:
    await wait_ready(sandbox, timeout=20, expected_name="stub")


async def test_it_is_the_sandbox_that_the_contract_asks_for(tmp_path: Path) -> None:
    async with started(stub_env(tmp_path / "stub")) as sandbox:
        assert isinstance(sandbox, Sandbox)
        assert isinstance(sandbox._provider, SandboxProvider)
        assert sandbox.url == f"http://{sandbox.authority}"


async def test_an_env_starts_answers_and_leaves_nothing(tmp_path: Path, state: Path) -> None:
    async with started(stub_env(tmp_path / "stub", env_vars={"STUB_SPAWN": "3"})) as sandbox:
        async with playing(sandbox) as session:
            assert (await session.call("add", {"a": 1, "b": 2}, timeout=5)).structured_content == {"sum": 3}
            assert (await sandbox.state()).running
            assert len(marked_processes(str(state))) == 4
            started_at = time.monotonic()
            await sandbox.stop()
            assert time.monotonic() - started_at < 1
            end = await sandbox.state()
            assert (end.running, end.stopped_by_us, end.oom_killed, end.lost) == (False, True, False, False)
            assert not marked_processes(str(state))
            with pytest.raises(ConnectionRefusedError):
                await sandbox.connect()


async def test_an_env_whose_image_is_an_artifact_runs_its_sources(tmp_path: Path) -> None:
    env = stub_env(tmp_path / "stub")
    artifact = env.path.rename(tmp_path / "artifact")
    env.path.mkdir()
    async with started(replace(env, context=artifact)) as sandbox:
        await ready(sandbox)


async def test_the_environment_is_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_SECRET_OF_THE_SERVER", "hush")
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("KEY_FOR_IT", "k3y")
    env = stub_env(tmp_path / "stub", env_vars={"GIVEN": "yes", "KEY": "env:KEY_FOR_IT"})
    async with started(env) as sandbox:
        shown = await sandbox.exec(["env"], timeout=10)
        lines = dict(line.split("=", 1) for line in shown.stdout.decode().splitlines())
        root = str(sandbox._layout.root)
        assert lines["MCP_HOST"] == "127.0.0.1"
        assert lines["MCP_PORT"] == sandbox.authority.split(":")[1]
        assert lines["ENVIRONMENT_NAME"] == lines["SERVICE_NAME"] == "stub"
        assert lines["DATABASE_URL"] == f"sqlite:///{root}/data/stub.sqlite"
        assert lines["DATABASE_URL"].startswith("sqlite:////")
        assert (lines["HOME"], lines["TMPDIR"]) == (f"{root}/home", f"{root}/tmp")
        assert (lines["GIVEN"], lines["KEY"]) == ("yes", "k3y")
        assert "A_SECRET_OF_THE_SERVER" not in lines
        assert "PYTHONPATH" not in lines
        assert (await sandbox.exec(["pwd"], timeout=10)).stdout.decode().strip() == f"{root}/app"


async def test_limits_hold_for_each_process(tmp_path: Path) -> None:
    env = stub_env(tmp_path / "stub", memory=256 << 20)
    async with started(env) as sandbox:
        await ready(sandbox)
        limits = await sandbox.exec(["sh", "-c", "ulimit -c; ulimit -n; ulimit -d"], timeout=10)
        assert limits.stdout.split() == [b"0", b"4096", b"262144"]
        greedy = await sandbox.exec(["python", "-c", "x = bytearray(400 << 20)"], timeout=10)
        assert greedy.exit_code == 1
        assert b"MemoryError" in greedy.stderr


async def test_a_crash_is_told_with_its_exit_code_and_last_words(tmp_path: Path) -> None:
    async with started(stub_env(tmp_path / "stub", env_vars={"STUB_EXIT_CODE": "7"})) as sandbox:
        async with playing(sandbox) as session:
            with pytest.raises(EpisodeFailure) as raised:
                await session.call("crash", {}, timeout=5)
            assert raised.value.kind is FailureKind.ENV_CRASHED
            assert "exit code 7" in raised.value.reason
            assert "crashing as asked" in raised.value.reason
            end = await sandbox.state()
            assert (end.running, end.exit_code, end.stopped_by_us, end.lost) == (False, 7, False, False)


async def test_a_server_that_ends_before_it_listens_is_noticed_at_once(tmp_path: Path) -> None:
    async with started(stub_env(tmp_path / "stub", env_vars={"STUB_EXIT_AT_START": "9"})) as sandbox:
        started_at = time.monotonic()
        with pytest.raises(EpisodeFailure, match=r"exit code 9.*ending at once as asked") as raised:
            await wait_ready(sandbox, timeout=30)
        assert raised.value.kind is FailureKind.ENV_CRASHED
        assert time.monotonic() - started_at < 5


async def test_a_kill_from_outside_is_a_lost_sandbox(tmp_path: Path) -> None:
    for number in (signal.SIGKILL, signal.SIGTERM):
        async with started(stub_env(tmp_path / f"stub{number}")) as sandbox:
            async with playing(sandbox) as session:
                call = asyncio.create_task(session.call("sleep", {"seconds": 10}, timeout=20))
                await asyncio.sleep(0.05)
                os.kill(sandbox.pid, number)
                with pytest.raises(EpisodeFailure) as raised:
                    await call
                assert raised.value.kind is FailureKind.SANDBOX_LOST
                assert number.name in raised.value.reason
                assert (await sandbox.state()).exit_code == 128 + number


async def test_what_ignores_sigterm_is_killed_after_the_grace(tmp_path: Path) -> None:
    async with started(stub_env(tmp_path / "stub", env_vars={"STUB_IGNORE_TERM": "1"})) as sandbox:
        await ready(sandbox)
        started_at = time.monotonic()
        await asyncio.gather(sandbox.stop(grace=0.3), sandbox.stop(grace=60))
        assert 0.25 < time.monotonic() - started_at < 2
        assert (await sandbox.state()).exit_code == 137


async def test_a_stop_during_the_start_leaves_nothing(tmp_path: Path) -> None:
    async with started(stub_env(tmp_path / "stub", env_vars={"STUB_START_DELAY": "30"})) as sandbox:
        waiting = asyncio.create_task(wait_ready(sandbox, timeout=30))
        await asyncio.sleep(0.1)
        await sandbox.stop()
        with pytest.raises(EpisodeFailure, match="we ended"):
            await waiting


async def test_a_start_that_is_cancelled_at_any_moment_leaves_nothing(tmp_path: Path, state: Path) -> None:
    async with providing() as provider:
        prepared = await provider.prepare(stub_env(tmp_path / "stub"))
        for milliseconds in (0, 1, 2, 4, 8, 16, 32):
            start = asyncio.create_task(provider.start(SandboxSpec(prepared, "episode")))
            await asyncio.sleep(milliseconds / 1000)
            start.cancel()
            await asyncio.wait({start})
            if not start.cancelled():
                await start.result().stop()
            assert not list((state / "sandboxes").iterdir())


async def test_closing_the_provider_stops_all(tmp_path: Path, state: Path) -> None:
    async with providing() as provider:
        prepared = await provider.prepare(stub_env(tmp_path / "stub"))
        await asyncio.gather(*(provider.start(SandboxSpec(prepared, "episode")) for _ in range(4)))
        assert len(marked_processes(str(state))) == 4
    assert not marked_processes(str(state))


async def test_a_longest_life_is_kept_and_counts_as_our_stop(tmp_path: Path) -> None:
    async with started(stub_env(tmp_path / "stub"), max_life=0.3) as sandbox:
        await asyncio.wait_for(asyncio.shield(sandbox._kept.exited), 5)
        end = await sandbox.state()
        assert (end.running, end.stopped_by_us) == (False, True)


async def test_output_is_bounded_and_never_stalls_the_env(tmp_path: Path) -> None:
    env = stub_env(tmp_path / "stub", env_vars={"STUB_PRINT_BYTES": str(30 << 20)})
    async with started(env) as sandbox:
        await ready(sandbox)
        on_disk = sum(file.stat().st_size for file in sandbox._layout.folder.glob("output.*"))
        assert on_disk <= 2 << 20
        tail = await sandbox.logs(300)
        assert tail.startswith("[")
        assert "earlier bytes left out]" in tail.splitlines()[0]
        assert "printed all" in tail


async def test_secrets_do_not_show_in_logs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_FOR_IT", "k3y")
    folder = tmp_path / "stub"
    env = stub_env(folder, env_vars={"KEY": "env:KEY_FOR_IT"})
    (folder / "server.py").write_text("import os; print('key is', os.environ['KEY'], flush=True); exit(1)")
    async with started(env) as sandbox:
        with pytest.raises(EpisodeFailure, match=r"key is \*\*\*"):
            await wait_ready(sandbox, timeout=10)


async def test_exec_feeds_stdin_and_gives_both_outputs_and_the_exit_code(tmp_path: Path) -> None:
    async with started(stub_env(tmp_path / "stub")) as sandbox:
        done = await sandbox.exec(
            ["sh", "-c", "cat; echo $X >&2; pwd; exit 5"], timeout=10, input=b"in", env={"X": "err"}, cwd="/data"
        )
        assert (done.exit_code, done.stderr, done.timed_out, done.cut) == (5, b"err\n", False, False)
        assert done.stdout == f"in{sandbox._layout.root}/data\n".encode()
        missing = await sandbox.exec(["no-such-command"], timeout=10)
        assert (missing.exit_code, b"No such file" in missing.stderr) == (127, True)
        big = await sandbox.exec(["cat"], timeout=10, input=b"z" * (1 << 20), output_limit=1000)
        assert (big.stdout, big.cut, big.exit_code) == (b"z" * 1000, True, 0)
        assert (await sandbox.exec(["true"], timeout=10, input=b"z" * (1 << 20))).exit_code == 0


async def test_the_deadline_of_an_exec_kills_all_it_started_but_not_the_env(tmp_path: Path) -> None:
    async with started(stub_env(tmp_path / "stub")) as sandbox:
        async with playing(sandbox) as session:
            started_at = time.monotonic()
            late = await sandbox.exec(["sh", "-c", "echo begun; setsid sleep 61 & sleep 61"], timeout=0.3)
            assert (late.timed_out, late.stdout) == (True, b"begun\n")
            assert time.monotonic() - started_at < 3
            assert len(marked_processes(sandbox.id)) == 1
            assert (await session.call("echo", {"text": "alive"}, timeout=5)).text == "alive"


async def test_an_exec_that_is_cancelled_or_whose_sandbox_is_stopped_leaves_nothing(tmp_path: Path) -> None:
    async with started(stub_env(tmp_path / "stub")) as sandbox:
        for stop in (False, True):
            running = asyncio.create_task(sandbox.exec(["sleep", "61"], timeout=60))
            while len(marked_processes(sandbox.id)) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            if stop:
                await sandbox.stop()
                with pytest.raises(EpisodeFailure, match="stopped meanwhile"):
                    await running
            else:
                running.cancel()
                await asyncio.wait({running})
                assert running.cancelled()
                assert len(marked_processes(sandbox.id)) == 1
        with pytest.raises(EpisodeFailure, match="has ended"):
            await sandbox.exec(["true"], timeout=5)


async def test_files_go_in_and_out_under_the_paths_that_the_env_sees(tmp_path: Path) -> None:
    async with started(stub_env(tmp_path / "stub")) as sandbox:
        async with playing(sandbox) as session:
            await sandbox.put("/data/day.json", b"{}")
            seen = sandbox.path("/data/day.json")
            assert (await sandbox.exec(["cat", seen], timeout=5)).stdout == b"{}"
            await session.call("write", {"path": "made.txt", "text": "by the env"}, timeout=5)
            assert await sandbox.get("/app/made.txt") == await sandbox.get("made.txt") == b"by the env"


async def test_nobody_speaks_to_a_stranger_on_the_port(tmp_path: Path) -> None:
    async with started(stub_env(tmp_path / "stub", env_vars={"STUB_START_DELAY": "30"})) as sandbox:
        with socket.create_server(("127.0.0.1", sandbox.port)) as stranger:
            stranger.setblocking(False)
            with pytest.raises(EpisodeFailure, match="not the env's") as raised:
                await wait_ready(sandbox, timeout=5)
            assert raised.value.kind is FailureKind.DEPLOY_FAILED
            with pytest.raises(BlockingIOError):
                stranger.accept()


async def test_a_server_on_another_port_is_told_what_to_read(tmp_path: Path) -> None:
    folder = tmp_path / "stub"
    env = stub_env(folder)
    server = "import socket, time\ns = socket.create_server(('127.0.0.1', 0))\ntime.sleep(60)\n"
    (folder / "server.py").write_text(server)
    async with started(env) as sandbox:
        with pytest.raises(EpisodeFailure, match="must use MCP_PORT") as raised:
            await wait_ready(sandbox, timeout=1)
        assert raised.value.kind is FailureKind.DEPLOY_TIMEOUT


async def test_a_keeper_that_is_killed_takes_its_sandbox_along(tmp_path: Path, state: Path) -> None:
    env = stub_env(tmp_path / "stub", env_vars={"STUB_SPAWN": "1"})
    async with started(env) as sandbox:
        await ready(sandbox)
        os.kill(sandbox._kept.keeper_pid, signal.SIGKILL)
        await asyncio.wait_for(asyncio.shield(sandbox._kept.exited), 5)
        end = await sandbox.state()
        assert (end.running, end.exit_code, end.lost) == (False, None, True)
        await sandbox.stop()
        assert not marked_processes(str(state))


async def test_a_keeper_that_does_not_answer_is_not_waited_for_for_ever(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervision, "PATIENCE", 0.3)
    async with started(stub_env(tmp_path / "stub", env_vars={"STUB_SPAWN": "1"})) as sandbox:
        await ready(sandbox)
        os.kill(sandbox._kept.keeper_pid, signal.SIGSTOP)
        await sandbox.stop(grace=0)
        assert not marked_processes(str(state))
        assert not list((state / "sandboxes").iterdir())
        assert (await sandbox.state()).stopped_by_us


async def test_a_template_that_is_killed_is_replaced(tmp_path: Path) -> None:
    async with providing() as provider:
        prepared = await provider.prepare(stub_env(tmp_path / "stub"))
        first = await provider.start(SandboxSpec(prepared, "episode"))
        assert provider.keepers._template is not None
        provider.keepers._template[0].kill()
        provider.keepers._template[0].wait()
        second = await provider.start(SandboxSpec(prepared, "episode"))
        for sandbox in (first, second):
            assert (await sandbox.state()).running
            await ready(sandbox)


async def test_many_sandboxes_at_once_have_ports_of_their_own(tmp_path: Path) -> None:
    async with providing() as provider:
        prepared = await provider.prepare(stub_env(tmp_path / "stub"))
        sandboxes = await asyncio.gather(*(provider.start(SandboxSpec(prepared, "episode")) for _ in range(12)))
        assert len({sandbox.port for sandbox in sandboxes}) == 12
        await asyncio.gather(*(ready(sandbox) for sandbox in sandboxes))
        assert descendants(os.getpid())


async def test_it_says_once_that_it_isolates_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    process._warn_once.cache_clear()
    env = stub_env(tmp_path / "stub")
    for _ in range(2):
        async with providing() as provider:
            prepared = await provider.prepare(env)
            for _ in range(2):
                await (await provider.start(SandboxSpec(prepared, "episode"))).stop()
    said = [record for record in caplog.records if "isolates nothing" in record.message]
    assert [record.levelno for record in said] == [logging.WARNING]


async def test_a_command_that_can_not_be_run_is_a_failed_deploy(tmp_path: Path) -> None:
    env = stub_env(tmp_path / "stub")
    broken = Env(
        name="x", path=env.path, environment_name="x", digest="x", settings=EnvSettings(command=("./no-such-server",))
    )
    async with providing() as provider:
        with pytest.raises(EpisodeFailure, match=r"env 'x'.*no-such-server: No such file") as raised:
            await provider.start(SandboxSpec(await provider.prepare(broken), "episode"))
        assert raised.value.kind is FailureKind.DEPLOY_FAILED


def env_with(folder: Path, dockerfile: str, **settings: object) -> Env:
    folder.mkdir(exist_ok=True)
    (folder / "Dockerfile").write_text(dockerfile)
    return Env(name="shop", path=folder, environment_name="s", digest="d", settings=EnvSettings(**settings))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("dockerfile", "settings", "command"),
    [
        ('FROM x\nCMD ["a"]\n', {"command": ("python", "-u", "s.py")}, ("python", "-u", "s.py")),
        ('FROM x\nCMD ["old"]\nFROM y\nCMD ["python", "server.py"]\n', {}, ("python", "server.py")),
        ('FROM x\n  cmd ["serve", "a b"]  \n', {}, ("serve", "a b")),
    ],
)
def test_the_command_is_the_sidecars_or_the_dockerfiles(
    tmp_path: Path, dockerfile: str, settings: dict[str, object], command: tuple[str, ...]
) -> None:
    assert command_of(env_with(tmp_path / "e", dockerfile, **settings)) == command


@pytest.mark.parametrize("dockerfile", ["FROM x\nCMD python server.py\n", "FROM x\n", 'CMD ["a", 3]\n', "CMD [a]\n"])
async def test_without_a_command_the_file_to_edit_is_named(tmp_path: Path, dockerfile: str) -> None:
    async with providing() as provider:
        with pytest.raises(ConfigError, match=r"envs/shop/agent-env.toml.*command = \["):
            await provider.prepare(env_with(tmp_path / "e", dockerfile))


async def test_prepared_envs_are_interchangeable_by_key(tmp_path: Path) -> None:
    async with providing() as provider:
        one, two = [await provider.prepare(stub_env(tmp_path / name)) for name in ("a", "b")]
        assert isinstance(one, Prepared)
        assert one.key != two.key
