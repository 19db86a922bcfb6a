"""A process that has imported what an env needs, and forks the env's own command from it, once for each episode.

Run as a script by the env's own interpreter, inside the sandbox that all its forks share: standard library only, with
keeper.py and fork_program.py beside it. It connects to the owner once, at the start; everything goes over that
connection, so there is nothing that an env could connect to. Each fork stands below a keeper of its own (keeper.py),
which ends it as a whole. Where the server is root, a fork is a user of its own.

argv = <folder>: holds config.json (see `Server`) and the owner's socket `owner`.
JSON lines out: `{"ready": {...}}` or `{"failed": <why>}`; then `{"rss": <bytes>}` now and then.
Each byte in comes with descriptors, the first of them the owner's end of a socket pair for this request:
    k   a keeper's control, and optionally stdin, stdout and stderr: see `ForkKeeper`
    c   `{"port", "uid"}` -> `{"error", "others"}` and, where error is 0, a socket connected to the fork's port
    f   `{"slot", "path", "mode"}` -> `{"error"}` and a descriptor of that file: for reading where mode is null
A *slot* is `{"folder", "uid"}`: the folder of one fork, and its user, or null.
"""

from __future__ import annotations

import errno
import gc
import importlib.util
import json
import os
import shutil
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agent_env.sandbox import fork_places, fork_program, keeper, listeners
else:

    def _load(name):
        spec = importlib.util.spec_from_file_location(
            f"_agent_env_{name}", os.path.join(os.path.dirname(os.path.abspath(__file__)), f"{name}.py")
        )
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module
        spec.loader.exec_module(module)
        return module

    keeper = _load("keeper")
    fork_places = _load("fork_places")
    fork_program = _load("fork_program")
    listeners = _load("listeners")

PR_SET_DUMPABLE = 4
PR_SET_NO_NEW_PRIVS = 38
VICTIM = 800
"""oom_score_adj of forks: they go before this server, on which their siblings depend"""
SAY_EVERY = 50
"""forks between two words on the server's own size"""
STRIKES = 3
"""rounds of killing before everything of the fork's user is killed at once"""


class Start(BaseException):
    """Unwinds a forked child to the top of the script, where `program` runs as a script's own code does."""

    def __init__(self, program: fork_program.Program) -> None:
        self.program = program


class Failed(Exception):
    """Why there can be no server."""


def main() -> None:
    folder = sys.argv[1]
    workdir = os.getcwd()
    os.chdir(folder)  # a socket's path may only have 107 bytes
    with open("config.json") as file:
        config = json.load(file)
    program = fork_program.Program(config["words"], python=config["python"], workdir=workdir)
    other = program.interpreter()
    if other is not None and sys.argv[2:] != ["again"]:
        os.chdir(workdir)
        os.execv(other, [other, os.path.abspath(__file__), folder, "again"])
    life = socket.socket(socket.AF_UNIX)
    life.connect("owner")
    os.chdir(workdir)
    server = Server(config, program, life)
    try:
        server.prepare()
    except Failed as error:
        server.say({"failed": str(error)})
        return
    server.serve()


class Server:
    """config.json:

    python, words    does the command name an interpreter, and the words behind it and its options
    preload          modules to import; null: those that the script itself imports
    user             `name`, `uid` or either with `:group`, as in an image; its group is the forks'
    users            "must" (else the server fails), "try" or "no": a user for each fork
    probe_uid        a user to try that with
    base             the folder in which forks make theirs
    copy_most        bytes of a working folder that is copied for each fork; null: whatever it has
    own_tmp          /tmp and shared memory belong to this sandbox alone
    owner            the owner's pid, where it can be seen from here, else 0
    """

    def __init__(self, config: dict[str, Any], program: fork_program.Program, life: socket.socket) -> None:
        self.config = config
        self.program = program
        self.workdir = program.workdir
        self.life = life
        self.environment = dict(os.environ)
        self.separate = config["users"] != "no" and os.geteuid() == 0
        self.uid, self.gid, self.groups = fork_places.image_user(config["user"])
        self.copies = True

    def prepare(self) -> None:
        """Everything up to the first fork."""
        gc.disable()
        os.makedirs(self.config["base"], exist_ok=True)
        os.chmod(self.config["base"], 0o1733 if self.separate else 0o700)
        self.copies = fork_places.is_within(self.workdir, self.config["copy_most"])
        failed = self._import()
        if failed:
            raise Failed("preload: " + "; ".join(failed))
        reached = self._unreached() if self.separate else []
        if reached and self.config["users"] == "must":
            raise Failed("other users than the image's own can't read " + ", ".join(reached))
        self.separate = self.separate and not reached
        if not self.separate:
            os.chmod(self.config["base"], 0o700)
        self.program.look()
        gc.collect()
        gc.freeze()
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        ready = {"separate": self.separate, "unreached": reached, "kind": self.program.kind}
        self.say({"ready": {**ready, "threads": len(os.listdir("/proc/self/task")), "rss": fork_places.rss()}})

    def serve(self) -> None:
        """Fork at each message until the owner is gone. Only a fork returns from here, through `Start`."""
        forks = 0
        while True:
            message, fds, _, _ = socket.recv_fds(self.life, 1, 4)
            if not message:
                os._exit(0)
            for fd in fds:
                os.set_inheritable(fd, False)
            if message == b"c":
                self._connect(fds)
                continue
            if os.fork() == 0:
                self._serve_one(message, fds)
            for fd in fds:
                os.close(fd)
            forks += 1
            if forks % SAY_EVERY == 0:
                self.say({"rss": fork_places.rss()})

    def say(self, message: dict[str, Any]) -> None:
        try:
            self.life.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            os._exit(0)

    def become(self, slot: dict[str, Any]) -> None:
        """Turn into the slot's user, for good."""
        uid = slot["uid"]
        if uid is None:
            return
        os.setgroups(self.groups)
        os.setresgid(self.gid, self.gid, self.gid)
        os.setresuid(uid, uid, uid)
        keeper.prctl(PR_SET_NO_NEW_PRIVS, 1)
        keeper.prctl(PR_SET_DUMPABLE, 1)  # or the process could not read much of its own /proc

    def make_folder(self, slot: dict[str, Any]) -> str:
        """As the slot's user: the fork's folders; returns the working folder."""
        os.mkdir(slot["folder"], 0o700)
        root = os.path.join(slot["folder"], "root")
        for name in ("home", "tmp", "data"):
            os.makedirs(os.path.join(root, name))
        app = os.path.join(root, "app")
        if not self.copies:
            os.mkdir(app)
            return self.workdir
        shutil.copytree(self.workdir, app, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        os.chmod(app, 0o755)
        return app

    def _serve_one(self, message: bytes, fds: list[int]) -> None:
        try:
            control = socket.socket(fileno=fds[0])
            if message == b"k":
                ForkKeeper(self, control, fds[1:]).run()
            else:
                self._open(control)
        except Exception:
            sys.excepthook(*sys.exc_info())
        os._exit(0)

    def _import(self) -> list[str]:
        """As the image's user, who may be the only one that can read its own packages."""
        names = self.config["preload"]
        self.program.show_modules(self.workdir)
        if self.separate:
            os.setgroups(self.groups)
            os.setegid(self.gid)
            os.seteuid(self.uid)
        try:
            if names is None:
                return fork_program.preload(self.program.imports(), needed=False)
            return fork_program.preload(names, needed=True)
        finally:
            if self.separate:
                os.seteuid(0)
                os.setegid(0)

    def _unreached(self) -> list[str]:
        """What the forks would need and an unknown user of the image's group can't read."""
        told, tell = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self.become({"uid": self.config["probe_uid"]})
                os.write(tell, json.dumps(self._look_around()).encode())
            except OSError as error:
                os.write(tell, json.dumps([f"anything (becoming one: {error.strerror})"]).encode())
            finally:
                os._exit(0)
        os.close(tell)
        with os.fdopen(told, "rb") as pipe:
            answer = pipe.read()
        os.waitpid(pid, 0)
        return [str(path) for path in json.loads(answer or '["anything"]')]

    def _look_around(self) -> list[str]:
        folders = [self.workdir, *filter(os.path.isabs, sys.path)]
        missing = [path for path in folders if not os.access(path, os.F_OK) and not fork_places.is_absent(path)]
        missing += [path for path in folders if os.path.isdir(path) and not os.access(path, os.R_OK | os.X_OK)]
        if not os.access(sys.executable, os.X_OK):
            missing.append(sys.executable)
        if not os.access(self.config["base"], os.W_OK | os.X_OK):
            missing.append(self.config["base"])
        if self.copies:
            for folder, _, names in os.walk(self.workdir):
                paths = [os.path.join(folder, name) for name in names]
                missing += [path for path in paths if not os.access(path, os.R_OK) and not os.path.islink(path)]
        return sorted(set(missing))[:5]

    def _connect(self, fds: list[int]) -> None:
        """Answers at once: the handshake, if it takes its time, is for the owner to wait for."""
        with socket.socket(fileno=fds[0]) as pair, socket.socket(socket.AF_INET, socket.SOCK_STREAM) as connection:
            for fd in fds[1:]:
                os.close(fd)
            request = json.loads(pair.recv(4096))
            found = listeners.listening()
            users = {one.uid for one in found if one.port == request["port"] and one.local}
            error = 0 if users == {request["uid"]} else errno.EPERM if users else errno.ECONNREFUSED
            others = sorted({one.port for one in found if one.uid == request["uid"]}) if error else []
            if not error:
                connection.setblocking(False)
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                error = connection.connect_ex(("127.0.0.1", request["port"]))
                error = 0 if error == errno.EINPROGRESS else error
            line = json.dumps({"error": error, "others": others}).encode()
            _answer(pair, line, None if error else connection.fileno())

    def _open(self, pair: socket.socket) -> None:
        request = json.loads(pair.recv(1 << 16))
        answer: dict[str, Any] = {"error": 0}
        fd = None
        try:
            self.become(request["slot"])
            fd = fork_places.open_inside(
                os.path.join(request["slot"]["folder"], "root"), request["path"], request["mode"]
            )
        except OSError as error:
            answer = {"error": error.errno or errno.EIO}
        _answer(pair, json.dumps(answer).encode(), fd)


class ForkKeeper(keeper.Keeper):
    """A keeper below which a fork runs, or a command beside it. The request's further keys:

    slot      see above
    serve     run the env's program, and make the slot's folder for it; else `argv` is executed in `cwd`
    env       on top of the server's own environment
    """

    log_mode = 0o644

    def __init__(self, server: Server, control: socket.socket, stdio: list[int]) -> None:
        super().__init__(control, stdio, server.config["owner"])
        server.life.close()
        self.server = server
        self.slot: dict[str, Any] = {"uid": None}
        self.serves = False
        self.strikes = 0

    def _turn_into(self, request: dict[str, Any], tell: int) -> None:
        parent = os.getppid()
        keeper.stand_apart(self.stdio, VICTIM)
        keeper.limit(request["limits"])
        self.server.become(request["slot"])
        keeper.prctl(keeper.PR_SET_PDEATHSIG, int(signal.SIGKILL))
        if os.getppid() != parent:
            os._exit(127)
        environment = {**self.server.environment, **request["env"]}
        if not request["serve"]:
            os.chdir(fork_places.inside(os.path.join(request["slot"]["folder"], "root"), request["cwd"]))
            os.execvpe(request["argv"][0], request["argv"], environment)
        folder = self.server.make_folder(request["slot"])
        os.chdir(folder)
        program = self.server.program
        if program.kind == "command":
            os.execvpe(program.words[0], program.words, environment)
        os.environ.clear()
        os.environ.update(environment)
        program.enter(folder)
        self.control.close()
        ours = [self.wake, self.waker, self.owner_fd, self.log.source if self.log else None, tell]
        for fd in {*self.stdio, *ours}:
            if fd is not None and fd > 2:
                os.close(fd)
        raise Start(program)

    def _start(self, request: dict[str, Any]) -> int:
        self.slot, self.serves = request["slot"], request["serve"]
        return super()._start(request)

    def _strike(self) -> None:
        self.strikes += 1
        if self.serves and self.strikes > STRIKES and self.slot["uid"] is not None:
            # Something forks faster than it is found. This reaches all of the user's processes at once.
            self._as_user(lambda: os.kill(-1, signal.SIGKILL))
        super()._strike()

    def _clear(self, paths: list[str]) -> None:
        if self.slot["uid"] is None:
            super()._clear(paths)
            return
        self._as_user(lambda: self._clear_as_user(paths))

    def _clear_as_user(self, paths: list[str]) -> None:
        uid = self.slot["uid"]
        own_tmp = self.server.config["own_tmp"]
        for path in [*paths, *(fork_places.left_behind(uid) if own_tmp else [])]:
            keeper.remove(path)
        if own_tmp:
            fork_places.remove_objects(uid)

    def _as_user(self, action: Any) -> None:
        pid = os.fork()
        if pid == 0:
            try:
                self.server.become(self.slot)
                action()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)


def _answer(pair: socket.socket, line: bytes, fd: int | None) -> None:
    try:
        if fd is None:
            pair.sendall(line)
        else:
            socket.send_fds(pair, [line], [fd])
    except OSError:
        return  # the owner asks no more


if __name__ == "__main__":
    program = None
    try:
        main()
    except Start as start:
        program = start.program
    if program is not None:
        program.run()
