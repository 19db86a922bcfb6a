"""The contract between what runs environments and everything above it.

A *provider* prepares an env once (builds its image, or its virtual environment) and then starts any number of
sandboxes from it. A *sandbox* is one running env server. `start` returns as soon as the env's process runs; whether it
answers yet is asked through its card (`agent_env.env.card`).

A *bare* sandbox runs no server: files are put into it and commands run in it. Providers get it as an env of the type
`bare`, without a folder of its own; what it is made of (an image, a private folder) is the provider's choice.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, runtime_checkable

from agent_env.bundle.model import Env, EnvSettings

FOLDER_INSIDE = "/run/agent-env"
BARE = "bare"
"""`Env.type` of a sandbox that runs no server"""
BARE_COMMAND = ("sleep", "infinity")
"""what keeps a bare sandbox up"""


def bare_env(*, memory: int | None = None, cpus: float | None = None) -> Env:
    """What a provider prepares and starts as a bare sandbox; equal limits give equal digests."""
    return Env(
        name="sandbox",
        path=Path(),
        environment_name="sandbox",
        digest=f"{BARE}-{memory}-{cpus}",
        type=BARE,
        settings=EnvSettings(memory=memory, cpus=cpus),
    )


@dataclass(frozen=True, slots=True)
class Prepared:
    """What `prepare` hands to `start`. `key` is equal for sandboxes that are interchangeable."""

    env: Env
    key: str
    handle: str
    """the provider's own: an image id, or a venv's folder"""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """One sandbox to start."""

    prepared: Prepared
    episode: str
    """id of the episode it is for, for logs and the journal"""
    env_vars: Mapping[str, str] = field(default_factory=dict)
    """set on top of the env protocol's own variables"""
    max_life: float = 86_400.0
    """seconds after which anybody may remove it"""
    command: Sequence[str] = ()
    """run in place of the env's own"""
    folder: str | None = None
    """a folder of this machine that belongs to the sandbox: seen inside as FOLDER_INSIDE, or under its own path where
    the sandbox has no file system of its own"""


@dataclass(frozen=True, slots=True)
class SandboxState:
    """`exit_code` is None while it runs, or when nobody can know it."""

    running: bool
    exit_code: int | None = None
    oom_killed: bool = False
    stopped_by_us: bool = False
    """we ended it (stop, or a deadline of ours), whatever the exit code says"""
    lost: bool = False
    """it was ended or removed from outside: neither by us nor by its own process"""
    detail: str = ""


@dataclass(frozen=True, slots=True)
class ExecResult:
    """`timed_out`: the deadline passed and the whole process group was killed inside the sandbox."""

    exit_code: int
    stdout: bytes
    stderr: bytes
    timed_out: bool = False
    cut: bool = False
    """output beyond the limit was dropped"""


@runtime_checkable
class Sandbox(Protocol):
    """One running env server. Methods raise `EpisodeFailure` with the kind that fits."""

    @property
    def id(self) -> str: ...

    @property
    def url(self) -> str:
        """Base URL, without a trailing slash, that processes of this host (graders) can use."""
        ...

    @property
    def authority(self) -> str:
        """The `Host` header to send over `connect()`: `127.0.0.1:<port>`."""
        ...

    async def connect(self) -> socket.socket:
        """A connected, non-blocking stream socket to the env's port. Raises OSError as `connect(2)` does."""
        ...

    async def exec(
        self,
        argv: Sequence[str],
        *,
        timeout: float,
        input: bytes = b"",
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        output_limit: int = 1 << 20,
    ) -> ExecResult: ...

    async def put(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        """Write a file inside, making its folders."""
        ...

    async def get(self, path: str, *, limit: int = 64 << 20) -> bytes: ...

    async def logs(self, limit: int = 65_536) -> str:
        """The last `limit` bytes of the env's stdout and stderr; starts with a marker line when cut."""
        ...

    async def state(self) -> SandboxState: ...

    async def stop(self, grace: float = 2.0) -> None:
        """End and remove it: SIGTERM, `grace` seconds, SIGKILL. Idempotent; a second call waits for the first."""
        ...


@runtime_checkable
class MapsPaths(Protocol):
    """A sandbox in which files lie elsewhere than `put` and `get` call it."""

    def path(self, path: str) -> str:
        """The path under which processes of the sandbox see what `put(path)` wrote."""
        ...


def path_inside(sandbox: Sandbox, path: str) -> str:
    """The path under which processes of the sandbox see what `put(path)` wrote."""
    return sandbox.path(path) if isinstance(sandbox, MapsPaths) else path


@runtime_checkable
class Exposes(Protocol):
    """A sandbox that no other process of this host can reach unless it is asked to."""

    def expose(self) -> AbstractAsyncContextManager[str]:
        """The base URL, which works for as long as the context."""
        ...


@asynccontextmanager
async def exposed(sandbox: Sandbox) -> AsyncIterator[str]:
    """The base URL for other processes of this host, for a phase."""
    if isinstance(sandbox, Exposes):
        async with sandbox.expose() as url:
            yield url
    else:
        yield sandbox.url


@runtime_checkable
class SandboxProvider(Protocol):
    """Where sandboxes run. `name` is what `--sandbox` takes."""

    name: str

    async def check(self) -> None:
        """Raises `EpisodeFailure(PROVIDER_UNAVAILABLE)` when it can't start anything now."""
        ...

    async def prepare(self, env: Env) -> Prepared:
        """Build what `start` needs. Done once per env digest, cached across processes, safe to call at once."""
        ...

    async def start(self, spec: SandboxSpec) -> Sandbox:
        """Start one. When cancelled or failed, nothing of it is left behind."""
        ...

    async def reap(self) -> int:
        """Remove what dead owners left behind; returns how many."""
        ...

    async def aclose(self) -> None:
        """Stop every sandbox that is still there and release the provider's own resources."""
        ...
