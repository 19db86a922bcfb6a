"""Runs one command inside a container for `docker_exec`, and ends it with all that it started. Standard library only.

In, on stdin: 4 bytes of length, a JSON request `{argv, env, cwd, timeout, input, limit}`, then `input` bytes for the
command. The stream then stays open: its end means that nobody waits any more, and everything is killed.
Out, on stdout, once all is over: 4 bytes of length, `{exit_code, timed_out, cut, out, err}`, then that many bytes of
the command's stdout and stderr.
"""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import subprocess
import sys
import time

CHUNK = 65536


def main() -> None:
    head = read_exactly(struct.unpack(">I", read_exactly(4))[0])
    request = json.loads(head)
    given = read_exactly(request["input"])
    become_subreaper()
    try:
        command = Command(request, given)
    except OSError as error:
        answer(127, False, False, b"", f"{request['argv'][0]}: {error.strerror}\n".encode())
        return
    command.attend(time.monotonic() + request["timeout"])
    code = command.child.returncode
    answer(code if code >= 0 else 128 - code, command.timed_out, command.cut, bytes(command.out), bytes(command.err))


class Command:
    """The child and what goes in and out of it."""

    def __init__(self, request: dict[str, object], given: bytes) -> None:
        self.woken, waker = os.pipe()
        os.set_blocking(waker, False)
        signal.set_wakeup_fd(waker)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.child: subprocess.Popen[bytes] = subprocess.Popen(
            request["argv"],  # type: ignore[call-overload]
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=request["cwd"],
            env={**os.environ, **request["env"]},  # type: ignore[dict-item]
            start_new_session=True,
        )
        self.given = given
        self.limit = int(request["limit"])  # type: ignore[call-overload]
        self.out, self.err = bytearray(), bytearray()
        self.timed_out = self.cut = False
        assert self.child.stdin
        assert self.child.stdout
        assert self.child.stderr
        self.sink = self.child.stdin.fileno()
        self.sources = {self.child.stdout.fileno(): self.out, self.child.stderr.fileno(): self.err}
        self.poll = select.poll()
        for fd in (0, self.woken, *self.sources):
            os.set_blocking(fd, False)
            self.poll.register(fd, select.POLLIN)
        os.set_blocking(self.sink, False)
        self.poll.register(self.sink, select.POLLOUT)

    def attend(self, deadline: float) -> None:
        """Until it ended or its time is up; then nothing of it is left, and what it wrote has been read."""
        while self.child.poll() is None:
            left = deadline - time.monotonic()
            if left <= 0:
                self.timed_out = True
                break
            self.pump(int(left * 1000) + 1)
        kill_all(self.child)
        while self.sources and self.pump(0):
            continue

    def pump(self, timeout: int) -> bool:
        """Wait for one round of events, at most so many milliseconds; did a stream give anything?"""
        moved = False
        for fd, _ in self.poll.poll(timeout):
            if fd == 0:
                kill_all(self.child)
                os._exit(1)
            elif fd == self.woken:
                os.read(fd, CHUNK)
            elif fd == self.sink:
                self.feed()
            else:
                self.take(fd)
                moved = True
        return moved

    def feed(self) -> None:
        try:
            self.given = self.given[os.write(self.sink, self.given[:CHUNK]) :] if self.given else b""
        except BlockingIOError:
            return
        except OSError:
            self.given = b""  # it reads no more
        if not self.given:
            self.poll.unregister(self.sink)
            os.close(self.sink)
            self.child.stdin = None

    def take(self, fd: int) -> None:
        try:
            data = os.read(fd, CHUNK)
        except BlockingIOError:
            return
        if not data:
            self.poll.unregister(fd)
            del self.sources[fd]
            return
        kept = self.sources[fd]
        room = max(0, self.limit - len(kept))
        self.cut = self.cut or len(data) > room
        kept += data[:room]


def kill_all(child: subprocess.Popen[bytes]) -> None:
    """End every process below this one, again and again until none is left: orphans become our children."""
    while True:
        for pid in descendants():
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        try:
            ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        except ChildProcessError:
            return
        if ended is not None and ended.si_pid == child.pid:
            child.wait()
        elif ended is not None:
            os.waitpid(ended.si_pid, 0)


def descendants() -> list[int]:
    parents = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    parents[int(name)] = int(file.read().rpartition(b")")[2].split()[1])
            except OSError:
                continue
    found: list[int] = []
    ring = [os.getpid()]
    while ring:
        ring = [pid for pid, parent in parents.items() if parent in ring]
        found += ring
    return found


def become_subreaper() -> None:
    try:
        import ctypes

        ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)
    except (ImportError, OSError, AttributeError):
        return  # a Python without ctypes: what leaves the tree of processes escapes the deadline


def read_exactly(size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = os.read(0, size - len(data))
        if not chunk:
            sys.exit(1)
        data += chunk
    return data


def answer(code: int, timed_out: bool, cut: bool, out: bytes, err: bytes) -> None:
    said = {"exit_code": code, "timed_out": timed_out, "cut": cut, "out": len(out), "err": len(err)}
    head = json.dumps(said).encode()
    sys.stdout.buffer.write(struct.pack(">I", len(head)) + head + out + err)
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
