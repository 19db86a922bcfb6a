"""What fork servers stand on: how a sandbox of a provider becomes the host of one, and how its forks are reached."""

from __future__ import annotations

import asyncio
import errno
import os
import pwd
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agent_env.errors import ConfigError, EpisodeFailure, FailureKind
from agent_env.sandbox.base import FOLDER_INSIDE, Prepared, Sandbox, SandboxSpec
from agent_env.sandbox.fork_command import Launch, take_apart
from agent_env.sandbox.limits import DEFAULT_CPUS, DEFAULT_MEMORY, DEFAULT_PIDS
from agent_env.sandbox.ports import Listener
from agent_env.sandbox.process import ProcessProvider, command_of, heard

if TYPE_CHECKING:
    from agent_env.sandbox.docker import DockerProvider
    from agent_env.sandbox.fork_host import ForkHost

FIRST_PORT = 20_000
"""of the forks of a container; a fork's user has the same number"""
COPIED_AT_MOST = 64 << 20
"""bytes of an image's working folder that each fork gets a copy of; forks share a larger one, read-only"""
_CAPABILITIES = ("SETUID", "SETGID", "KILL")
"""to give each fork a user of its own, and to end it"""
_OUR_KERNEL = (None, "runc", "crun", "io.containerd.runc.v2")


@dataclass(frozen=True, slots=True)
class Slot:
    """One fork's place in its sandbox."""

    id: str
    folder: str
    """as its processes see it"""
    port: int
    uid: int | None = None

    @property
    def root(self) -> str:
        return f"{self.folder}/root"

    def told(self) -> dict[str, Any]:
        """As the fork server takes it."""
        return {"folder": self.folder, "uid": self.uid}


class Ground(Protocol):
    """A provider that can hold fork servers. `folder` is always a server's own, on this machine."""

    async def launch(self, prepared: Prepared) -> Launch: ...

    def config(self, folder: Path) -> dict[str, Any]:
        """The ground's part of the server's config.json."""
        ...

    def control(self, folder: Path) -> str:
        """`folder`/control as the server sees it."""
        ...

    def limits(self, prepared: Prepared, *, separate: bool) -> dict[str, int | None]:
        """rlimits of one fork."""
        ...

    async def start(self, prepared: Prepared, folder: Path, command: tuple[str, ...], episodes: int) -> Sandbox:
        """Start a sandbox for so many forks at once, with the server as its command."""
        ...

    def slot(self, host: ForkHost, slot_id: str) -> Slot: ...

    def give_back(self, slot: Slot) -> None: ...

    def reach(self, host: ForkHost, slot: Slot, keeper_pid: int) -> Reach: ...


class Reach(Protocol):
    """How one fork's port is connected to."""

    direct: bool
    """its address is good for every process of this machine"""

    async def connect(self) -> socket.socket: ...


def variables(prepared: Prepared, slot: Slot) -> dict[str, str]:
    """What a fork finds in its environment in place of the server's own."""
    name = prepared.env.environment_name
    return {
        "HOME": f"{slot.root}/home",
        "TMPDIR": f"{slot.root}/tmp",
        "MCP_HOST": "127.0.0.1",
        "MCP_PORT": str(slot.port),
        "ENVIRONMENT_NAME": name,
        "SERVICE_NAME": name,
        "DATABASE_URL": f"sqlite:///{slot.root}/data/{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.sqlite",
    }


class ProcessGround:
    """Forks of a plain process: apart by user where we are root and everything can be read by others."""

    def __init__(self, provider: ProcessProvider) -> None:
        self._provider = provider

    async def launch(self, prepared: Prepared) -> Launch:
        argv = command_of(prepared.env)
        launch = take_apart([prepared.handle if argv[0] in ("python", "python3") else argv[0], *argv[1:]])
        return launch if launch.python else replace(launch, interpreter=prepared.handle)

    def config(self, folder: Path) -> dict[str, Any]:
        return {
            "users": "try" if os.geteuid() == 0 else "no",
            "probe_uid": FIRST_PORT - 1,
            "base": str(folder / "forks"),
            "copy_most": None,
            "own_tmp": False,
            "owner": os.getpid(),
        }

    def control(self, folder: Path) -> str:
        return str(folder / "control")

    def limits(self, prepared: Prepared, *, separate: bool) -> dict[str, int | None]:
        settings = prepared.env.settings
        return {"data": settings.memory, "nproc": settings.pids if separate else None}

    async def start(self, prepared: Prepared, folder: Path, command: tuple[str, ...], episodes: int) -> Sandbox:
        unlimited = replace(prepared.env, settings=replace(prepared.env.settings, memory=None))
        spec = SandboxSpec(
            prepared=replace(prepared, env=unlimited), episode="fork server", command=command, folder=str(folder)
        )
        return await self._provider.start(spec)

    def slot(self, host: ForkHost, slot_id: str) -> Slot:
        port = self._provider.ports.take()
        uid = port if host.separate and not _is_somebody(port) else None
        return Slot(slot_id, str(host.folder / "forks" / slot_id), port, uid)

    def give_back(self, slot: Slot) -> None:
        self._provider.ports.give_back(slot.port)

    def reach(self, host: ForkHost, slot: Slot, keeper_pid: int) -> Reach:
        return _Direct(Listener(slot.port, keeper_pid))


class _Direct:
    direct = True

    def __init__(self, listener: Listener) -> None:
        self._listener = listener

    async def connect(self) -> socket.socket:
        await heard(self._listener)
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self._listener.port))
        except BaseException:
            connection.close()
            raise
        return connection


class DockerGround:
    """Forks in one container, each with a user of its own."""

    def __init__(self, provider: DockerProvider) -> None:
        self._provider = provider

    async def launch(self, prepared: Prepared) -> Launch:
        if not self._provider.daemon.local or sys.platform != "linux" or self._provider.runtime not in _OUR_KERNEL:
            raise ConfigError(
                'isolation "fork" needs a Docker daemon on this machine with containers on its kernel (runc, crun)'
            )
        settings = prepared.env.settings
        if settings.cap_add:
            raise ConfigError(
                f'envs/{prepared.env.name}/agent-env.toml: with isolation "fork" an env has no capabilities: '
                'take out cap_add, or use isolation "container"'
            )
        try:
            image: Mapping[str, Any] = await self._provider.daemon.call(
                lambda client: client.inspect_image(prepared.handle)  # type: ignore[no-untyped-call]
            )
        except Exception as error:
            raise self._provider.daemon.failure(error, f"env {prepared.env.name!r}: its image") from error
        config = image.get("Config") or {}
        argv = [*(config.get("Entrypoint") or []), *(config.get("Cmd") or [])]
        return take_apart(argv, user=settings.user or config.get("User") or None)

    def config(self, folder: Path) -> dict[str, Any]:
        return {
            "users": "must",
            "probe_uid": FIRST_PORT - 1,
            "base": "/tmp/agent-env",
            "copy_most": COPIED_AT_MOST,
            "own_tmp": True,
            "owner": 0,
        }

    def control(self, folder: Path) -> str:
        return FOLDER_INSIDE

    def limits(self, prepared: Prepared, *, separate: bool) -> dict[str, int | None]:
        settings = prepared.env.settings
        return {"data": settings.memory or DEFAULT_MEMORY, "nproc": settings.pids or DEFAULT_PIDS}

    async def start(self, prepared: Prepared, folder: Path, command: tuple[str, ...], episodes: int) -> Sandbox:
        settings = prepared.env.settings
        # A root without capabilities passes no folder of another user's: ours, unless we are root ourselves.
        through = () if os.geteuid() == 0 else ("DAC_OVERRIDE",)
        shared = replace(
            settings,
            user="0:0",
            cap_add=(*_CAPABILITIES, *through),
            memory=episodes * (settings.memory or DEFAULT_MEMORY),
            cpus=min(episodes * (settings.cpus or DEFAULT_CPUS), float(os.cpu_count() or 1)),
            pids=episodes * ((settings.pids or DEFAULT_PIDS) + 4),
        )
        spec = SandboxSpec(
            prepared=replace(prepared, env=replace(prepared.env, settings=shared)),
            episode="fork server",
            command=command,
            folder=str(folder / "control"),
        )
        return await self._provider.start(spec)

    def slot(self, host: ForkHost, slot_id: str) -> Slot:
        number = FIRST_PORT + host.forks
        return Slot(slot_id, f"/tmp/agent-env/{slot_id}", number, number)

    def give_back(self, slot: Slot) -> None:
        """Numbers are never used again in one container."""

    def reach(self, host: ForkHost, slot: Slot, keeper_pid: int) -> Reach:
        return _ByServer(host, slot)


class _ByServer:
    """The fork server connects, where only it and its siblings can, and hands the connection out."""

    direct = False

    def __init__(self, host: ForkHost, slot: Slot) -> None:
        self._host = host
        self._slot = slot

    async def connect(self) -> socket.socket:
        port = self._slot.port
        answer, fd = await self._host.ask(b"c", {"port": port, "uid": self._slot.uid})
        if fd is None:
            if answer["error"] == errno.EPERM:
                raise EpisodeFailure(
                    FailureKind.DEPLOY_FAILED,
                    f"port {port} was given to this env, but another env of its container listens on it",
                )
            others = f", but on port {answer['others'][0]}: its server must use MCP_PORT" if answer["others"] else ""
            raise ConnectionRefusedError(f"nothing of the env listens on port {port}{others}")
        connection = socket.socket(fileno=fd)
        try:
            connection.setblocking(False)
            await _established(connection)
        except BaseException:
            connection.close()
            raise
        return connection


async def _established(connection: socket.socket) -> None:
    """Wait for the end of a handshake that was begun elsewhere. Raises OSError."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[None] = loop.create_future()
    loop.add_writer(connection.fileno(), _set, done)
    try:
        await done
    finally:
        loop.remove_writer(connection.fileno())
    if error := connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
        raise OSError(error, os.strerror(error))


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _is_somebody(uid: int) -> bool:
    try:
        pwd.getpwuid(uid)
    except KeyError:
        return False
    return True
