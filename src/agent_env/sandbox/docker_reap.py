"""Removal of what nobody owns any more: containers and networks that carry our labels.

What a dead owner of this machine left goes at once; what a foreign one left (another machine's, on a shared daemon)
only past its deadline. Nothing is ever matched by name, and each thing is looked at again right before it goes.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from typing import Any

from docker.errors import APIError

from agent_env.sandbox.docker_config import DEADLINE_LABEL, OWNER_LABEL, SANDBOX_LABEL
from agent_env.sandbox.docker_daemon import Client, Daemon, is_gone
from agent_env.sandbox.docker_sandbox import remove_container
from agent_env.sandbox.ownership import owner_state

log = logging.getLogger(__name__)


async def reap(daemon: Daemon, own: Collection[str] = (), *, dry_run: bool = False) -> int:
    """Remove it; returns how many things went. `own`: ids of sandboxes of ours whose removal failed before."""
    return len(await remove_left_over(daemon, own, dry_run=dry_run))


async def remove_left_over(daemon: Daemon, own: Collection[str] = (), *, dry_run: bool = False) -> list[str]:
    """As `reap`; says what went, or would: `container <id>`, `network <name>`."""
    try:
        return await daemon.finish(lambda client: _reap(client, frozenset(own), dry_run))
    except Exception as error:
        raise daemon.failure(error, "removing what dead owners left") from error


def _reap(client: Client, own: frozenset[str], dry_run: bool) -> list[str]:
    removed = []
    for entry in client.containers(all=True, filters={"label": OWNER_LABEL}):
        if _may_go(entry.get("Labels") or {}, own) and _still_may_go(client, entry["Id"], own):
            log.info(
                "container %s: its owner is gone, %s", entry["Id"][:12], "to be removed" if dry_run else "removing it"
            )
            if not dry_run:
                remove_container(client, entry["Id"])
            removed.append(f"container {entry['Id']}")
    for network in client.networks(filters={"label": OWNER_LABEL}):
        if _may_go(network.get("Labels") or {}, own) and (dry_run or _remove_network(client, network["Id"])):
            removed.append(f"network {network['Name']}")
    return removed


def _may_go(labels: Mapping[str, str], own: frozenset[str]) -> bool:
    state = owner_state(labels.get(OWNER_LABEL, ""))
    if state == "dead":
        return True
    if state == "own":
        return labels.get(SANDBOX_LABEL) in own
    return state == "foreign" and _is_past(labels.get(DEADLINE_LABEL))


def _still_may_go(client: Client, container: str, own: frozenset[str]) -> bool:
    try:
        told: dict[str, Any] = client.inspect_container(container)
    except Exception as error:
        if is_gone(error):
            return False
        raise
    return _may_go(told["Config"].get("Labels") or {}, own)


def _remove_network(client: Client, network: str) -> bool:
    try:
        client.remove_network(network)
    except APIError as error:
        if not is_gone(error):
            log.info("network %s is in use, left for later: %s", network[:12], error)
        return False
    return True


def _is_past(deadline: str | None) -> bool:
    return deadline is not None and deadline.isdigit() and time.time() > int(deadline)
