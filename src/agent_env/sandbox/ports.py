"""Ports for servers that choose none themselves, and the proof that a listener is theirs.

Ports come in blocks below the range from which the kernel hands out its own. Who holds a block holds an abstract Unix
socket of its name: like ports, those belong to a network namespace, and they vanish with their process, so two servers
of one machine never share a port, whatever state folders they use. A program that knows nothing of this may still sit
on one of the ports. Therefore nobody speaks to a port before `Listener` has shown that the process behind it is ours.
"""

from __future__ import annotations

import os
import random
import re
import socket
import time
from collections import deque
from collections.abc import Iterable

from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.keeper import descendants
from agent_env.sandbox.listeners import listening

FIRST_PORT = 20_000
BLOCK = 64
BLOCKS = 187
"""ends at 31,968; the kernel's own range starts at 32,768 by default"""

_LOOK_EVERY = 0.25
_SOCKET = re.compile(r"socket:\[(\d+)\]")


class Ports:
    """The ports of one provider. `take` and `give_back` never block."""

    def __init__(self) -> None:
        self._locks: list[socket.socket] = []
        self._free: deque[int] = deque()

    def take(self) -> int:
        """A port that nobody listens on right now, the one longest out of use first.

        Raises:
            EpisodeFailure: PROVIDER_UNAVAILABLE, every port is taken.
        """
        while True:
            for _ in range(len(self._free)):
                port = self._free.popleft()
                if _can_bind(port):
                    return port
                self._free.append(port)
            self._lock_block()

    def give_back(self, port: int) -> None:
        self._free.append(port)

    def close(self) -> None:
        """Let others have the blocks."""
        for lock in self._locks:
            lock.close()
        self._locks.clear()
        self._free.clear()

    def _lock_block(self) -> None:
        blocks = list(range(BLOCKS))
        random.SystemRandom().shuffle(blocks)
        for block in blocks:
            lock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                lock.bind(f"\0agent-env-ports-{block}")
            except OSError:
                lock.close()
                continue
            self._locks.append(lock)
            first = FIRST_PORT + block * BLOCK
            self._free.extend(range(first, first + BLOCK))
            return
        raise EpisodeFailure(
            FailureKind.PROVIDER_UNAVAILABLE,
            f"every port from {FIRST_PORT} to {FIRST_PORT + BLOCKS * BLOCK - 1} is taken: end some servers",
        )


class Listener:
    """Who listens on a port that was given to the processes below `ancestor`."""

    def __init__(self, port: int, ancestor: int) -> None:
        self.port = port
        self._ancestor = ancestor
        self._proof: tuple[str, str] | None = None
        self._looked = time.monotonic()
        self._others: list[int] = []

    def is_proven(self) -> bool:
        """Whether the process that was shown to listen still holds that very socket: cheap, for each connection."""
        return self._proof is not None and _link(self._proof[0]) == self._proof[1]

    def is_heard(self) -> bool:
        """Whether anybody listens there at all: cheap, for the many times that nobody does yet."""
        return self.is_proven() or bool(_listening_sockets(self.port))

    def is_ours(self) -> bool:
        """True when one of our processes listens, False when nobody does.

        Raises:
            EpisodeFailure: DEPLOY_FAILED, a process that is not ours listens there.
        """
        if self.is_proven():
            return True
        self._proof = None
        found = _listening_sockets(self.port)
        for path, target in _sockets(descendants(self._ancestor)) if found else ():
            if target in found:
                self._proof = (path, target)
                found.discard(target)
        # What is not ours may have ended, or have been passed on, since we looked.
        if found & _listening_sockets(self.port):
            raise EpisodeFailure(
                FailureKind.DEPLOY_FAILED,
                f"port {self.port} was given to this env, but a process that is not the env's listens on it",
            )
        return self._proof is not None

    def why_refused(self) -> str:
        """For the message. A server that listens on another port is looked for a few times a second at most."""
        now = time.monotonic()
        if now - self._looked >= _LOOK_EVERY:
            self._looked = now
            self._others = self.other_ports()
        if self._others:
            return f"the env listens on port {self._others[0]} and not on {self.port}: its server must use MCP_PORT"
        return f"nothing of the env listens on port {self.port}"

    def other_ports(self) -> list[int]:
        """Ports on which our processes listen."""
        ours = {target for _, target in _sockets(descendants(self._ancestor))}
        return sorted({found.port for found in listening() if f"socket:[{found.inode}]" in ours})


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True


def _listening_sockets(port: int) -> set[str]:
    """Link texts of the sockets that would accept a connection to 127.0.0.1 at this port."""
    return {f"socket:[{found.inode}]" for found in listening() if found.port == port and found.local}


def _sockets(pids: Iterable[int]) -> Iterable[tuple[str, str]]:
    """(path, link text) of every socket that these processes hold."""
    for pid in pids:
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            path = f"/proc/{pid}/fd/{name}"
            if _SOCKET.fullmatch(target := _link(path)):
                yield path, target


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
