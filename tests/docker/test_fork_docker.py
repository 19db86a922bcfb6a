"""Forks of one container: what keeps them apart. What they share is in docs/isolation.md."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest
from stubs.containers import ended, inside
from stubs.stub_bundle import STUB_SERVER, stub_task, write_stub_bundle

from agent_env.bundle import load_bundle
from agent_env.bundle.model import Env, EnvSettings
from agent_env.commands.forkcheck import compare_forks
from agent_env.commands.selection import choose
from agent_env.env.card import wait_ready
from agent_env.env.http import EnvHttp
from agent_env.env.tools import ToolSession
from agent_env.episode import Runtime, plan_bundle
from agent_env.errors import ConfigError, EpisodeFailure
from agent_env.findings import Level
from agent_env.grading.pool import GraderPool
from agent_env.sandbox.base import SandboxSpec
from agent_env.sandbox.capacity import Capacity
from agent_env.sandbox.docker import DockerProvider
from agent_env.sandbox.fork import Isolating
from agent_env.sandbox.fork_sandbox import ForkSandbox

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

DOCKERFILE = """\
ARG BASE_IMAGE=python:3.12-slim
FROM ${BASE_IMAGE}
WORKDIR /app
COPY server.py .
RUN useradd --create-home --uid 10001 runner && mkdir -p /home/runner/lib && chown runner /home/runner/lib
ENV FROM_IMAGE=yes
USER runner
CMD ["python", "server.py"]
"""


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENT_ENV_STATE", str(tmp_path / "state"))
    return tmp_path / "state"


def an_env(folder: Path, dockerfile: str = DOCKERFILE, **settings: Any) -> Env:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "server.py").write_text(STUB_SERVER.read_text())
    (folder / "Dockerfile").write_text(dockerfile)
    digest = hashlib.sha256(dockerfile.encode() + STUB_SERVER.read_bytes()).hexdigest()
    chosen = EnvSettings(isolation="fork", memory=128 << 20, pids=24, **settings)
    return Env(name="forked", path=folder, environment_name="forked", digest=digest, settings=chosen)


@asynccontextmanager
async def forks(provider: DockerProvider, env: Env, number: int, **options: Any) -> AsyncIterator[list[ForkSandbox]]:
    isolating = Isolating(provider, **options)
    try:
        prepared = await isolating.prepare(env)
        started = []
        for _ in range(number):
            sandbox = await isolating.start(SandboxSpec(prepared=prepared, episode="test"))
            assert isinstance(sandbox, ForkSandbox)
            await wait_ready(sandbox, timeout=30, expected_name="forked")
            started.append(sandbox)
        yield started
    finally:
        await isolating.aclose()


WHO_AM_I = """
import json, os
status = dict(line.split(":\\t", 1) for line in open("/proc/self/status").read().splitlines() if ":\\t" in line)
caps = {name: int(status[name], 16) for name in ("CapEff", "CapPrm", "CapInh", "CapAmb")}
print(json.dumps({"uid": os.getresuid(), "gid": os.getresgid(), "groups": os.getgroups(), "caps": caps,
    "no new privileges": status["NoNewPrivs"].strip(), "image": os.environ["FROM_IMAGE"], "cwd": os.getcwd(),
    "writable": [p for p in ("/app", "/run", "/home/runner", ".", os.environ["HOME"]) if os.access(p, os.W_OK)]}))
"""


async def test_each_fork_is_a_user_without_rights_in_the_images_group(provider: DockerProvider, sources: Path) -> None:
    async with forks(provider, an_env(sources / "forked"), 2) as sandboxes:
        told = [await inside(sandbox, WHO_AM_I) for sandbox in sandboxes]
        for number, one in enumerate(told):
            assert one["uid"] == [20000 + number] * 3
            assert one["gid"] == [10001] * 3
            assert set(one["caps"].values()) == {0}
            assert one["no new privileges"] == "1"
            assert one["image"] == "yes"
            assert one["cwd"] == sandboxes[number].path("/app")
            assert one["writable"] == [".", sandboxes[number].path("/home")]


async def test_the_container_has_just_the_capabilities_that_takes(
    provider: DockerProvider, sources: Path, api: docker.APIClient
) -> None:
    async with forks(provider, an_env(sources / "forked"), 1) as (sandbox,):
        assert sandbox.host.sandbox is not None
        told = api.inspect_container(f"agent-env-{sandbox.host.sandbox.id}")["HostConfig"]
        assert told["CapDrop"] == ["ALL"]
        assert sorted(told["CapAdd"]) == ["KILL", "SETGID", "SETUID"]
        assert told["SecurityOpt"] == ["no-new-privileges:true"]
        assert told["NetworkMode"] == "none"
        assert told["PortBindings"] == {}


ATTACK = """
import json, os, signal, socket, sys
uid, port, folder = sys.argv[1:]
done = []
def attempt(name, action):
    try:
        action()
        done.append(name)
    except OSError:
        pass
attempt("control", lambda: os.listdir("/run/agent-env"))
attempt("other's folder", lambda: os.listdir(folder))
attempt("names of folders", lambda: os.listdir("/tmp/agent-env"))
attempt("remove", lambda: os.rename(folder, folder + "x"))
for entry in filter(str.isdigit, os.listdir("/proc")):
    status = os.stat(f"/proc/{entry}").st_uid
    if status != os.getuid():
        attempt("signal", lambda: os.kill(int(entry), 0))
        attempt("memory", lambda: open(f"/proc/{entry}/mem", "rb"))
        attempt("environment", lambda: open(f"/proc/{entry}/environ", "rb").read())
        attempt("descriptors", lambda: os.listdir(f"/proc/{entry}/fd"))
attempt("become", lambda: os.setuid(int(uid)))
attempt("root", lambda: os.setuid(0))
attempt("port", lambda: socket.create_server(("127.0.0.1", int(port))))
print(json.dumps(done))
"""


async def test_a_fork_can_do_nothing_to_its_sibling_or_to_the_server(provider: DockerProvider, sources: Path) -> None:
    async with forks(provider, an_env(sources / "forked"), 2) as (one, other):
        folder = other.slot.folder
        assert await inside(one, ATTACK, str(other.slot.uid), str(other.slot.port), folder) == []


async def test_who_takes_the_port_of_another_fork_is_not_spoken_to(provider: DockerProvider, sources: Path) -> None:
    isolating = Isolating(provider)
    try:
        prepared = await isolating.prepare(an_env(sources / "forked"))
        first = await isolating.start(SandboxSpec(prepared=prepared, episode="a"))
        await wait_ready(first, timeout=30)
        squat = "import socket, time; s = socket.create_server(('', 20001)); print('up', flush=True); time.sleep(60)"
        squatting = asyncio.ensure_future(first.exec(["python3", "-c", squat], timeout=60))
        look = "import socket; print(socket.socket().connect_ex(('127.0.0.1', 20001)) == 0 and 1 or 0)"
        while not await inside(first, look):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        second = await isolating.start(SandboxSpec(prepared=prepared, episode="b"))
        with pytest.raises(EpisodeFailure, match="another env of its container listens on it"):
            await wait_ready(second, timeout=10)
        squatting.cancel()
        await asyncio.wait({squatting})
    finally:
        await isolating.aclose()


async def test_a_fork_bomb_ends_with_its_fork_and_leaves_the_sibling_alone(
    provider: DockerProvider, sources: Path
) -> None:
    bomb = """
import os, time
while True:
    try:
        if os.fork() == 0: os.setsid()
    except OSError:
        time.sleep(0.01)
"""
    async with forks(provider, an_env(sources / "forked"), 2) as (one, other):
        bombing = asyncio.ensure_future(one.exec(["python3", "-c", bomb], timeout=60))
        count = "import json, os; print(len([e for e in os.listdir('/proc') if e.isdigit()]))"
        while await inside(other, count) < 20:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        http = EnvHttp(other)
        session = await ToolSession.open(http, await wait_ready(other, timeout=10))
        assert (await session.call("echo", {"text": "still here"}, timeout=20)).text == "still here"
        await session.close()
        await http.aclose()
        await one.stop(grace=0)
        await asyncio.wait({bombing})
        bombing.exception()
        assert await inside(other, count) < 12


async def test_a_fork_that_eats_memory_fails_alone(provider: DockerProvider, sources: Path) -> None:
    async with forks(provider, an_env(sources / "forked"), 2) as (one, other):
        eat = "import json\ntry: bytearray(256 << 20); print(1)\nexcept MemoryError: print(0)"
        assert await inside(one, eat) == 0
        await wait_ready(other, timeout=10)


async def test_a_container_that_is_removed_loses_its_forks(
    provider: DockerProvider, sources: Path, api: docker.APIClient
) -> None:
    async with forks(provider, an_env(sources / "forked"), 1) as (sandbox,):
        assert sandbox.host.sandbox is not None
        api.remove_container(f"agent-env-{sandbox.host.sandbox.id}", force=True)
        await ended(sandbox)
        assert (await sandbox.state()).lost
        await sandbox.stop()


async def test_an_image_whose_packages_only_its_user_can_read_is_refused(
    provider: DockerProvider, tmp_path: Path
) -> None:
    private = DOCKERFILE.replace("ENV FROM_IMAGE=yes", "ENV PYTHONPATH=/home/runner/lib\nRUN chmod 700 /home/runner")
    with pytest.raises(EpisodeFailure, match="other users than the image's own can't read /home/runner/lib"):
        async with forks(provider, an_env(tmp_path / "envs" / "private", private), 1):
            raise AssertionError


@pytest.mark.parametrize(
    "line",
    ['CMD ["python", "-u", "-m", "server"]', "CMD python server.py", 'ENTRYPOINT ["python"]\nCMD ["server.py"]'],
)
async def test_commands_in_their_other_forms(line: str, provider: DockerProvider, tmp_path: Path) -> None:
    text = DOCKERFILE.replace('CMD ["python", "server.py"]', line)
    async with forks(provider, an_env(tmp_path / "envs" / "forked", text), 1) as (sandbox,):
        assert sandbox.host.launch.python


async def test_a_read_only_container_takes_forks_too(provider: DockerProvider, sources: Path) -> None:
    async with forks(provider, an_env(sources / "forked", read_only=True), 1) as (sandbox,):
        await sandbox.put("/data/x", b"x")
        assert await sandbox.get("/data/x") == b"x"


async def test_a_script_of_another_interpreter_gets_that_one(provider: DockerProvider, tmp_path: Path) -> None:
    text = (
        DOCKERFILE.replace(
            'CMD ["python", "server.py"]',
            "RUN python -m venv --without-pip /venv && (echo '#!/venv/bin/python'; cat server.py) > /venv/bin/serve "
            '&& chmod +x /venv/bin/serve\nCMD ["/venv/bin/serve"]',
        ).replace("USER runner\n", "")
        + "USER runner\n"
    )
    async with forks(provider, an_env(tmp_path / "envs" / "forked", text), 1) as (sandbox,):
        pid = sandbox._kept.pid
        assert await inside(sandbox, f"import json, os; print(json.dumps(os.readlink('/proc/{pid}/exe')))")
        script = f"import json; print(json.dumps(open('/proc/{pid}/cmdline').read().split(chr(0))[0]))"
        assert await inside(sandbox, script) == "/venv/bin/python"


async def test_what_forks_can_not_have_is_refused_by_name(provider: DockerProvider, sources: Path) -> None:
    env = an_env(sources / "forked", cap_add=("NET_BIND_SERVICE",))
    with pytest.raises(ConfigError, match="take out cap_add"):
        await Isolating(provider).prepare(env)
    runsc = DockerProvider(runtime="runsc")
    runsc.images = provider.images
    with pytest.raises(ConfigError, match="runc"):
        await Isolating(runsc).prepare(replace(env, settings=replace(env.settings, cap_add=())))
    await runsc.aclose()


async def test_a_check_finds_what_an_env_leaves_for_its_siblings_to_see(
    provider: DockerProvider, tmp_path: Path
) -> None:
    look = '[{"name": "look", "inputSchema": {"type": "object"}}]'
    path = write_stub_bundle(
        tmp_path / "b", tasks={"t": stub_task(0.5)}, env_vars={"STUB_TOOLS": look}, settings='isolation = "fork"'
    )
    server = path / "envs" / "stub" / "server.py"
    server.write_text(
        server.read_text().replace("def main():", "open(f'/tmp/state-{os.getuid()}', 'w')\ndef main():", 1)
    )
    loaded = load_bundle(path)
    runtime = Runtime(Isolating(provider), capacity=Capacity(2), grader=GraderPool(requirements=(), workers=1))
    try:
        (task,) = choose(loaded, plan_bundle(loaded)).tasks
        await runtime.prepare_tasks([task.plan])
        found = await compare_forks(task, runtime)
    finally:
        await runtime.aclose()
    (shared,) = [finding for finding in found if finding.level is Level.WARNING]
    assert "forks beside it can see them: /tmp/state-20000, /tmp/state-20001" in shared.problem
