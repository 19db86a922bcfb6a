"""What a container is created with: the env protocol's variables, labels, limits and hardening, as plain data."""

from __future__ import annotations

import hashlib
import json
import re
import time
from collections.abc import Mapping
from typing import Any

from agent_env.bundle.model import Env, EnvSettings
from agent_env.sandbox.base import BARE, BARE_COMMAND, FOLDER_INSIDE, SandboxSpec
from agent_env.sandbox.limits import DEFAULT_CPUS, DEFAULT_MEMORY, DEFAULT_PIDS, LOG_BYTES, TMPFS_BYTES
from agent_env.sandbox.ownership import owner
from agent_env.sandbox.variables import resolve_variables

PORT = 18765
"""the env protocol's; each container has a network namespace of its own, so all use the same"""

OWNER_LABEL = "agent-env.owner"
SANDBOX_LABEL = "agent-env.sandbox"
DEADLINE_LABEL = "agent-env.deadline"
EPISODE_LABEL = "agent-env.episode"


def container_config(
    spec: SandboxSpec, sandbox: str, *, network: str, publish: str | None = None, runtime: str | None = None
) -> dict[str, Any]:
    """The body of `POST /containers/create`.

    Args:
        network: name of the network, or "none".
        publish: address on which the daemon publishes the env's port, on a port that it chooses; None: not at all.
    """
    env = spec.prepared.env
    port = f"{PORT}/tcp"
    command = spec.command or (BARE_COMMAND if env.type == BARE else ())
    return {
        "Image": spec.prepared.handle,
        "Hostname": "env",
        "Env": [f"{name}={value}" for name, value in variables(env, spec.env_vars).items()],
        "Labels": labels(sandbox, spec.episode, spec.max_life),
        "ExposedPorts": {port: {}},
        "Tty": False,
        "OpenStdin": False,
        **({"User": env.settings.user} if env.settings.user else {}),
        **({"Entrypoint": [], "Cmd": list(command)} if command else {}),
        "HostConfig": {
            **_host_config(env.settings),
            "NetworkMode": network,
            "PortBindings": {} if publish is None else {port: [{"HostIp": publish, "HostPort": ""}]},
            **({"Runtime": runtime} if runtime else {}),
            **({"Mounts": [_mount(spec.folder)]} if spec.folder else {}),
        },
    }


def variables(env: Env, extra: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment variables of the env's process."""
    name = env.environment_name
    return {
        "PYTHONUNBUFFERED": "1",
        "MCP_HOST": "0.0.0.0",
        "MCP_PORT": str(PORT),
        "ENVIRONMENT_NAME": name,
        "SERVICE_NAME": name,
        "DATABASE_URL": f"sqlite:////tmp/{re.sub(r'[^A-Za-z0-9._-]', '_', name)}.sqlite",
        **resolve_variables(env.settings.env, env_name=env.name)[0],
        **(extra or {}),
    }


def labels(sandbox: str, episode: str, max_life: float) -> dict[str, str]:
    """Who it belongs to and when anybody may remove it. They can't be changed later."""
    return {
        OWNER_LABEL: owner(),
        SANDBOX_LABEL: sandbox,
        DEADLINE_LABEL: str(int(time.time() + max_life)),
        EPISODE_LABEL: episode,
    }


def interchange_key(env: Env, image: str, **options: str | None) -> str:
    """Equal for sandboxes that can stand in for each other: image, limits, variables, network, runtime."""
    settings = env.settings
    parts = {
        **options,
        "image": image,
        "limits": [settings.memory, settings.cpus, settings.pids],
        "env": [env.environment_name, dict(settings.env)],
        "rest": [settings.network, settings.user, settings.cap_add, settings.read_only, settings.isolation],
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _mount(folder: str) -> dict[str, Any]:
    return {"Type": "bind", "Source": folder, "Target": FOLDER_INSIDE}


def _host_config(settings: EnvSettings) -> dict[str, Any]:
    memory = settings.memory or DEFAULT_MEMORY
    cpus = settings.cpus or DEFAULT_CPUS
    return {
        "Init": True,
        "CapDrop": ["ALL"],
        "CapAdd": list(settings.cap_add),
        "SecurityOpt": ["no-new-privileges:true"],
        "IpcMode": "private",
        "PidsLimit": settings.pids or DEFAULT_PIDS,
        "Memory": memory,
        "MemorySwap": memory,
        "CpuPeriod": 100_000,
        "CpuQuota": int(cpus * 100_000),  # NanoCpus is refused above the machine's own count; this is not
        "OomScoreAdj": 500,  # when the machine is out of memory, an env goes before the servers
        "Ulimits": [{"Name": "core", "Soft": 0, "Hard": 0}],
        "RestartPolicy": {"Name": "no"},
        "LogConfig": {"Type": "json-file", "Config": {"max-size": str(LOG_BYTES // 2), "max-file": "2"}},
        "ReadonlyRootfs": settings.read_only,
        "Tmpfs": dict.fromkeys(("/tmp", "/data"), f"size={TMPFS_BYTES},mode=1777") if settings.read_only else {},
    }
