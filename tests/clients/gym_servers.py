"""NeMo Gym's own processes: its command line, and single servers without it.

A server needs two environment variables and nothing else: the resolved config of the whole run, and which of its blocks
it is. A block that names host and port may stand for a server that somebody else runs, such as `serve`.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import yaml
from clients.nemo_gym_venv import NemoGym

Json = Any
_INSTALLED = "lib/python3.13/site-packages"


@dataclass(frozen=True)
class Place:
    """Where NeMo Gym's processes of a test run: `root` holds their home, logs, and the venvs that `gym` would make."""

    client: NemoGym
    root: Path
    ray: Path

    @classmethod
    @contextmanager
    def made(cls, client: NemoGym, root: Path) -> Iterator[Place]:
        (root / "home").mkdir(parents=True)
        # Ray puts sockets there, whose paths must be short.
        with tempfile.TemporaryDirectory(prefix="gym-", ignore_cleanup_errors=True) as ray:
            yield cls(client, root, Path(ray))

    def environment(self, version: str | None = None) -> dict[str, str]:
        told = self.client.environment(self.root / "home", version)
        told |= {"RAY_TMPDIR": str(self.ray), "PYTHONDONTWRITEBYTECODE": "1"}
        return told | {name: value for name, value in os.environ.items() if name.startswith("AGENT_ENV_")}

    def offline(self, *servers: str) -> list[str]:
        """The overrides by which `gym` takes the installed client for each of `servers` (`<type>/<name>`)."""
        for server in servers:
            venv = self.root / "venvs" / server / ".venv"
            if not venv.is_symlink():
                venv.parent.mkdir(parents=True, exist_ok=True)
                venv.symlink_to(self.client.venv)
        return ["+skip_venv_if_present=true", f"+uv_venv_dir={self.root / 'venvs'}"]

    def gym(self, *arguments: str, cwd: Path | None = None) -> str:
        """Run `gym ARGUMENTS` to its end; what it printed. It must exit with 0."""
        done = subprocess.run(
            [str(self.client.gym), *arguments],
            cwd=cwd or self.root,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=500,
            check=False,
        )
        assert done.returncode == 0, done.stdout[-6000:]
        return done.stdout

    def log(self, instance: str) -> str:
        """What that server printed."""
        return (self.root / f"{instance}.log").read_text(errors="replace")

    @contextmanager
    def started(self, *arguments: str) -> Iterator[None]:
        """`gym env start ARGUMENTS`, from the moment that every server is ready."""
        command = [str(self.client.gym), "env", "start", *arguments]
        with _running(command, self.root, self.environment(), self.root / "start.log") as process:
            _wait_until(lambda: "servers ready! Polling" in process.said, process)
            yield

    @contextmanager
    def server(
        self, folder: Path, instance: str, config: Mapping[str, Json], version: str | None = None
    ) -> Iterator[str]:
        """The URL of `folder/app.py`, which plays `instance` of `config`."""
        told = {"NEMO_GYM_CONFIG_DICT": json.dumps(config), "NEMO_GYM_CONFIG_PATH": instance}
        (settings,) = next(iter(config[instance].values())).values()
        url = f"http://{settings['host']}:{settings['port']}"
        command = [str(self.client.python), "app.py"]
        with _running(command, folder, self.environment(version) | told, self.root / f"{instance}.log") as process:
            _wait_until(lambda: _answers(url), process)
            yield url

    @contextmanager
    def native(self, folder: Path, version: str | None = None) -> Iterator[str]:
        """The URL of a written folder's server, run by NeMo Gym."""
        name = f"{folder.name}_resources_server"
        with self.server(folder, name, run_config(folder, with_agent=False), version) as url:
            yield url

    @contextmanager
    def agent(self, folder: Path, resources_url: str, model_url: str) -> Iterator[Agent]:
        """NeMo Gym's simple_agent and model server, in front of a resources server and a model."""
        config = run_config(folder, resources_url=resources_url, model_url=model_url)
        installed = self.client.venv / _INSTALLED
        name = f"{folder.name}_simple_agent"
        with self.server(installed / "responses_api_models" / "vllm_model", "policy_model", config):
            with self.server(installed / "responses_api_agents" / "simple_agent", name, config) as url:
                yield Agent(url)


@dataclass(frozen=True)
class Agent:
    """A simple_agent, which plays a row at a time."""

    url: str

    async def run(self, row: Mapping[str, Json]) -> httpx.Response:
        async with httpx.AsyncClient(timeout=180, trust_env=False) as http:
            return await http.post(f"{self.url}/run", json=row)


def run_config(
    folder: Path, *, with_agent: bool = True, resources_url: str | None = None, model_url: str | None = None
) -> dict[str, Json]:
    """What `gym env resolve` makes of the folder's config, as far as servers look, with addresses."""
    blocks: dict[str, Json] = yaml.safe_load((folder / "configs" / f"{folder.name}.yaml").read_text())
    if not with_agent:
        del blocks[f"{folder.name}_simple_agent"]
    if model_url:
        settings = {"entrypoint": "app.py", "base_url": model_url, "api_key": "unused", "model": "scripted"}
        settings |= {"return_token_id_information": False, "uses_reasoning_parser": True}
        blocks["policy_model"] = {"responses_api_models": {"vllm_model": settings}}
    for block in blocks.values():
        (settings,) = next(iter(block.values())).values()
        settings |= {"host": "127.0.0.1", "port": free_port()}
    if resources_url:
        (settings,) = blocks[f"{folder.name}_resources_server"]["resources_servers"].values()
        settings["port"] = urlsplit(resources_url).port
    return {**blocks, "head_server": {"host": "127.0.0.1", "port": free_port()}, "dry_run": False}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
    return port


@dataclass(frozen=True)
class _Process:
    popen: subprocess.Popen[bytes]
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text(errors="replace")


@contextmanager
def _running(command: Sequence[str], cwd: Path, environment: Mapping[str, str], log: Path) -> Iterator[_Process]:
    """A process, interrupted at the end as Ctrl-C would; those that it started go with it."""
    with log.open("w") as out:
        popen = subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        yield _Process(popen, log)
    finally:
        popen.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            popen.wait(60)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(popen.pid, signal.SIGKILL)
        popen.wait()


def _wait_until(true: Any, process: _Process, timeout: float = 300) -> None:
    deadline = time.monotonic() + timeout
    while not true():
        assert process.popen.poll() is None, process.said[-6000:]
        assert time.monotonic() < deadline, f"not ready after {timeout:g} s:\n{process.said[-6000:]}"
        time.sleep(0.2)


def _answers(url: str) -> bool:
    try:
        httpx.get(url, timeout=5, trust_env=False)
    except httpx.TransportError:
        return False
    return True
