"""What would keep so many episodes from running here, found before the first one: each finding with its remedy.

Used by `agent-env check`, and by servers when they start.
"""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from agent_env.bundle.model import Env
from agent_env.errors import ConfigError, EpisodeFailure
from agent_env.findings import Finding, Level, error, warning
from agent_env.sandbox.base import Prepared, SandboxProvider
from agent_env.sandbox.ports import BLOCK, BLOCKS
from agent_env.state import cache_dir, state_dir

log = logging.getLogger(__name__)

FILES_EACH = 16
"""file descriptors of ours that one episode may need: measured 3 with processes, 12 with Docker, and its session's"""
FILES_BESIDE = 128
TASKS_EACH = 12
"""processes and threads of one process sandbox: its keeper, the server and its threads"""
TASKS_BESIDE = 64
LEAST_DISK = 256 << 20
"""bytes; with less, writing is expected to fail"""
DISK_BESIDE = 1 << 30
DISK_EACH = 32 << 20
"""bytes of one sandbox: its output, its own files"""


async def preflight(provider: SandboxProvider, envs: Sequence[Env], *, places: int) -> list[Finding]:
    """Look at the provider and at this machine for `places` episodes at once. Builds nothing."""
    try:
        await provider.check()
    except EpisodeFailure as failure:
        return [error(provider.name, failure.reason, failure.kind.remedy)]
    return await _look(provider, envs, places)


async def announce(provider: SandboxProvider, envs: Sequence[Env], *, places: int) -> None:
    """Log what `preflight` finds: for servers, which start all the same. Says nothing of a provider that is away, which
    whoever builds the envs next will say."""
    try:
        await provider.check()
    except EpisodeFailure:
        return
    for finding in await _look(provider, envs, places):
        log.log(logging.ERROR if finding.level is Level.ERROR else logging.WARNING, "preflight: %s", finding)


async def build(provider: SandboxProvider, envs: Iterable[Env]) -> tuple[dict[str, Prepared], list[Finding]]:
    """Build what the envs need, by env digest; a finding for each that can't be built, or not for this machine."""
    prepared: dict[str, Prepared] = {}
    found: list[Finding] = []
    for env in envs:
        try:
            prepared[env.digest] = await provider.prepare(env)
        except EpisodeFailure as failure:
            found.append(error(f"envs/{env.name}", failure.reason, failure.kind.remedy))
        except ConfigError as wrong:
            found.append(error(f"envs/{env.name}", str(wrong), "put it right there"))
    return prepared, found


async def _look(provider: SandboxProvider, envs: Sequence[Env], places: int) -> list[Finding]:
    found = [*_files(places), *await asyncio.to_thread(lambda: list(_disk(places))), *_memory(envs)]
    if provider.name == "process":
        found += [*_ports(places), *_tasks(places)]
    elif provider.name == "docker":
        from agent_env.sandbox.docker import DockerProvider
        from agent_env.sandbox.docker_preflight import docker_findings

        bare = getattr(provider, "provider", provider)  # the one behind `Isolating`
        if isinstance(bare, DockerProvider):
            found += await docker_findings(bare, envs, places)
    return found


def _files(places: int) -> Iterator[Finding]:
    limit, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = FILES_BESIDE + FILES_EACH * places
    if limit != resource.RLIM_INFINITY and limit < needed:
        raised = f"ulimit -n {needed}" if most == resource.RLIM_INFINITY or most >= needed else "raise it (LimitNOFILE)"
        yield error(
            "open files", f"this process may open {limit}, and {places} episodes may need {needed}", f"first: {raised}"
        )


def _ports(places: int) -> Iterator[Finding]:
    if places > BLOCK * BLOCKS:
        yield error(
            "ports", f"there are {BLOCK * BLOCKS} for process sandboxes, and {places} are asked", "ask for less"
        )


def _tasks(places: int) -> Iterator[Finding]:
    needed = TASKS_BESIDE + TASKS_EACH * places
    for what, limit in _task_limits():
        if limit < needed:
            yield error("processes", f"{what} is {limit}, and {places} process sandboxes may need {needed}", "raise it")


def _task_limits() -> Iterator[tuple[str, int]]:
    soft, _ = resource.getrlimit(resource.RLIMIT_NPROC)
    if soft != resource.RLIM_INFINITY and os.geteuid() != 0:  # root is not bound by it
        yield "this user's limit of processes (ulimit -u)", soft
    for name in ("/sys/fs/cgroup/pids.max", "/sys/fs/cgroup/pids/pids.max"):
        try:
            text = Path(name).read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            yield f"the control group's limit of processes ({name})", int(text)


def _disk(places: int) -> Iterator[Finding]:
    seen: set[int] = set()
    for what, folder in (("state", state_dir()), ("cache", cache_dir()), ("temporary", Path(tempfile.gettempdir()))):
        device = folder.stat().st_dev
        if device not in seen:
            seen.add(device)
            yield from disk_findings(f"the {what} folder", folder, places)


def disk_findings(what: str, folder: Path, places: int) -> Iterator[Finding]:
    """Whether the file system of a folder has room for so many sandboxes."""
    there = os.statvfs(folder)
    free = there.f_bavail * there.f_frsize
    wanted = DISK_BESIDE + DISK_EACH * places
    where, remedy = f"disk of {what} ({folder})", "free space: agent-env gc, docker system prune"
    if free < LEAST_DISK:
        yield error(where, f"{_size(free)} are free", remedy)
    elif free < wanted:
        yield warning(where, f"{_size(free)} are free, and {places} sandboxes may fill {_size(wanted)}", remedy)
    if there.f_files and there.f_favail < 1000 + 200 * places:
        yield warning(where, f"{there.f_favail:,} more files can be made there", "remove files you do not need")


def _memory(envs: Sequence[Env]) -> Iterator[Finding]:
    """An env's `memory` is a limit, not a forecast: many of them together may well be more than there is."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    for env in envs:
        asked = env.settings.memory
        if asked is not None and asked > total:
            where = f"envs/{env.name}/agent-env.toml"
            yield warning(where, f"memory is {_size(asked)}, and this machine has {_size(total)}", "lower it")


def _size(count: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20)):
        if count >= size:
            return f"{count / size:.3g} {unit}" if count < 1000 * size else f"{count // size:,} {unit}"
    return f"{count} bytes"
