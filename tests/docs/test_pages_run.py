"""A reader who only copies commands gets to the end of each page: the blocks marked `run`, in their order.

The pages' ports are replaced by free ones and sizes reduced; nothing else is. A command that serves stays in the
background, as in a reader's other terminal, until the page ends.
"""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stubs.pages import DOCS, REPOSITORY, blocks

pytestmark = [pytest.mark.integration, pytest.mark.timeout(400)]

PORTS = ("8200", "9100")
SMALLER = {
    "--limit 24": "--limit 2",
    "--seconds 10": "--seconds 1 --levels 1,2 --model-seconds 1",
    "--max-concurrent-envs 96": "--max-concurrent-envs 4 --warm 1",
    "max_concurrent_envs=96": "max_concurrent_envs=4",
}
SERVES = re.compile(r"^(agent-env serve|python -m agent_env\.training\.nemo_gym serve|python serve\.py)\b")


class Reader:
    """Copies commands into terminals, all in one folder."""

    def __init__(self, home: Path) -> None:
        self.folder = home
        self.printed = ""
        self._home = home
        self._servers: list[subprocess.Popen[str]] = []
        self._ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))
        venv = Path(sys.executable).parent
        self._environment = os.environ | {
            "PATH": f"{venv}{os.pathsep}{os.environ['PATH']}",
            "AGENT_ENV_STATE": str(home / "state"),
            "DOCKER_HOST": f"unix://{home}/no-daemon",
            "PYTHONUNBUFFERED": "1",
        }

    def read(self, page: str) -> None:
        for block in blocks(DOCS / page):
            for command in block.commands if block.mark == "run" else ():
                self.enter(command)

    def enter(self, command: str) -> None:
        command = self._adapted(command)
        if SERVES.match(command):
            self._serve(command)
            return
        here = self._home / "here"
        done = subprocess.run(
            ["bash", "-euc", f"{command}\npwd > {here}"],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
        assert done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        self.printed += f"$ {command}\n{done.stdout}{done.stderr}"
        self.folder = Path(here.read_text().strip())
        for script in ("serve.py", "examples/grpo_trl.py"):
            if (path := self.folder / script).is_file():
                path.write_text(self._adapted(path.read_text()))

    def _serve(self, command: str) -> None:
        if command.startswith("agent-env serve") and "--port" not in command:
            command += f" --port {self._ports['8200']}"
        process = subprocess.Popen(
            ["bash", "-euc", f"exec {command}"],
            cwd=self.folder,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._servers.append(process)
        said: list[str] = []
        told = threading.Event()
        threading.Thread(target=follow, args=(process, said, told), daemon=True).start()
        until = time.monotonic() + 180
        while not told.wait(0.1):
            ended = process.poll() is not None
            assert not ended, f"{command}\nexit code {process.returncode}\n{''.join(said)}"
            assert time.monotonic() < until, f"{command}\ngave no URL\n{''.join(said)}"
        self.printed += f"$ {command}\n{''.join(said)}"

    def _adapted(self, text: str) -> str:
        for port, free in self._ports.items():
            text = re.sub(rf"\b{port}\b", free, text)
        for big, small in SMALLER.items():
            text = text.replace(big, small)
        return text

    def leave(self) -> list[int]:
        """Ctrl-C in each terminal, the last one first; how each ended."""
        for process in reversed(self._servers):
            process.terminate()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        return [process.returncode for process in self._servers]


def follow(process: subprocess.Popen[str], said: list[str], told: threading.Event) -> None:
    assert process.stdout is not None
    with process.stdout as out:
        for line in out:
            said.append(line)
            if " http://" in line:
                told.set()


def free_ports(count: int) -> list[str]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
        return [str(each.getsockname()[1]) for each in (one, two)][:count]


@contextmanager
def reader(home: Path) -> Iterator[Reader]:
    made = Reader(home)
    try:
        yield made
    finally:
        codes = made.leave()
    assert all(code in (0, -15) for code in codes), codes  # uvicorn re-raises SIGTERM once it has shut down


def test_the_quickstart_and_then_the_operators_page(tmp_path: Path) -> None:
    with reader(tmp_path) as page:
        page.read("quickstart.md")
        assert "wrote gym-root/resources_servers/gridsim_v1" in page.printed
        rewards = dict(re.findall(r"^\s*(idle|greedy|optimal|broken)\s+.*?(\d\.\d+)", page.printed, re.MULTILINE))
        assert (float(rewards["idle"]), float(rewards["optimal"]), float(rewards["broken"])) == (0.2, 1.0, 0.0)
        page.read("operating.md")
        names = sorted(path.name for path in (tmp_path / "gym-root/resources_servers").iterdir())
        assert names == ["gridsim_a", "gridsim_b", "gridsim_v1"]


def test_the_page_on_prime_rl_to_where_gpus_are_needed(tmp_path: Path) -> None:
    """Its clone of prime-rl is an empty folder: what is in one matters from the GPU commands on."""
    (tmp_path / "prime-rl").mkdir()
    shutil.copytree(REPOSITORY / "examples", tmp_path / "agent-env" / "examples")
    with reader(tmp_path) as page:
        page.read("training/prime-rl.md")
        folder = tmp_path / "prime-rl"
        rows = folder / "gym-root/resources_servers/gridsim_v1/data"
        assert len((rows / "train.jsonl").read_text().splitlines()) == 2000
        assert len((rows / "eval.jsonl").read_text().splitlines()) == 200
        assert len((folder / "sft_gridsim.jsonl").read_text().splitlines()) == 2000
        assert {"serve.py", "eval.toml", "prime_rl_gridsim.toml"} <= {path.name for path in folder.iterdir()}


def test_the_page_on_trl_to_where_gpus_are_needed(tmp_path: Path) -> None:
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    with reader(tmp_path) as page:
        page.read("training/trl.md")
        assert len(re.findall(r"^\d \d{4}-\d\d-\d\d, HB_", page.printed, re.MULTILINE)) == 3


def test_the_page_on_nemo_rl_to_where_nemo_gym_is_needed(tmp_path: Path) -> None:
    with reader(tmp_path) as page:
        page.read("training/nemo-rl.md")
        folder = tmp_path / "gym-root/resources_servers/gridsim_v1"
        for name in ("app.py", "requirements.txt", "README.md", "configs/gridsim_v1_v07.yaml", "data/example.jsonl"):
            assert (folder / name).is_file()
