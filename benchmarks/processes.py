"""Servers as processes of their own, with what they cost: CPU seconds and memory, with their helpers."""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

_TICK = os.sysconf("SC_CLK_TCK")
_SCHEDULED = 2
"""clock of a process: its running time as the scheduler counts it (linux/posix-timers.h)"""


class Failed(Exception):
    """Something could not be measured; the message says why."""


class Process:
    def __init__(self, popen: subprocess.Popen[str], log: Path) -> None:
        self.popen = popen
        self.log = log
        self.url = ""
        self.out: list[str] = []
        self.reader: threading.Thread | None = None
        self.lines: queue.Queue[str | None] = queue.Queue()
        """those of `out` that nobody waited for yet; None: it ended"""

    @property
    def pid(self) -> int:
        return self.popen.pid

    @property
    def said(self) -> str:
        return "".join(self.out) + self.log.read_text(errors="replace")

    def cpu(self) -> float:
        """CPU seconds so far of the process and of its descendants: those that live, and what each has reaped."""
        return sum(_cpu(pid) + _reaped(pid) for pid in descendants(self.pid))

    def own_cpu(self) -> float:
        """CPU seconds so far of the process alone."""
        return _cpu(self.pid)

    def rss(self) -> int:
        """Bytes of memory of the process alone."""
        for line in Path(f"/proc/{self.pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Rss:"):
                return int(line.split()[1]) * 1024
        raise Failed(f"/proc/{self.pid}/smaps_rollup has no Rss")

    def stop(self) -> None:
        if self.popen.poll() is None:
            self.popen.terminate()
        try:
            self.popen.wait(120)
        except subprocess.TimeoutExpired:
            self.kill()
        if self.reader is not None:
            self.reader.join(10)

    def kill(self) -> None:
        self.popen.kill()
        self.popen.wait()


def descendants(pid: int) -> list[int]:
    """The process and what it started, as far as it lives."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text()
                children.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry.name))
    found = [pid]
    for parent in found:
        found += children.get(parent, [])
    return found


def _cpu(pid: int) -> float:
    try:
        return time.clock_gettime(~pid << 3 | _SCHEDULED)
    except OSError:  # it ended
        return 0.0


def _reaped(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[13]) + int(fields[14])) / _TICK


@contextmanager
def started(
    command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None, wait: float = 600
) -> Iterator[Process]:
    """A server, from the line of its stdout that ends in its URL on."""
    process = launch(command, log, env, cwd)
    try:
        process.url = _url(process, command, wait)
        yield process
    finally:
        process.stop()


@contextmanager
def listening(
    command: Sequence[str], url: str, log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> Iterator[Process]:
    """A server that says nothing, from its first answer at `url` on."""
    process = launch(command, log, env, cwd)
    process.url = url
    try:
        until = time.monotonic() + 600
        while not answers(url):
            if process.popen.poll() is not None or time.monotonic() > until:
                raise Failed(f"{' '.join(command[:4])}: no answer at {url}; its log ends: {_tail(process)}")
            time.sleep(0.02)
        yield process
    finally:
        process.stop()


def launch(command: Sequence[str], log: Path, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Process:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as stderr:
        popen = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=cwd,
            env=dict(os.environ if env is None else env) | {"PYTHONUNBUFFERED": "1"},
            preexec_fn=_die_with_parent,
        )
    process = Process(popen, log)
    process.reader = threading.Thread(target=_read, args=(process,), daemon=True)
    process.reader.start()
    return process


def answers(url: str) -> bool:
    try:
        httpx.get(url, timeout=5, trust_env=False)
    except httpx.TransportError:
        return False
    return True


def run(*command: str) -> str:
    """A command to its end; what it printed."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"{' '.join(command[:6])}: exit code {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return done.stdout


def _read(process: Process) -> None:
    assert process.popen.stdout is not None
    with process.popen.stdout as lines:
        for line in lines:
            process.out.append(line)
            process.lines.put(line)
    process.lines.put(None)


def _url(process: Process, command: Sequence[str], wait: float) -> str:
    while True:
        try:
            line = process.lines.get(timeout=wait)
        except queue.Empty:
            raise Failed(f"{' '.join(command[:4])} gave no URL in {wait:g} s") from None
        if line is None:
            raise Failed(f"{' '.join(command[:8])} ended with {process.popen.wait()}: {_tail(process)}")
        if " http://" in line:
            return line.strip().rpartition(" ")[2]


def _tail(process: Process) -> str:
    return " / ".join(process.said.strip().splitlines()[-4:])


def _die_with_parent() -> None:
    if sys.platform == "linux":
        pr_set_pdeathsig = 1
        ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGTERM)
