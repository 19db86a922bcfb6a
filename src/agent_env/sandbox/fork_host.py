"""Our side of a fork server (fork_server.py): the sandbox that holds it, and the connection over which it is told.

<state>/forks/<id>/owner       who it belongs to
<id>/control/                  mode 0700: the server's scripts, its config.json, the socket it connects to at its start
<id>/control/logs/<slot>/      what each fork printed, as in layout.py
<id>/forks/                    the forks' own folders, where the sandbox has no file system of its own
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.base import Prepared, Sandbox
from agent_env.sandbox.fork_command import Launch
from agent_env.sandbox.fork_ground import Ground, Slot
from agent_env.sandbox.layout import Layout, storage_failure
from agent_env.sandbox.ownership import owner, owner_state
from agent_env.sandbox.supervision import Keepers, Kept, KeptCommand
from agent_env.state import state_dir

log = logging.getLogger(__name__)

START_TIMEOUT = 120.0
"""seconds for the imports"""
ASK_TIMEOUT = 10.0
"""seconds for one of the answers that take the server milliseconds"""
LOOK_EVERY = 0.5
"""seconds between looks whether a server that says nothing still runs"""
GROWTH = 64 << 20
"""bytes by which a server may have grown"""
LONGEST_LIFE = 12 * 3600.0

_SCRIPTS = ("keeper.py", "listeners.py", "fork_places.py", "fork_program.py", "fork_server.py")


@dataclass(frozen=True, slots=True)
class ForkCommand(KeptCommand):
    """What a fork is to be; see `fork_server.ForkKeeper`."""

    slot: Slot | None = None
    serve: bool = False
    process_limit: int | None = None

    def message(self) -> dict[str, Any]:
        assert self.slot is not None
        message = super(ForkCommand, self).message()  # a class with slots is made twice
        message["limits"]["nproc"] = self.process_limit
        return {**message, "slot": self.slot.told(), "serve": self.serve}


class ForkHost:
    """A running fork server. Made by `start`; `stop` ends it with all its forks."""

    def __init__(self, ground: Ground, prepared: Prepared, launch: Launch, host_id: str) -> None:
        self.id = host_id
        self.ground = ground
        self.prepared = prepared
        self.launch = launch
        self.folder = folders() / host_id
        self.used = 0
        """forks that live, or are being started"""
        self.forks = 0
        """forks ever"""
        self.retired = ""
        """why it takes no more forks"""
        self.separate = False
        self.keepers = _Forker()
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """done when the server has ended, however"""
        self.sandbox: Sandbox | None = None
        """what holds the server"""
        self._rss = 0
        self._began = time.monotonic()
        self._following: asyncio.Task[None] | None = None
        self._stopping: asyncio.Task[None] | None = None

    @classmethod
    async def start(cls, ground: Ground, prepared: Prepared, launch: Launch, episodes: int) -> ForkHost:
        """Start a server and wait until it can fork.

        Raises:
            EpisodeFailure: DEPLOY_FAILED with the reason, or what the sandbox's start raises.
        """
        host = cls(ground, prepared, launch, uuid.uuid4().hex)
        try:
            listener = host._make_folder()
            with listener:
                control = ground.control(host.folder)
                command = (launch.interpreter, *launch.options, f"{control}/fork_server.py", control)
                host.sandbox = await ground.start(prepared, host.folder, command, episodes)
                await host._greet(listener)
        except BaseException as error:
            await host.stop()
            if isinstance(error, OSError):
                raise storage_failure(error, "the fork server's folder", FailureKind.DEPLOY_FAILED) from error
            raise
        return host

    @property
    def old(self) -> bool:
        """Time for a successor."""
        return time.monotonic() - self._began > LONGEST_LIFE

    def retire(self, why: str) -> None:
        """Take no more forks; those that live go on."""
        if not self.retired:
            self.retired = why
            log.info("fork server %s of env %s: no more forks: %s", self.id, self.prepared.env.name, why)

    def logs(self, slot: Slot) -> Layout:
        """Where the output of a fork is."""
        return Layout(self.folder / "control" / "logs", slot.id)

    async def ask(self, what: bytes, request: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        """The server's answer and, perhaps, a descriptor, which is the caller's to close. Raises OSError."""
        ours, theirs = socket.socketpair()
        with ours:
            with theirs:
                ours.sendall(json.dumps(request).encode())
                self.keepers.send(what, [theirs.fileno()])
            ours.setblocking(False)
            try:
                async with asyncio.timeout(ASK_TIMEOUT):
                    answer, fds = await _received(ours)
            except TimeoutError:
                self.retire("it does not answer")
                raise OSError("the fork server does not answer") from None
        if not answer:
            raise ConnectionResetError("the fork server has ended")
        return json.loads(answer), (fds[0] if fds else None)

    async def end_of(self) -> tuple[bool, str]:
        """Whether memory ran out, and what else is known of the server's end."""
        if self.sandbox is None:
            return False, ""
        state = await self.sandbox.state()
        return state.oom_killed, "" if state.running else state.detail

    async def stop(self) -> None:
        """End the server and whatever it forked. Idempotent; a second call waits for the first."""
        if self._stopping is None:
            self.retire("it is stopped")
            self._stopping = asyncio.create_task(self._stop(), name=f"stop fork server {self.id}")
        await asyncio.shield(self._stopping)

    async def _stop(self) -> None:
        try:
            if self.sandbox is not None:
                await self.sandbox.stop(grace=0)
        finally:
            self.keepers.close()
            if self._following is not None:
                await asyncio.wait({self._following})
            await asyncio.to_thread(shutil.rmtree, self.folder, ignore_errors=True)

    def _make_folder(self) -> socket.socket:
        control = self.folder / "control"
        (control / "logs").mkdir(parents=True)
        self.folder.chmod(0o711)
        control.chmod(0o700)
        (self.folder / "owner").write_text(owner())
        for name in _SCRIPTS:
            shutil.copy(Path(__file__).with_name(name), control / name)
        settings = self.prepared.env.settings
        config = {
            "python": self.launch.python,
            "words": list(self.launch.words),
            "preload": list(settings.preload) or None,
            "user": self.launch.user,
            **self.ground.config(self.folder),
        }
        (control / "config.json").write_text(json.dumps(config))
        listener = socket.socket(socket.AF_UNIX)
        listener.setblocking(False)
        here = os.open(control, os.O_PATH | os.O_DIRECTORY)
        try:
            listener.bind(f"/proc/self/fd/{here}/owner")  # the path itself may be longer than a socket's may be
        except BaseException:
            listener.close()
            raise
        finally:
            os.close(here)
        (control / "owner").chmod(0o600)
        listener.listen(1)
        return listener

    async def _greet(self, listener: socket.socket) -> None:
        try:
            async with asyncio.timeout(START_TIMEOUT):
                life = await self._accepted(listener)
                self.keepers.life = life.dup()
                self.keepers.life.setblocking(False)
                reader, writer = await asyncio.open_connection(sock=life)
                self._following = asyncio.create_task(self._follow(reader, writer), name=f"fork server {self.id}")
                line = await self._hello
        except TimeoutError:
            raise self._failure(f"it was not ready after {START_TIMEOUT:g} s{await self._last_lines()}") from None
        if line is None:
            raise self._failure(f"it ended{await self._last_lines()}")
        if "failed" in line:
            raise self._failure(str(line["failed"]))
        ready = line["ready"]
        self.separate, self._rss = ready["separate"], ready["rss"]
        self._remark(ready)

    def _remark(self, ready: dict[str, Any]) -> None:
        name = self.prepared.env.name
        if ready["kind"] == "command":
            log.warning(
                "env %s: %s is not run by this Python, so forks start it anew and save nothing",
                name,
                " ".join(self.launch.words),
            )
        if ready["unreached"]:
            log.warning(
                "env %s: forks are not apart by user, because other users can't read %s",
                name,
                ", ".join(ready["unreached"]),
            )
        if ready["threads"] > 1:
            log.warning("env %s: what it preloads starts threads, which forks don't have: see docs/isolation.md", name)

    async def _accepted(self, listener: socket.socket) -> socket.socket:
        """The server's connection. Raises EpisodeFailure when its sandbox ended before."""
        assert self.sandbox is not None
        self._hello: asyncio.Future[dict[str, Any] | None] = asyncio.get_running_loop().create_future()
        accepting = asyncio.ensure_future(asyncio.get_running_loop().sock_accept(listener))
        try:
            while not accepting.done():
                await asyncio.wait({accepting}, timeout=LOOK_EVERY)
                if not accepting.done() and not (await self.sandbox.state()).running:
                    raise self._failure(f"it ended{await self._last_lines()}")
            return accepting.result()[0]
        finally:
            accepting.cancel()

    async def _follow(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """What the server says of itself, to its end."""
        try:
            while (line := await reader.readline()).endswith(b"\n"):
                message = json.loads(line)
                if "rss" in message:
                    if message["rss"] > self._rss + GROWTH:
                        self.retire(f"it has grown to {message['rss'] >> 20} MiB")
                elif not self._hello.done():
                    self._hello.set_result(message)
        except OSError as error:
            log.debug("fork server %s: %s", self.id, error)
        finally:
            self.retire("it has ended")
            writer.transport.abort()
            if not self._hello.done():
                self._hello.set_result(None)
            self.gone.set_result(None)

    async def _last_lines(self) -> str:
        assert self.sandbox is not None
        lines = (await self.sandbox.logs(2048)).strip().splitlines()[-8:]
        return "; its last output: " + " | ".join(lines) if lines else ""

    def _failure(self, why: str) -> EpisodeFailure:
        return EpisodeFailure(FailureKind.DEPLOY_FAILED, f"env {self.prepared.env.name!r}: its fork server: {why}")


class _DistantKept(Kept):
    """Its keeper's pid may be counted in another namespace than ours."""

    def give_up(self) -> None:
        self.let_go()


class _Forker(Keepers):
    """Keepers that are forks of a fork server."""

    kept_as = _DistantKept

    def __init__(self) -> None:
        super().__init__()
        self.life: socket.socket | None = None

    def send(self, what: bytes, fds: Sequence[int]) -> None:
        """Raises OSError."""
        if self.life is None:
            raise ConnectionResetError("the fork server has ended")
        socket.send_fds(self.life, [what], list(fds))

    def close(self) -> None:
        if self.life is not None:
            self.life.close()
            self.life = None

    async def _send(self, fds: list[int]) -> None:
        self.send(b"k", fds)


def folders() -> Path:
    folder = state_dir() / "forks"
    folder.mkdir(exist_ok=True)
    return folder


def remove_folders_of_the_dead() -> None:
    """Blocks."""
    for folder in folders_of_the_dead():
        shutil.rmtree(folder, ignore_errors=True)


def folders_of_the_dead() -> list[Path]:
    """Blocks."""
    found = []
    for folder in folders().iterdir():
        try:
            state = owner_state((folder / "owner").read_text())
        except OSError:
            continue
        if state == "dead":
            found.append(folder)
    return found


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _received(sock: socket.socket) -> tuple[bytes, list[int]]:
    """One message with its descriptors, from a non-blocking socket."""
    loop = asyncio.get_running_loop()
    readable: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock.fileno(), _set, readable)
    try:
        await readable
    finally:
        loop.remove_reader(sock.fileno())
    data, fds, _, _ = socket.recv_fds(sock, 4096, 1)
    return data, fds
