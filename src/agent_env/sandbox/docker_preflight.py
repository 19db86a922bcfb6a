"""The Docker side of preflight: what the daemon can't enforce, can't reach, or has no room for."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_env.bundle.model import Env
from agent_env.findings import Finding, error, warning
from agent_env.sandbox.docker import DockerProvider
from agent_env.sandbox.docker_daemon import Client
from agent_env.sandbox.firewall import can_set_rules
from agent_env.sandbox.preflight import disk_findings

BRIDGE_PORTS = 1023
"""containers that one Linux bridge carries"""
_NOT_HOSTS = 3
"""addresses of a subnet that no container gets: network, broadcast, gateway"""
_LIMITS = {
    "MemoryLimit": "memory",
    "SwapLimit": "memory including swap",
    "PidsLimit": "the number of processes",
    "CpuCfsQuota": "processor time",
}


async def docker_findings(provider: DockerProvider, envs: Sequence[Env], places: int) -> list[Finding]:
    """For a provider whose daemon answers."""
    daemon = provider.daemon
    try:
        info: dict[str, Any] = await daemon.call(lambda client: client.info())
    except Exception as fault:
        failure = daemon.failure(fault, "asking for its state")
        return [error("docker", failure.reason, failure.kind.remedy)]
    found = [*_limits(info), *_egress(envs, local=daemon.local)]
    if daemon.local and (network := await daemon.call(_network_of_ours)) is not None:
        found.append(
            error(
                "docker networks",
                f"this server runs in a container on the network {network!r}, from where it reaches no env's container",
                "run it with --network host, as deploy/compose.yaml does",
            )
        )
    if daemon.local:
        found += await asyncio.to_thread(_disk, Path(str(info.get("DockerRootDir") or "")), places)
    for network in sorted({env.settings.network for env in envs}):
        found += await _network(provider, network, places)
    return found


def _network_of_ours(client: Client, mark: Path = Path("/.dockerenv")) -> str | None:
    """The network mode of the container that we run in; None on the host's own network, or in no container."""
    if not mark.exists():
        return None
    try:
        told: dict[str, Any] = client.inspect_container(socket.gethostname())
    except Exception:
        return None
    mode = str((told.get("HostConfig") or {}).get("NetworkMode"))
    return None if mode == "host" else mode


def _limits(info: Mapping[str, Any]) -> Iterator[Finding]:
    for key, what in _LIMITS.items():
        if info.get(key) is False:
            yield warning(
                "docker", f"the daemon can't limit {what}", "enable that control group on the daemon's machine"
            )


def _egress(envs: Sequence[Env], *, local: bool) -> Iterator[Finding]:
    if local and can_set_rules():
        return
    for env in envs:
        if env.settings.network == "egress":
            yield warning(
                f"envs/{env.name}/agent-env.toml",
                'network = "egress": it can reach services of the daemon\'s machine as well, because the rules against '
                "that can't be set from here",
                'run as root on that machine, with iptables; or leave it at network = "none"',
            )


def _disk(root: Path, places: int) -> list[Finding]:
    there = root.is_absolute() and root.exists()
    return list(disk_findings("Docker's images and containers", root, places)) if there else []


async def _network(provider: DockerProvider, network: str, places: int) -> list[Finding]:
    """Has the network made that such envs share, if they share one, and counts its addresses."""
    daemon = provider.daemon
    try:
        attachment = await provider.networks.attachment(network)
        if attachment.network == "none":
            return []
        told: dict[str, Any] = await daemon.call(lambda client: client.inspect_network(attachment.network))
    except Exception as fault:
        reason = daemon.failure(fault, f"making the network of envs with network = {network!r}").reason
        return [
            error("docker networks", reason, "docker network prune, or more `default-address-pools` in daemon.json")
        ]
    found = []
    if (room := _addresses(told)) is not None and room < places:
        found.append(
            error(
                "docker networks",
                f"a network of this daemon has {room} addresses, and {places} are asked",
                "larger `default-address-pools` in its daemon.json",
            )
        )
    if places > BRIDGE_PORTS:
        found.append(
            error(
                "docker networks",
                f"one bridge carries {BRIDGE_PORTS} containers, and {places} are asked",
                "several servers with fewer each",
            )
        )
    return found


def _addresses(told: Mapping[str, Any]) -> int | None:
    """Of the network's IPv4 subnet."""
    for config in (told.get("IPAM") or {}).get("Config") or ():
        subnet = ipaddress.ip_network(config.get("Subnet", "::/0"), strict=False)
        if subnet.version == 4:
            return max(0, subnet.num_addresses - _NOT_HOSTS)
    return None
