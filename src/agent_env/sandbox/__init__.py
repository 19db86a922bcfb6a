"""Where envs run. `docker` gives each a container, `process` a plain process; others register an entry point."""

from __future__ import annotations

import logging
from importlib import import_module
from importlib.metadata import entry_points

from agent_env.errors import ConfigError, EpisodeFailure
from agent_env.sandbox.base import ExecResult, Prepared, Sandbox, SandboxProvider, SandboxSpec, SandboxState
from agent_env.sandbox.fork import Isolating

__all__ = [
    "ExecResult",
    "Isolating",
    "Prepared",
    "Sandbox",
    "SandboxProvider",
    "SandboxSpec",
    "SandboxState",
    "choose_provider",
    "provider",
]

log = logging.getLogger(__name__)

ENTRY_POINTS = "agent_env.sandboxes"
"""entry point group of third parties: each names a class or function that returns a `SandboxProvider`"""


def provider(name: str, **options: object) -> SandboxProvider:
    """The provider of that name, not yet asked whether it works.

    Raises:
        ConfigError: no such provider; the known ones are named.
    """
    if name == "process":
        from agent_env.sandbox.process import ProcessProvider

        return ProcessProvider()
    if name == "docker":
        made: SandboxProvider = import_module("agent_env.sandbox.docker").DockerProvider(**options)
        return made
    others = {entry.name: entry for entry in entry_points(group=ENTRY_POINTS)}
    if name in others:
        found: SandboxProvider = others[name].load()(**options)
        return found
    known = ", ".join(["auto", "docker", "process", *sorted(others)])
    raise ConfigError(f"sandbox {name!r} is not known; there are: {known}")


async def choose_provider(name: str = "auto", isolation: str | None = None, **options: object) -> Isolating:
    """The provider of that name, asked whether it works; `auto` is docker where the daemon answers, else process.

    Args:
        isolation: "container" or "fork" for every env; None: as each env's agent-env.toml says.
        options: passed to docker, and to providers of third parties.

    Raises:
        ConfigError: no such provider.
        EpisodeFailure: PROVIDER_UNAVAILABLE, it was named and can't start anything now.
    """
    if name != "auto":
        chosen = Isolating(provider(name, **options), isolation)
        await _checked(chosen)
        return chosen
    try:
        docker = Isolating(provider("docker", **options), isolation)
        await _checked(docker)
    except (EpisodeFailure, ConfigError, ImportError) as reason:
        log.info("sandbox: process, because Docker can't be used: %s", reason)
        return await choose_provider("process", isolation)
    log.info("sandbox: docker")
    return docker


async def _checked(candidate: SandboxProvider) -> None:
    try:
        await candidate.check()
    except BaseException:
        await candidate.aclose()
        raise
