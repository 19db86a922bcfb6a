from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest
from stubs.containers import ended, inside, running

from agent_env.bundle.model import Env
from agent_env.errors import ConfigError, EpisodeFailure, FailureKind
from agent_env.sandbox.base import SandboxSpec, SandboxState
from agent_env.sandbox.conformance import conformance_env
from agent_env.sandbox.conformance_checks import answers, ask
from agent_env.sandbox.docker import DockerProvider
from agent_env.sandbox.docker_config import OWNER_LABEL
from agent_env.sandbox.ownership import owner

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


@pytest.fixture
def env(sources: Path) -> Env:
    return conformance_env(sources, memory=256 << 20)


def having(base: Env, **settings: Any) -> Env:
    return replace(base, settings=replace(base.settings, **settings))


@pytest.mark.usefixtures("by_netns")
async def test_the_container_is_hardened_and_labelled(
    api: docker.APIClient, provider: DockerProvider, env: Env
) -> None:
    before = time.time()
    async with running(provider, having(env, pids=100, cpus=0.5)) as sandbox:
        told = api.inspect_container(sandbox.container)
        status = await inside(sandbox, _STATUS)
    host = told["HostConfig"]
    assert host["CapDrop"] == ["ALL"]
    assert host["Init"]
    assert (host["Memory"], host["MemorySwap"], host["PidsLimit"]) == (256 << 20, 256 << 20, 100)
    assert (host["CpuQuota"], host["CpuPeriod"]) == (50_000, 100_000)
    assert host["NetworkMode"] == "none"
    assert int(status["CapEff"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    labels = told["Config"]["Labels"]
    assert labels[OWNER_LABEL] == owner()
    assert labels["agent-env.sandbox"] == sandbox.id
    assert labels["agent-env.episode"] == "test"
    assert before + 86_000 < int(labels["agent-env.deadline"]) < time.time() + 87_000


_STATUS = """
import json
lines = open("/proc/1/status").read().splitlines()
print(json.dumps(dict(line.split(":\\t", 1) for line in lines if ":\\t" in line)))
"""


async def test_a_fork_bomb_stops_at_the_pids_limit_and_the_env_lives_on(provider: DockerProvider, env: Env) -> None:
    async with running(provider, having(env, pids=40)) as sandbox:
        script = "i=0; while [ $i -lt 200 ]; do sleep 60 & i=$((i+1)); done; wait"
        done = await sandbox.exec(["sh", "-c", script], timeout=3)
        assert done.exit_code != 0 or done.timed_out
        assert (await ask(sandbox, "/.well-known/agent-env.json"))["name"] == "conformance"


async def test_a_read_only_container_takes_files_where_it_may_write(provider: DockerProvider, env: Env) -> None:
    async with running(provider, having(env, read_only=True)) as sandbox:
        await sandbox.put("/data/deep/in.bin", b"\0\xff" * 1000, mode=0o600)
        assert await sandbox.get("/data/deep/in.bin") == b"\0\xff" * 1000
        with pytest.raises(EpisodeFailure, match="Read-only") as caught:
            await sandbox.put("/etc/in.bin", b"")
        assert caught.value.kind is FailureKind.LOAD_FAILED
        with pytest.raises(EpisodeFailure, match="larger than 10 bytes"):
            await sandbox.get("/data/deep/in.bin", limit=10)
        with pytest.raises(EpisodeFailure, match="No such file"):
            await sandbox.get("/data/none")


async def test_user_and_capabilities_are_what_the_settings_say(provider: DockerProvider, env: Env) -> None:
    async with running(provider, having(env, user="1234:1234", cap_add=("NET_BIND_SERVICE",))) as sandbox:
        told = await inside(sandbox, "import json, os; print(json.dumps([os.getuid(), os.getgid()]))")
        assert told == [1234, 1234]
        await sandbox.put("/data/readable", b"by all")
        done = await sandbox.exec(["cat", "/data/readable"], timeout=20)
        assert done.stdout == b"by all"


async def test_secrets_reach_the_env_and_no_log(
    provider: DockerProvider, env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TEST_API_KEY", "sk-very-secret")
    async with running(provider, having(env, env={"API_KEY": "env:TEST_API_KEY"})) as sandbox:
        assert (await ask(sandbox, "/variables"))["API_KEY"] == "sk-very-secret"
        await sandbox.exec(["sh", "-c", "echo the key is $API_KEY > /proc/1/fd/1"], timeout=20)
        text = await sandbox.logs()
        assert "the key is ***" in text
        assert "sk-very-secret" not in text
    monkeypatch.delenv("TEST_API_KEY")
    with pytest.raises(ConfigError, match=r"env\.API_KEY.*TEST_API_KEY"):
        await provider.prepare(having(env, env={"API_KEY": "env:TEST_API_KEY"}))


@pytest.mark.parametrize(
    ("command", "code"),
    [(("kill",), 137), (("stop", "-t", "1"), 143), (("kill", "-s", "TERM"), 143), (("rm", "-f"), None)],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
async def test_an_end_from_outside_is_a_lost_sandbox(
    provider: DockerProvider, env: Env, command: tuple[str, ...], code: int | None
) -> None:
    async with running(provider, env) as sandbox:
        process = await asyncio.create_subprocess_exec("docker", *command, sandbox.container, stdout=-3)
        assert await process.wait() == 0
        await ended(sandbox)
        state = await sandbox.state()
        assert state == SandboxState(running=False, exit_code=code, lost=True, detail=state.detail)
        assert "outside" in state.detail
        if code is None:
            with pytest.raises(EpisodeFailure) as caught:
                await sandbox.logs()
            assert caught.value.kind is FailureKind.SANDBOX_LOST
        with pytest.raises(ConnectionRefusedError):
            await sandbox.connect()


async def test_what_happens_inside_is_not_mistaken_for_an_end_from_outside(provider: DockerProvider, env: Env) -> None:
    for signal_name, code in (("SIGKILL", 137), ("SIGTERM", 143), ("SIGSEGV", 139)):
        async with running(provider, env) as sandbox:
            with suppress(EpisodeFailure):  # the exec dies with the container
                await sandbox.exec(["python3", "-c", _KILL_SERVER, signal_name], timeout=10)
            await ended(sandbox)
            state = await sandbox.state()
            assert state.exit_code == code
            assert not state.oom_killed, state
            assert not state.stopped_by_us


_KILL_SERVER = """
import os, signal, sys
for name in filter(str.isdigit, os.listdir("/proc")):
    words = open(f"/proc/{name}/cmdline", "rb").read().split(b"\\0")
    if words[:2] == [b"python3", b"server.py"]:
        os.kill(int(name), getattr(signal, sys.argv[1]))
"""


async def test_an_exec_tells_why_when_the_sandbox_is_gone(provider: DockerProvider, env: Env) -> None:
    async with running(provider, env) as sandbox:
        running_exec = asyncio.ensure_future(sandbox.exec(["sleep", "30"], timeout=40))
        await asyncio.sleep(0.5)
        await (await asyncio.create_subprocess_exec("docker", "kill", sandbox.container, stdout=-3)).wait()
        with pytest.raises(EpisodeFailure) as caught:
            await running_exec
        assert caught.value.kind is FailureKind.SANDBOX_LOST


async def test_volumes_go_with_the_container_even_when_somebody_else_removed_it(
    api: docker.APIClient, provider: DockerProvider, env: Env, tmp_path: Path
) -> None:
    folder = tmp_path / "bundle" / "envs" / "with_volume"
    folder.mkdir(parents=True)
    (folder / "server.py").write_bytes((env.path / "server.py").read_bytes())
    (folder / "Dockerfile").write_text((env.path / "Dockerfile").read_text() + "VOLUME /data /more\n")
    own = replace(env, name="with_volume", path=folder, digest="with-volume")
    for removed_by_others in (False, True):
        async with running(provider, own) as sandbox:
            names = [mount["Name"] for mount in api.inspect_container(sandbox.container)["Mounts"]]
            assert len(names) == 2
            await sandbox.put("/data/in_volume", b"x")
            assert await sandbox.get("/data/in_volume") == b"x"
            if removed_by_others:
                api.remove_container(sandbox.container, force=True)
        there = {volume["Name"] for volume in api.volumes()["Volumes"] or []}
        assert not there & set(names)


async def test_two_servers_on_one_daemon_leave_each_other_alone(
    options: dict[str, Any], provider: DockerProvider, env: Env, whats_there: Callable[[], list[str]]
) -> None:
    other = DockerProvider(**options)
    async with running(provider, env) as mine, running(other, env) as theirs:
        assert await provider.reap() == 0
        assert await other.reap() == 0
        await other.aclose()
        assert not (await theirs.state()).running
        assert (await mine.state()).running
        assert len(whats_there()) == 1


async def test_a_foreign_owner_is_reaped_only_past_its_deadline(
    api: docker.APIClient, provider: DockerProvider, env: Env, mark: str
) -> None:
    prepared = await provider.prepare(env)
    foreign = ".".join(["f" * 16, "e" * 32, "1", "1", "1"])

    def made(deadline: float) -> str:
        labels = {OWNER_LABEL: foreign, "agent-env.deadline": str(int(deadline)), "agent-env.test": mark}
        return str(api.create_container(prepared.handle, labels=labels)["Id"])

    past, future = made(time.time() - 5), made(time.time() + 500)
    try:
        assert await provider.reap() >= 1
        there = {entry["Id"] for entry in api.containers(all=True)}
        assert past not in there
        assert future in there
    finally:
        api.remove_container(future)


async def test_a_container_without_our_label_is_never_touched(
    api: docker.APIClient, provider: DockerProvider, env: Env
) -> None:
    prepared = await provider.prepare(env)
    stranger = api.create_container(prepared.handle, name=f"agent-env-{os.getpid()}-not-ours")["Id"]
    try:
        await provider.reap()
        assert stranger in {entry["Id"] for entry in api.containers(all=True)}
    finally:
        api.remove_container(stranger)


async def test_an_unknown_runtime_is_named_before_the_first_start(options: dict[str, Any]) -> None:
    provider = DockerProvider(**options, runtime="no-such-runtime")
    try:
        with pytest.raises(EpisodeFailure, match="no runtime 'no-such-runtime'") as caught:
            await provider.check()
        assert caught.value.kind is FailureKind.PROVIDER_UNAVAILABLE
    finally:
        await provider.aclose()


async def test_a_daemon_that_is_not_there_is_named(tmp_path: Path, env: Env) -> None:
    provider = DockerProvider(host=f"unix://{tmp_path}/none.sock")
    try:
        for attempt in (provider.check, lambda: provider.prepare(env), provider.reap):
            with pytest.raises(EpisodeFailure, match=r"none\.sock does not answer") as caught:
                await attempt()
            assert caught.value.kind is FailureKind.PROVIDER_UNAVAILABLE
    finally:
        await provider.aclose()


@pytest.mark.parametrize("host", ["ssh://somewhere", "somewhere:2375", "ftp://x"])
async def test_a_host_that_we_cannot_speak_to_is_refused_by_name(host: str) -> None:
    with pytest.raises(ConfigError, match=host):
        DockerProvider(host=host)


async def test_a_relay_is_open_for_its_phase_only(provider: DockerProvider, env: Env) -> None:
    async with running(provider, env) as sandbox:
        async with sandbox.expose() as url, sandbox.expose() as again:
            assert url == again
            host, port = url.removeprefix("http://").split(":")
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /.well-known/agent-env.json HTTP/1.0\r\n\r\n")
            assert b"conformance" in await reader.read()
            writer.close()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(host, int(port))


async def test_a_command_that_cannot_be_started_is_seen_as_a_crash(provider: DockerProvider, env: Env) -> None:
    prepared = await provider.prepare(env)
    sandbox = await provider.start(
        SandboxSpec(prepared=prepared, episode="test", env_vars={"MCP_PORT": "not a number"})
    )
    try:
        await ended(sandbox)
        state = await sandbox.state()
        assert (state.exit_code, state.lost, state.oom_killed) == (1, False, False)
        assert "invalid literal" in await sandbox.logs()
    finally:
        await sandbox.stop()


@pytest.mark.usefixtures("by_netns")
async def test_from_a_pid_namespace_of_its_own_another_way_is_taken(
    options: dict[str, Any], env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a server that is itself in a container: the pid that the daemon tells is not ours to look up."""
    provider = DockerProvider(**options)
    monkeypatch.setattr("agent_env.sandbox.docker_net.open_namespace", lambda pid, container: None)
    try:
        assert provider.networks.way == "netns"
        async with running(provider, env) as sandbox:
            assert provider.networks.way == "bridge"
            await answers(sandbox)
    finally:
        await provider.aclose()
