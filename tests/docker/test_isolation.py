"""What an env can reach, from inside. The outside world is a second network namespace, joined by a veth."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from requirements import absent
from stubs.containers import inside, running

from agent_env.bundle.model import Env
from agent_env.sandbox.conformance import conformance_env
from agent_env.sandbox.conformance_checks import ask
from agent_env.sandbox.docker import DockerProvider
from agent_env.sandbox.docker_sandbox import DockerSandbox

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.usefixtures("by_netns")]

OUTSIDE = "10.213.77.2"
OUR_SIDE = "10.213.77.1"

_TRY = """
import json, socket, sys
found = {}
for word in sys.argv[1:]:
    host, port = word.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=1.5).close()
        found[word] = "reached"
    except OSError as error:
        found[word] = type(error).__name__
print(json.dumps(found))
"""


@pytest.fixture
def env(sources: Path) -> Env:
    return conformance_env(sources)


@contextmanager
def listening(host: str) -> Iterator[int]:
    with socket.create_server((host, 0)) as server:
        yield server.getsockname()[1]


async def reached(sandbox: DockerSandbox, *targets: str) -> list[str]:
    told: dict[str, str] = await inside(sandbox, _TRY, *targets)
    return [target for target, how in told.items() if how == "reached"]


def addresses_of_this_machine() -> list[str]:
    told = json.loads(subprocess.run(["ip", "-j", "-4", "addr"], capture_output=True, check=True).stdout)
    return [entry["local"] for link in told for entry in link["addr_info"]]


def address_of(sandbox: DockerSandbox) -> str:
    told = json.loads(subprocess.run(["docker", "inspect", sandbox.container], capture_output=True, check=True).stdout)
    return next(network["IPAddress"] for network in told[0]["NetworkSettings"]["Networks"].values())


@pytest.fixture
def outside() -> Iterator[str]:
    """A machine of its own, as far as containers can tell, with a server on port 80."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        absent("docker", "making a network namespace needs root and iproute2")
    name = f"aenv-out-{os.getpid()}"
    ip: list[list[str]] = [
        ["ip", "netns", "add", name],
        ["ip", "link", "add", "aenvout0", "type", "veth", "peer", "name", "aenvout1", "netns", name],
        ["ip", "addr", "add", f"{OUR_SIDE}/24", "dev", "aenvout0"],
        ["ip", "link", "set", "aenvout0", "up"],
        ["ip", "-n", name, "addr", "add", f"{OUTSIDE}/24", "dev", "aenvout1"],
        ["ip", "-n", name, "link", "set", "aenvout1", "up"],
        ["ip", "-n", name, "route", "add", "default", "via", OUR_SIDE],
    ]
    server = None
    try:
        for command in ip:
            subprocess.run(command, check=True, capture_output=True)
        code = (
            "import socket; s = socket.create_server(('0.0.0.0', 80)); print('up', flush=True)\nwhile True: s.accept()"
        )
        command = ["ip", "netns", "exec", name, sys.executable, "-c", code]
        server = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        yield f"{OUTSIDE}:80"
    finally:
        if server is not None:
            server.kill()
            server.communicate()
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", "aenvout0"], check=False, capture_output=True)


@pytest.mark.parametrize("way", ["netns", "bridge"])
async def test_an_env_reaches_nothing(options: dict[str, Any], way: str, env: Env, outside: str) -> None:
    provider = DockerProvider(**options, reach=way)  # type: ignore[arg-type]
    try:
        with listening("127.0.0.1") as on_loopback, listening("0.0.0.0") as on_all:
            async with running(provider, env) as one, running(provider, env) as other:
                machine = addresses_of_this_machine()
                targets = [f"{address}:{on_all}" for address in machine] + [f"127.0.0.1:{on_loopback}", outside]
                if way == "bridge":
                    targets.append(f"{address_of(other)}:18765")
                assert await reached(one, *targets) == []
                assert await reached(one, "127.0.0.1:18765"), "its own port is the proof that the test can see"
                assert await reached(other, *targets[:-1]) == []
    finally:
        await provider.aclose()


@pytest.mark.parametrize("way", ["netns", "bridge"])
async def test_an_egress_env_reaches_the_outside_only(
    options: dict[str, Any], way: str, env: Env, outside: str
) -> None:
    provider = DockerProvider(**options, reach=way)  # type: ignore[arg-type]
    free = replace(env, settings=replace(env.settings, network="egress"))
    try:
        with listening("0.0.0.0") as on_all:
            async with running(provider, free) as one, running(provider, free) as other:
                assert (await ask(one, "/.well-known/agent-env.json"))["name"] == "conformance"
                machine = addresses_of_this_machine()
                inner = [f"{address}:{on_all}" for address in machine] + [f"{address_of(other)}:18765"]
                assert await reached(one, outside, *inner) == [outside]
    finally:
        await provider.aclose()


async def test_a_sandbox_without_a_network_sees_only_its_loopback(provider: DockerProvider, env: Env) -> None:
    async with running(provider, env) as sandbox:
        script = "import json, os; print(json.dumps(sorted(os.listdir('/sys/class/net'))))"
        assert await inside(sandbox, script) == ["lo"]
