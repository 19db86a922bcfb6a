"""What the tests of the docker sandbox share."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import docker
from docker.errors import DockerException
from requirements import absent

from agent_env.bundle.model import Env
from agent_env.sandbox.base import Sandbox, SandboxSpec
from agent_env.sandbox.conformance_checks import answers
from agent_env.sandbox.docker import DockerProvider
from agent_env.sandbox.docker_sandbox import DockerSandbox


def client_of_the_daemon() -> Iterator[docker.APIClient]:
    """A client of our own, to look at the daemon with. Skips the test where none answers."""
    try:
        client = docker.APIClient(base_url=os.environ.get("DOCKER_HOST"), version="auto", timeout=30)
    except (DockerException, OSError) as error:
        absent("docker", f"no daemon answers ({error})")
    yield client
    client.close()


@asynccontextmanager
async def running(provider: DockerProvider, env: Env, **variables: str) -> AsyncIterator[DockerSandbox]:
    """An env that answers, stopped in the end."""
    prepared = await provider.prepare(env)
    sandbox = await provider.start(SandboxSpec(prepared=prepared, episode="test", env_vars=variables))
    try:
        await answers(sandbox)
        yield sandbox
    finally:
        await sandbox.stop(grace=0)


async def ended(sandbox: Sandbox, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while (await sandbox.state()).running:
        assert time.monotonic() < until, "it still runs"
        await asyncio.sleep(0.02)


async def inside(sandbox: Sandbox, script: str, *arguments: str, timeout: float = 30) -> Any:
    """Run Python inside; what it prints, as JSON."""
    done = await sandbox.exec(["python3", "-c", script, *arguments], timeout=timeout)
    assert done.exit_code == 0, done.stderr.decode()
    return json.loads(done.stdout)


class PrivateDaemon:
    """A Docker daemon of a test's own: it may be killed, filled up and reached in odd ways."""

    def __init__(self, folder: Path, *arguments: str, data: Path | None = None) -> None:
        if os.environ.get("AGENT_ENV_OWN_DAEMON") != "1":
            absent("own-daemon", "starting a daemon needs AGENT_ENV_OWN_DAEMON=1")
        if os.geteuid() != 0 or shutil.which("dockerd") is None:
            absent("docker", "starting a daemon needs root and dockerd")
        folder.mkdir(exist_ok=True)
        self._own = Path(tempfile.mkdtemp(prefix="aed"))  # short: paths of sockets may have 107 bytes
        # One of its own: a daemon that is to have none removes docker0, whoever it belongs to.
        self._bridge = self._own.name
        subprocess.run(["ip", "link", "add", "name", self._bridge, "type", "bridge"], check=True)
        self.data = data or self._own / "data"
        self.folder = folder
        self.socket = folder / "d.sock"
        self.host = f"unix://{self.socket}"
        self._arguments = arguments
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # A killed daemon's containerd stays a zombie where nobody reaps it, and a new daemon takes it for a live one.
        (self._own / "exec" / "containerd" / "containerd.pid").unlink(missing_ok=True)
        log = (self.folder / "log").open("ab")
        self._process = subprocess.Popen(
            [
                "dockerd",
                *("--data-root", str(self.data), "--exec-root", str(self._own / "exec")),
                *("--pidfile", str(self.folder / "pid"), "-H", self.host),
                *("--bridge", self._bridge, "--iptables=false", "--ip6tables=false", "--ip-forward=false"),
                *self._arguments,
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )
        log.close()
        until = time.monotonic() + 60
        while not self._answers():
            assert self._process.poll() is None, (self.folder / "log").read_text()[-3000:]
            assert time.monotonic() < until, (self.folder / "log").read_text()[-3000:]
            time.sleep(0.1)

    def stop(self, number: int = signal.SIGTERM) -> None:
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait(60)
            self._process = None

    def remove(self) -> None:
        """What it kept, once it has stopped. A daemon that was killed once leaves mounts behind."""
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in reversed(mounts):
            if Path(mount).is_relative_to(self._own):
                subprocess.run(["umount", "-l", mount], check=False, capture_output=True)
        subprocess.run(["ip", "link", "del", self._bridge], check=False, capture_output=True)
        shutil.rmtree(self._own)

    def load(self, image: str) -> None:
        """Bring an image over from the daemon that the tests use."""
        saved = subprocess.Popen(["docker", "save", image], stdout=subprocess.PIPE)
        subprocess.run(["docker", "-H", self.host, "load"], stdin=saved.stdout, check=True, capture_output=True)
        assert saved.stdout is not None
        saved.stdout.close()
        assert saved.wait() == 0

    def _answers(self) -> bool:
        command = ["docker", "-H", self.host, "version"]
        return subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0


@contextmanager
def private_daemon(folder: Path, *arguments: str, data: Path | None = None) -> Iterator[PrivateDaemon]:
    daemon = PrivateDaemon(folder, *arguments, data=data)
    daemon.start()
    try:
        yield daemon
    finally:
        daemon.stop()
        daemon.remove()
