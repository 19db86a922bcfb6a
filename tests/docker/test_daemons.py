"""Daemons that are killed, restarted, full, or elsewhere. Each test has daemons of its own (AGENT_ENV_OWN_DAEMON=1)."""

from __future__ import annotations

import asyncio
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest
from requirements import absent
from stubs.containers import PrivateDaemon, ended, private_daemon, running

from agent_env.bundle.model import Env
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.base import SandboxSpec
from agent_env.sandbox.conformance import conformance_env
from agent_env.sandbox.conformance_checks import answers, ask
from agent_env.sandbox.docker import DockerProvider

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.docker,
]


@pytest.fixture(scope="module")
def daemon(base_image: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrivateDaemon]:
    """Without a bridge, so that it can run beside any other."""
    port = _free_port()
    with private_daemon(tmp_path_factory.mktemp("daemon"), "-H", f"tcp://127.0.0.1:{port}") as started:
        started.tcp = f"tcp://127.0.0.1:{port}"  # type: ignore[attr-defined]
        started.load(base_image)
        yield started


@pytest.fixture
def env(sources: Path) -> Env:
    return conformance_env(sources)


def containers(host: str) -> list[dict[str, Any]]:
    client = docker.APIClient(base_url=host, timeout=30)
    try:
        return list(client.containers(all=True))
    finally:
        client.close()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=["stopped", "killed"])
async def test_a_restarted_daemon_costs_the_sandboxes_and_nothing_else(
    daemon: PrivateDaemon, options: dict[str, Any], env: Env, number: signal.Signals
) -> None:
    provider = DockerProvider(**options, host=daemon.host)
    try:
        prepared = await provider.prepare(env)
        lost = await provider.start(SandboxSpec(prepared=prepared, episode="before"))
        stopped_meanwhile = await provider.start(SandboxSpec(prepared=prepared, episode="before as well"))
        await answers(lost)
        await asyncio.to_thread(daemon.stop, number)
        with pytest.raises(EpisodeFailure) as caught:
            await lost.state()
        assert caught.value.kind is FailureKind.PROVIDER_UNAVAILABLE
        with pytest.raises(EpisodeFailure) as caught:
            await provider.start(SandboxSpec(prepared=prepared, episode="meanwhile"))
        assert caught.value.kind is FailureKind.PROVIDER_UNAVAILABLE
        await stopped_meanwhile.stop()
        await asyncio.to_thread(daemon.start)
        await ended(lost)
        state = await lost.state()
        assert state.lost, state
        assert not state.oom_killed
        if number is signal.SIGTERM:  # else closing the provider is what tries again
            assert await provider.reap() == 1, "the one whose removal failed"
        await lost.stop()
        async with running(provider, env) as after:
            assert (await after.state()).running
    finally:
        await provider.aclose()
    assert containers(daemon.host) == []


async def test_sandboxes_outlive_a_daemon_with_live_restore(
    base_image: str, options: dict[str, Any], env: Env, tmp_path: Path
) -> None:
    with private_daemon(tmp_path, "--live-restore") as own:
        await asyncio.to_thread(own.load, base_image)
        provider = DockerProvider(**options, host=own.host)
        try:
            async with running(provider, env) as sandbox:
                await asyncio.to_thread(own.stop)
                assert (await ask(sandbox, "/.well-known/agent-env.json"))["name"] == "conformance"
                await asyncio.to_thread(own.start)
                assert (await sandbox.state()).running
                assert (await sandbox.exec(["echo", "still here"], timeout=20)).stdout == b"still here\n"
                await sandbox.stop()
                assert (await sandbox.state()).stopped_by_us
        finally:
            await provider.aclose()
        assert containers(own.host) == []


async def test_a_daemon_is_reached_by_tcp(daemon: PrivateDaemon, options: dict[str, Any], env: Env) -> None:
    """It has no bridge, so ports can't be published: what matters is that all else goes over the network."""
    provider = DockerProvider(**options, host=daemon.tcp, reach="netns")  # type: ignore[attr-defined]
    try:
        await provider.check()
        async with running(provider, env) as sandbox:
            done = await sandbox.exec(["sh", "-c", "cat; exit 4"], timeout=20, input=b"over tcp")
            assert (done.exit_code, done.stdout) == (4, b"over tcp")
            await sandbox.put("/data/x", b"1")
            assert await sandbox.get("/data/x") == b"1"
            assert "serving" in await sandbox.logs()
    finally:
        await provider.aclose()
    assert containers(daemon.host) == []


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A folder with 400 MB of room."""
    folder = tmp_path / "data"
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=400m", "tmpfs", str(folder)], check=False)
    if mounted.returncode != 0:
        absent("docker", "a small file system can't be mounted")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk_is_named_as_such(
    base_image: str, options: dict[str, Any], env: Env, tmp_path: Path, small: Path
) -> None:
    with private_daemon(tmp_path, data=small) as own:
        await asyncio.to_thread(own.load, base_image)
        provider = DockerProvider(**options, host=own.host)
        try:
            prepared = await provider.prepare(env)
            big = tmp_path / "bundle" / "envs" / "big"
            big.mkdir(parents=True)
            (big / "Dockerfile").write_text(f"FROM {base_image}\nRUN head -c 600000000 /dev/zero > /filler\n")
            with pytest.raises(EpisodeFailure, match=r"env 'big'.*No space left on device") as caught:
                await provider.prepare(replace(env, name="big", path=big, digest="big"))
            assert caught.value.kind is FailureKind.DISK_FULL
            _fill(small)
            with pytest.raises(EpisodeFailure, match="no space left on device") as caught:
                await _start_and_write(provider, SandboxSpec(prepared=prepared, episode="no room"))
            assert caught.value.kind is FailureKind.DISK_FULL
            (small / "filler").unlink()
        finally:
            await provider.aclose()
        assert containers(own.host) == []


async def test_another_runtime_is_passed_through(
    base_image: str, options: dict[str, Any], env: Env, tmp_path: Path
) -> None:
    """Under a second name for runc: what matters is that the daemon is asked for it."""
    runc = shutil.which("runc") or absent("docker", "runc is not on PATH")
    with private_daemon(tmp_path, "--add-runtime", f"other={runc}") as own:
        await asyncio.to_thread(own.load, base_image)
        provider = DockerProvider(**options, host=own.host, runtime="other", reach="netns")
        try:
            await provider.check()
            async with running(provider, env) as sandbox:
                client = docker.APIClient(base_url=own.host)
                assert client.inspect_container(sandbox.container)["HostConfig"]["Runtime"] == "other"
                client.close()
        finally:
            await provider.aclose()


async def _start_and_write(provider: DockerProvider, spec: SandboxSpec) -> None:
    """Either may be what finds the disk full."""
    sandbox = await provider.start(spec)
    await sandbox.put("/data/x", b"x" * (1 << 20))


def _fill(folder: Path) -> None:
    with (folder / "filler").open("wb") as file:
        try:
            while True:
                file.write(b"\0" * (1 << 20))
                file.flush()
        except OSError:
            return


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])
