"""The OpenEnv server of one node of a cluster: started there, watched, and gone when its keeper is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence

import docker
from docker.errors import DockerException

_STOP_WITHIN = 150.0
"""Seconds: a server that is stopped waits for its teardowns (`--teardown-timeout`, 120 s)."""


class NodeServer:
    """Runs `agent-env serve` on the machine it is made on. Plain Python: an engine makes an actor of it."""

    def __init__(self, words: Sequence[str], token: str | None) -> None:
        """`words`: BUNDLE and flags of `agent-env serve`, but for `--token-file`: that file may be elsewhere."""
        self._words = list(words)
        self._token = token
        self._process: subprocess.Popen[str] | None = None

    def has_docker(self) -> bool:
        """Does a Docker daemon answer on this machine?"""
        try:
            client = docker.from_env(timeout=5)
            try:
                return bool(client.ping())
            finally:
                client.close()
        except (DockerException, OSError):
            return False

    def start(self) -> str:
        """The server's URL, once it answers: its images are built before. Raises RuntimeError when it ends instead."""
        with tempfile.TemporaryDirectory(prefix="agent-env-") as folder:
            words = self._words
            if self._token is not None:
                path = os.path.join(folder, "token")
                with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write(self._token)
                words = [*words, "--token-file", path]
            leash = [sys.executable, "-m", "agent_env.deploy.leash"]
            self._process = subprocess.Popen(
                [*leash, sys.executable, "-m", "agent_env", "serve", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            return self._url(self._process)

    def ended(self) -> int:
        """Waits for the server's end; its exit code."""
        assert self._process is not None
        return self._process.wait()

    def stop(self) -> None:
        """Ends the server in order: episodes abandoned, sandboxes removed."""
        process = self._process
        if process is None or process.stdin is None:
            return
        process.stdin.close()
        try:
            process.wait(_STOP_WITHIN)
        except subprocess.TimeoutExpired:
            process.kill()

    def _url(self, process: subprocess.Popen[str]) -> str:
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            if " at http://" in line:
                threading.Thread(target=_drain, args=(process,), daemon=True).start()
                return line.strip().rpartition(" ")[2]
        process.stdout.close()
        raise RuntimeError(f"agent-env serve ended with {process.wait()} before it served: see its log above")


def _drain(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    with process.stdout as lines:
        for line in lines:
            sys.stdout.write(line)
