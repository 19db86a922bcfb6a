"""The process that stands between our server and what it starts. Run as a script: standard library only.

The *template* is started once per provider and forks a *keeper* for each request, which costs a millisecond or two. A
keeper runs one command, holds its output in bounded files, and ends it, with everything it started, when asked, when
its time is up, or when the owner is gone. It learns of the owner's death from the control socket's end and from a
pidfd, so a SIGKILL of the owner counts, whatever else may hold the socket open. As a "child subreaper" it inherits
every orphan of its command: nothing escapes it by starting a session of its own.

Template: argv = <fd of its socket> <pid of the owner>. Each message carries the fds [control] of a keeper, or
[control, stdin, stdout, stderr].
Keeper, JSON lines in: the request (see `Keeper`), then `{"stop": <grace seconds>}`.
Keeper, JSON lines out: `{"pid", "keeper"}` or `{"failed": <errno text>}`; `{"exit": <code, or minus the signal>,
"timed_out", "stopped"}` once all its processes are gone; `{"gone": true}` once the paths to remove are, too.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
READ_SIZE = 1 << 16
LIMITS = {"data": resource.RLIMIT_DATA, "nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
REMOVE_FOR = 5.0
"""seconds to keep trying to remove a folder in which something may still write"""


def main() -> None:
    """The template: fork a keeper for each message until the socket ends."""
    requests = socket.socket(fileno=int(sys.argv[1]))
    owner = int(sys.argv[2])
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    poll = select.poll()
    poll.register(requests, select.POLLIN)
    owner_fd = _pidfd(owner)
    if owner_fd is not None and owner_fd >= 0:
        poll.register(owner_fd, select.POLLIN)
    while owner_fd not in [fd for fd, _ in poll.poll()]:
        message, fds, _, _ = socket.recv_fds(requests, 1, 4)
        if not message:
            return
        for fd in fds:
            os.set_inheritable(fd, False)
        if os.fork() == 0:
            try:
                requests.close()
                if owner_fd is not None and owner_fd >= 0:
                    os.close(owner_fd)
                Keeper(socket.socket(fileno=fds[0]), fds[1:], owner).run()
            except Exception:
                sys.excepthook(*sys.exc_info())
            finally:
                os._exit(0)
        for fd in fds:
            os.close(fd)


class Keeper:
    """Keeps one command. The request's keys:

    argv, env, cwd    what to run
    limits            `{"data", "nofile", "nproc"}`: rlimits, in bytes, files and processes
    log, log_limit    prefix of the log's files and how many bytes they may hold together; without stdio fds only
    timeout           seconds until it is ended, or null
    remove            paths to remove when all is over; it then stays until told to stop
    """

    log_mode = 0o600

    def __init__(self, control: socket.socket, stdio: list[int], owner: int) -> None:
        self.control = control
        self.stdio = stdio
        self.inbox = b""
        self.messages: list[dict[str, Any]] = []
        self.owner_gone = False
        self.told_to_end = False
        self.pid = 0
        self.status: int | None = None
        self.log: Log | None = None
        self.poll = select.poll()
        self.wake, self.waker = _wake_up_on_signals()
        self.owner_fd = _pidfd(owner)
        if self.owner_fd == -1:
            self.owner_gone = True
        for fd in (control.fileno(), self.wake, self.owner_fd):
            if fd is not None and fd >= 0:
                self.poll.register(fd, select.POLLIN)

    def run(self) -> None:
        """From the request to the end."""
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        while not self.messages:
            if self.owner_gone or self.told_to_end:
                return
            self._wait(None)
        request = self.messages.pop(0)
        try:
            self.pid = self._start(request)
        except OSError as error:
            self._say({"failed": error.strerror or str(error)})
        else:
            self._say({"pid": self.pid, "keeper": os.getpid()})
            self._say(self._attend(request.get("timeout")))
        if request.get("remove"):
            while not (self.messages or self.owner_gone or self.told_to_end):
                self._wait(None)
            self._clear(request["remove"])
            self._say({"gone": True})

    def _turn_into(self, request: dict[str, Any], tell: int) -> None:
        """In the child: become the command. `tell` says that this went well by being closed, which an exec does."""
        become(request, self.stdio)

    def _clear(self, paths: list[str]) -> None:
        for path in paths:
            remove(path)

    def _start(self, request: dict[str, Any]) -> int:
        if request.get("log"):
            source, sink = os.pipe()
            os.set_blocking(source, False)
            self.log = Log(source, request["log"], request["log_limit"], self.log_mode)
            self.poll.register(source, select.POLLIN)
            self.stdio = [os.open(os.devnull, os.O_RDONLY), sink, sink]
        told, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(told)
                self._turn_into(request, tell)
            except Exception as error:
                os.write(tell, str(getattr(error, "errno", None) or errno.EINVAL).encode())
                os._exit(127)
        os.close(tell)
        for fd in set(self.stdio):
            os.close(fd)
        with os.fdopen(told, "rb") as pipe:
            failed = pipe.read()
        if failed:
            os.waitpid(pid, 0)
            raise OSError(int(failed), os.strerror(int(failed)))
        return pid

    def _attend(self, timeout: float | None) -> dict[str, Any]:
        """Until the command and all that it started have ended; returns what to say about it."""
        kill_at = time.monotonic() + timeout if timeout is not None else None
        timed_out = stopped = False
        while self.status is None:
            self._wait(kill_at)
            self._reap()
            if self.owner_gone or self.told_to_end:
                break
            if self.messages and not stopped:
                stopped = True
                kill_at = time.monotonic() + float(self.messages[0]["stop"])
                _signal(os.killpg, self.pid, signal.SIGTERM)
            if self.status is None and kill_at is not None and time.monotonic() >= kill_at:
                timed_out = not stopped
                break
        self._kill_all()
        if self.log is not None:
            self.log.pump()
        return {"exit": self.status, "timed_out": timed_out, "stopped": stopped}

    def _kill_all(self) -> None:
        """SIGKILL everything below us, again and again, until no child is left: orphans become our children."""
        while _has_children():
            self._strike()
            self._wait(time.monotonic() + 0.05)
            self._reap()

    def _strike(self) -> None:
        for pid in descendants(os.getpid()):
            _signal(os.kill, pid, signal.SIGKILL)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid == self.pid:
                self.status = os.waitstatus_to_exitcode(status)

    def _wait(self, until: float | None) -> None:
        """Wait for something to happen, at most until that time of the monotonic clock, and take note of it."""
        timeout = None if until is None else max(0, int((until - time.monotonic()) * 1000) + 1)
        for fd, _ in self.poll.poll(timeout):
            if fd == self.wake:
                self.told_to_end = self.told_to_end or signal.SIGTERM in os.read(fd, 512)
            elif fd == self.owner_fd:
                self.owner_gone = True
                self.poll.unregister(fd)
            elif fd == self.control.fileno():
                self._receive(fd)
            elif self.log is not None and not self.log.pump():
                self.poll.unregister(fd)

    def _receive(self, fd: int) -> None:
        try:
            data = self.control.recv(READ_SIZE)
        except OSError:
            data = b""
        if not data:
            self.owner_gone = True
            self.poll.unregister(fd)
        *lines, self.inbox = (self.inbox + data).split(b"\n")
        self.messages += [json.loads(line) for line in lines]

    def _say(self, message: dict[str, Any]) -> None:
        try:
            self.control.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.owner_gone = True


class Log:
    """Output in two files of half the limit each, `<prefix>.<offset of the first byte>`; older bytes are dropped."""

    def __init__(self, source: int, prefix: str, limit: int, mode: int = 0o600) -> None:
        self.source = source
        self.mode = mode
        self.prefix = prefix
        self.half = max(limit // 2, READ_SIZE)
        self.offset = 0
        self.files: list[str] = []
        self.sink = -1
        self.room = 0

    def pump(self) -> bool:
        """Take what is there. False at the end of the output."""
        while True:
            try:
                data = os.read(self.source, READ_SIZE)
            except BlockingIOError:
                return True
            if not data:
                return False
            try:
                self._write(data)
            except OSError:
                # A full disk must not stop the env: its output is lost instead.
                self.room = 0

    def _write(self, data: bytes) -> None:
        if self.room < len(data):
            if self.sink >= 0:
                os.close(self.sink)
                self.sink = -1
            name = f"{self.prefix}.{self.offset}"
            self.files.append(name)
            if len(self.files) > 2:
                os.unlink(self.files.pop(0))
            self.sink = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, self.mode)
            self.room = self.half
        self.offset += len(data)
        self.room -= len(data)
        os.write(self.sink, data)


def become(request: dict[str, Any], stdio: list[int]) -> None:
    """In the child: turn into the command. Raises OSError."""
    stand_apart(stdio)
    limit(request.get("limits", {}))
    prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    os.chdir(request["cwd"])
    os.execvpe(request["argv"][0], request["argv"], request["env"])


def stand_apart(stdio: list[int], victim: int = 500) -> None:
    """A session, signals and stdio of its own; `victim` is its oom_score_adj."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(number, signal.SIG_DFL)
    for target, fd in enumerate(stdio):
        os.dup2(fd, target, inheritable=True)
    _prefer_as_victim(victim)
    os.umask(0o022)


def limit(limits: dict[str, Any]) -> None:
    """Set the rlimits named; a lower one that is set already stays."""
    for name, kind in LIMITS.items():
        if limits.get(name):
            hard = resource.getrlimit(kind)[1]
            wanted = limits[name] if hard == resource.RLIM_INFINITY else min(limits[name], hard)
            resource.setrlimit(kind, (wanted, wanted))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def descendants(pid: int) -> list[int]:
    """Every process below `pid`, the closest first."""
    found = [pid]
    for parent in found:
        found += _children(parent)
    return found[1:]


def remove(path: str) -> None:
    """Remove a file or a tree, never following a link."""
    give_up = time.monotonic() + REMOVE_FOR
    while True:
        _remove_once(path)
        if not os.path.lexists(path) or time.monotonic() > give_up:
            return
        time.sleep(0.05)


def _remove_once(path: str) -> None:
    with contextlib.suppress(OSError):
        for _, folders, files, fd in os.fwalk(path, topdown=False):
            for name in files + folders:
                _remove_entry(name, fd)
    _remove_entry(path, None)


def _remove_entry(name: str, fd: int | None) -> None:
    with contextlib.suppress(OSError):
        os.unlink(name, dir_fd=fd)
    with contextlib.suppress(OSError):
        os.rmdir(name, dir_fd=fd)
    with contextlib.suppress(OSError):
        # Still there: a folder that may not be entered, or in which something was written; for the next round.
        os.chmod(name, 0o700, dir_fd=fd)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:
        # It ended meanwhile: its children, if any, are ours by now and found in the next round.
        return found
    return found


def prctl(option: int, value: int) -> None:
    ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _signal(send: Any, pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        send(pid, number)


def _prefer_as_victim(score: int) -> None:
    """When memory runs out the kernel should end an env, not the server."""
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write(str(score))


def _pidfd(pid: int) -> int | None:
    """A descriptor that is readable once the process is gone; -1 when it is gone; None where there is no such thing."""
    try:
        return os.pidfd_open(pid)
    except ProcessLookupError:
        return -1
    except (OSError, AttributeError):
        return None


def _wake_up_on_signals() -> tuple[int, int]:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, lambda *_: None)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    return reader, writer


if __name__ == "__main__":
    main()
