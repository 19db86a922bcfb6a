"""The servers as a user starts them: a bundle behind `agent-env serve`, the written folder behind `serve`."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

GYM = "agent_env.training.nemo_gym"


@dataclass
class Server:
    """One of our servers as a process of its own."""

    url: str
    log: Path
    process: subprocess.Popen[str]
    out: list[str]
    """lines of its stdout; complete once it has ended"""
    _reader: threading.Thread

    def stop(self) -> None:
        """SIGTERM, and wait for its end."""
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        self._reader.join(10)

    @property
    def said(self) -> str:
        return "\n".join(self.out) + self.log.read_text(errors="replace")


def start_server(log: Path, *arguments: str) -> Server:
    """Start `python -m ARGUMENTS` and wait for the line that gives its URL."""
    with log.open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        )
    out: list[str] = []
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process, out, lines), daemon=True)
    reader.start()
    while (line := lines.get(timeout=180)) is not None:
        if " http://" in line:
            return Server(line.rpartition(" ")[2], log, process, out, reader)
    raise AssertionError(f"{' '.join(arguments)} ended with {process.wait()}:\n{log.read_text()[-3000:]}")


@dataclass
class Chain:
    """A bundle, served twice over."""

    openenv: Server
    resources: Server
    folder: Path
    """what the writer wrote"""

    @property
    def url(self) -> str:
        return self.resources.url

    def rows(self, split: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.data(split).read_text().splitlines()]

    def data(self, split: str) -> Path:
        return self.folder / "data" / f"{split}.jsonl"


@contextmanager
def chain(
    bundle: Path,
    place: Path,
    *,
    openenv_flags: Sequence[str] = (),
    serve_flags: Sequence[str] = (),
    writer_flags: Sequence[str] = (),
) -> Iterator[Chain]:
    """Serve the bundle by processes, write its folder, serve that; at the end both servers are stopped.

    The sandboxes are processes: what is tested here is the same on Docker.
    """
    place.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        openenv = start_server(
            place / "openenv.log", "agent_env", "serve", str(bundle), "--port=0", "--sandbox=process", *openenv_flags
        )
        stack.callback(openenv.stop)
        folder = write_folder(openenv.url, place / "gym-root", *writer_flags)
        resources = start_server(place / "serve.log", GYM, "serve", str(folder), "--port=0", *serve_flags)
        stack.callback(resources.stop)
        yield Chain(openenv, resources, folder)


def write_folder(openenv_url: str, out: Path, *flags: str) -> Path:
    """Run the writer; returns the folder that it says it wrote."""
    command = [sys.executable, "-m", GYM, openenv_url, str(out), *flags]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return Path(done.stdout.strip().splitlines()[-1].removeprefix("wrote "))


def _read(process: subprocess.Popen[str], out: list[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None
    with process.stdout as stdout:
        for line in stdout:
            out.append(line.rstrip("\n"))
            lines.put(out[-1])
    lines.put(None)
