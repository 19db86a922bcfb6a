"""Starts our commands as real processes and waits for the line that gives their URL."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

OPENENV = "agent_env"
NEMO_GYM = "agent_env.training.nemo_gym"


class Command:
    """A running command. `log` is what it wrote to stderr so far."""

    def __init__(self, module: str, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, **(env or {})},
        )
        self._lines: list[str] = []
        self._errors: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=(self.process.stdout, self._lines), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stderr, self._errors), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: object, into: list[str]) -> None:
        for line in stream:  # type: ignore[attr-defined]
            into.append(line)

    @property
    def out(self) -> str:
        return "".join(self._lines)

    @property
    def log(self) -> str:
        return "".join(self._errors)

    def url(self, seconds: float = 90) -> str:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            for line in self._lines:
                if " http://" in line or line.startswith("http://"):
                    return line.strip().rpartition(" ")[2]
            if self.process.poll() is not None:
                raise AssertionError(f"exit {self.process.returncode}\n{self.out}{self.log}")
            time.sleep(0.02)
        raise AssertionError(f"no URL after {seconds} s\n{self.out}{self.log}")

    def wait(self, seconds: float = 90) -> int:
        code = self.process.wait(seconds)
        for reader in self._readers:
            reader.join(10)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code

    def stop(self, seconds: float = 30) -> int:
        if self.process.poll() is None:
            self.process.terminate()
        return self.wait(seconds)

    def kill(self) -> None:
        self.process.kill()
        self.wait(10)


@contextmanager
def command(module: str, *arguments: str, env: dict[str, str] | None = None) -> Iterator[Command]:
    running = Command(module, *arguments, env=env)
    try:
        yield running
    finally:
        try:
            running.stop()
        except subprocess.TimeoutExpired:
            running.kill()
            raise


def finished(module: str, *arguments: str, env: dict[str, str] | None = None) -> Command:
    """Run a command to its end."""
    running = Command(module, *arguments, env=env)
    running.wait()
    return running


@contextmanager
def chain(bundle: Path, out: Path, serve: Sequence[str] = (), openenv: Sequence[str] = ()) -> Iterator[Chain]:
    """Both servers on a bundle, and the written folder between them."""
    with command(OPENENV, "serve", str(bundle), "--port", "0", "--sandbox", "process", *openenv) as upstream:
        written = finished(NEMO_GYM, upstream.url(), str(out))
        assert written.process.returncode == 0, written.log
        folder = Path(written.out.strip().splitlines()[-1].removeprefix("wrote "))
        with command(NEMO_GYM, "serve", str(folder), "--port", "0", *serve) as server:
            yield Chain(upstream, server, folder, server.url())


class Chain:
    def __init__(self, openenv: Command, serve: Command, folder: Path, url: str) -> None:
        self.openenv = openenv
        self.serve = serve
        self.folder = folder
        self.url = url
