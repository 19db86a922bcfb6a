"""Sandboxes that are plain processes of this machine: the embedded default where there is no Docker daemon.

Each has a folder, a port, a session and limits of its own and ends with us, but it isolates nothing: an env can read
what we can read and reach what we can reach. For envs that you trust. Linux only, because it reads /proc.
"""

from __future__ import annotations

import asyncio
import functools
import hashlib
import json
import logging
import os
import re
import signal
import socket
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from agent_env.bundle.model import Env
from agent_env.errors import ConfigError, EpisodeFailure, FailureKind
from agent_env.sandbox import leftovers
from agent_env.sandbox.base import BARE, BARE_COMMAND, ExecResult, Prepared, SandboxSpec, SandboxState
from agent_env.sandbox.layout import LOG_NAME, Layout
from agent_env.sandbox.ownership import owner
from agent_env.sandbox.ports import Listener, Ports
from agent_env.sandbox.running import run_kept
from agent_env.sandbox.supervision import Exit, Keepers, Kept, KeptCommand
from agent_env.sandbox.variables import redact, resolve_variables
from agent_env.sandbox.venvs import ensure_venv, requirements_of
from agent_env.state import state_dir

log = logging.getLogger(__name__)

LOG_LIMIT = 2 << 20
"""bytes of an env's output that are kept"""
OPEN_FILES = 4096
SETTLE = 2.0
"""seconds that a dying process may take until its end is known"""

_INHERITED = (
    *("PATH", "LANG", "LC_ALL", "LC_CTYPE", "TZ"),
    *("SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"),
)
_FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
"""signals that a process does not raise by its own faults"""
_CMD = re.compile(r"^\s*CMD\s+(\[.*\])\s*$", re.IGNORECASE | re.MULTILINE)


class ProcessSandbox:
    """One env server as a process. Made by `ProcessProvider.start`."""

    def __init__(
        self,
        provider: ProcessProvider,
        layout: Layout,
        port: int,
        kept: Kept,
        command: KeptCommand,
        secrets: Sequence[str],
    ) -> None:
        self.id = layout.id
        self.port = port
        self.pid = kept.pid
        self._provider = provider
        self._layout = layout
        self._kept = kept
        self._command = command
        self._secrets = secrets
        self._listener = Listener(port, kept.keeper_pid)
        self._execs: set[asyncio.Task[ExecResult]] = set()
        self._stopping: asyncio.Task[None] | None = None
        self._asked = False

    @property
    def url(self) -> str:
        return f"http://{self.authority}"

    @property
    def authority(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def connect(self) -> socket.socket:
        """Only ever to a socket that a process of this sandbox listens on.

        Raises:
            ConnectionRefusedError: nobody listens (yet, or any more).
            EpisodeFailure: DEPLOY_FAILED, a process that is not of this sandbox listens on the port.
        """
        if self._kept.exited.done() or self._stopping is not None:
            raise ConnectionRefusedError("the env's process has ended")
        await heard(self._listener)
        connection = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await asyncio.get_running_loop().sock_connect(connection, ("127.0.0.1", self.port))
        except BaseException:
            connection.close()
            raise
        return connection

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        input: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        output_limit: int = 1 << 20,
    ) -> ExecResult:
        """Run a command beside the env. What it leaves running when it ends is killed."""
        if self._kept.exited.done() or self._stopping is not None:
            raise EpisodeFailure(FailureKind.SANDBOX_LOST, f"sandbox {self.id} has ended: {list(argv)} can't run in it")
        command = KeptCommand(
            argv=argv,
            env={**self._command.env, **(env or {})},
            cwd=str(self._layout.inside(cwd or ".")),
            data_limit=self._command.data_limit,
            file_limit=self._command.file_limit,
            timeout=timeout,
        )
        task = asyncio.create_task(run_kept(self._provider.keepers, command, input=input, output_limit=output_limit))
        self._execs.add(task)
        task.add_done_callback(self._execs.discard)
        try:
            return await task
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if self._stopping is None or (caller is not None and caller.cancelling()):
                raise
            raise EpisodeFailure(FailureKind.SANDBOX_LOST, f"{argv[0]}: the sandbox was stopped meanwhile") from None

    def path(self, path: str) -> str:
        """The path under which processes of this sandbox see what `put(path)` wrote."""
        return str(self._layout.inside(path))

    async def put(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        await asyncio.to_thread(self._layout.write, path, data, mode)

    async def get(self, path: str, *, limit: int = 64 << 20) -> bytes:
        return await asyncio.to_thread(self._layout.read, path, limit)

    async def logs(self, limit: int = 65_536) -> str:
        return redact(await asyncio.to_thread(self._layout.log_tail, limit), self._secrets)

    async def state(self) -> SandboxState:
        """Never says "running" of a process that is already on its way out."""
        exited = self._kept.exited
        if not exited.done() and _is_ending(self.pid):
            await asyncio.wait({exited}, timeout=SETTLE)
        if not exited.done():
            return SandboxState(running=True, stopped_by_us=self._stopping is not None)
        return state_of(exited.result(), asked=self._asked)

    async def stop(self, grace: float = 2.0) -> None:
        if self._stopping is None:
            self._asked = not self._kept.exited.done()
            self._stopping = asyncio.create_task(self._stop(grace), name=f"stop sandbox {self.id}")
        await asyncio.shield(self._stopping)

    async def _stop(self, grace: float) -> None:
        for task in self._execs:
            task.cancel()
        if self._execs:
            await asyncio.wait(self._execs)
        await self._kept.end(grace)
        if self._kept.exited.result().keeper_lost:
            await asyncio.to_thread(leftovers.remove_sandbox, self._layout)
        self._provider.forget(self)


@functools.cache
def _warn_once() -> None:
    """A server has two providers: one that builds, and one that its loop owns."""
    log.warning("the process sandbox isolates nothing: run only envs that you trust, or use --sandbox docker")


class ProcessProvider:
    """Starts envs as processes. One per event loop."""

    name = "process"

    def __init__(self) -> None:
        self.keepers = Keepers()
        self.ports = Ports()
        self._sandboxes: set[ProcessSandbox] = set()

    async def check(self) -> None:
        if sys.platform != "linux":
            raise EpisodeFailure(
                FailureKind.PROVIDER_UNAVAILABLE, "the process sandbox needs Linux's /proc: use --sandbox docker"
            )
        _warn_once()

    async def prepare(self, env: Env) -> Prepared:
        """Raises `ConfigError` when the env does not say how to run it as a process."""
        command_of(env)
        file = requirements_file(env)
        python = str(await ensure_venv(requirements_of(file))) if file else base_python()
        alike = [env.digest, python, env.environment_name, repr(env.settings)]
        return Prepared(env=env, key=hashlib.sha256("\0".join(alike).encode()).hexdigest(), handle=python)

    async def start(self, spec: SandboxSpec) -> ProcessSandbox:
        await self.check()
        starting = asyncio.create_task(self._start(spec), name=f"start sandbox for episode {spec.episode}")
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            # It takes milliseconds: let it come to its end, so that there is something whole to take down.
            await asyncio.wait({starting})
            if not starting.cancelled() and starting.exception() is None:
                await starting.result().stop(grace=0)
            raise

    async def reap(self) -> int:
        return await asyncio.to_thread(leftovers.reap, sandboxes_dir())

    async def aclose(self) -> None:
        await asyncio.gather(*(sandbox.stop() for sandbox in self._sandboxes))
        await self.keepers.aclose()
        self.ports.close()

    def forget(self, sandbox: ProcessSandbox) -> None:
        """Called by a sandbox at the end of its `stop`."""
        if sandbox in self._sandboxes:
            self._sandboxes.remove(sandbox)
            self.ports.give_back(sandbox.port)

    async def _start(self, spec: SandboxSpec) -> ProcessSandbox:
        env = spec.prepared.env
        own, secrets = resolve_variables(env.settings.env, env_name=env.name)
        layout = Layout(sandboxes_dir(), uuid.uuid4().hex)
        port = self.ports.take()
        try:
            deadline = time.time() + spec.max_life
            source = None if env.type == BARE else env.sources
            await asyncio.to_thread(layout.make, source, owner=owner(), deadline=deadline, episode=spec.episode)
            python = spec.prepared.handle
            command = KeptCommand(
                argv=[
                    python if word in ("python", "python3") and n == 0 else word
                    for n, word in enumerate(spec.command or command_of(env))
                ],
                env={**_environment(env, layout, port, python), **own, **spec.env_vars},
                cwd=str(layout.app),
                data_limit=env.settings.memory,
                file_limit=OPEN_FILES,
                timeout=spec.max_life,
                log=str(layout.folder / LOG_NAME),
                log_limit=LOG_LIMIT,
                remove=(str(layout.folder), *filter(None, [spec.folder]), str(layout.owner_file)),
            )
            kept = await self.keepers.keep(command)
        except BaseException as error:
            self.ports.give_back(port)
            await asyncio.to_thread(leftovers.remove_sandbox, layout)
            if isinstance(error, OSError):
                raise EpisodeFailure(
                    FailureKind.DEPLOY_FAILED, f"env {env.name!r} can't be started: {error}"
                ) from error
            raise
        sandbox = ProcessSandbox(self, layout, port, kept, command, secrets)
        self._sandboxes.add(sandbox)
        log.info(
            "sandbox %s: env %s for episode %s, pid %d, port %d", layout.id, env.name, spec.episode, kept.pid, port
        )
        return sandbox


async def heard(listener: Listener) -> None:
    """Raises ConnectionRefusedError while nobody listens, EpisodeFailure when a stranger does."""
    if listener.is_proven():
        return
    if not listener.is_heard() or not await asyncio.to_thread(listener.is_ours):
        raise ConnectionRefusedError(listener.why_refused())


def sandboxes_dir() -> Path:
    folder = state_dir() / "sandboxes"
    folder.mkdir(exist_ok=True)
    return folder


def base_python() -> str:
    """The interpreter without our own packages, for envs that need none."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


def requirements_file(env: Env) -> Path | None:
    """What agent-env.toml names, else a requirements.txt beside the server, else nothing."""
    if env.type == BARE:
        return None
    if env.settings.requirements is not None:
        return env.path / env.settings.requirements
    usual = env.sources / "requirements.txt"
    return usual if usual.is_file() else None


def command_of(env: Env) -> tuple[str, ...]:
    """argv of the env's server: `command` of agent-env.toml, else the Dockerfile's CMD in its JSON form.

    Raises:
        ConfigError: neither is there.
    """
    if env.type == BARE:
        return BARE_COMMAND
    if env.settings.command:
        return env.settings.command
    dockerfile = env.sources / env.dockerfile
    found = _CMD.findall(dockerfile.read_text(errors="replace")) if dockerfile.is_file() else []
    if found:
        try:
            words = json.loads(found[-1])
        except ValueError:
            words = []
        if words and all(isinstance(word, str) for word in words):
            return tuple(words)
    raise ConfigError(
        f"envs/{env.name}/agent-env.toml: the process sandbox needs to know how to start the server: "
        'add a line like command = ["python", "server.py"]'
    )


def _environment(env: Env, layout: Layout, port: int, python: str) -> dict[str, str]:
    inherited = {name: os.environ[name] for name in _INHERITED if name in os.environ}
    database = re.sub(r"[^\w.-]", "_", env.environment_name)
    return {
        **inherited,
        "PATH": f"{Path(python).parent}{os.pathsep}{inherited.get('PATH', os.defpath)}",
        "HOME": str(layout.root / "home"),
        "TMPDIR": str(layout.root / "tmp"),
        "PWD": str(layout.app),
        "PYTHONUNBUFFERED": "1",
        "MCP_HOST": "127.0.0.1",
        "MCP_PORT": str(port),
        "ENVIRONMENT_NAME": env.environment_name,
        "SERVICE_NAME": env.environment_name,
        "DATABASE_URL": f"sqlite:///{layout.root / 'data' / database}.sqlite",
        leftovers.MARK: layout.id,
    }


def state_of(end: Exit, *, asked: bool) -> SandboxState:
    """What the end of a kept command means; `asked`: we had it stopped."""
    by_us = asked or end.stopped or end.timed_out
    if end.code is None:
        detail = "its keeper process was killed" if end.keeper_lost else "killed"
        return SandboxState(running=False, stopped_by_us=by_us, lost=not by_us, detail=detail)
    if end.timed_out:
        detail = "its longest life was over"
    elif end.code < 0:
        detail = f"killed by {_signal_name(-end.code)}"
    else:
        detail = f"exit code {end.code}"
    return SandboxState(
        running=False,
        exit_code=end.code if end.code >= 0 else 128 - end.code,
        stopped_by_us=by_us,
        lost=not by_us and -end.code in _FROM_OUTSIDE,
        detail=detail,
    )


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _is_ending(pid: int) -> bool:
    """Whether the kernel is already taking the process down. Its sockets close before its end can be waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return True
    exiting = 0x4  # PF_EXITING, include/linux/sched.h
    return fields[0] in "ZX" or bool(int(fields[6]) & exiting)
