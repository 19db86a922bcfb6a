"""What of ours nobody uses any more: containers, networks, images, folders of sandboxes and graders. For `gc`.

Things of live owners are never touched. An image is in use while any container is made from it, and all of ours are
while any process of this user works with the daemon; one that goes all the same is built again when it is next needed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from docker.errors import APIError

from agent_env.errors import AgentEnvError
from agent_env.sandbox import leftovers, temporary
from agent_env.sandbox.docker_config import OWNER_LABEL
from agent_env.sandbox.docker_daemon import Client, Daemon, is_gone
from agent_env.sandbox.docker_reap import remove_left_over
from agent_env.sandbox.firewall import open_bridges
from agent_env.sandbox.fork_host import folders_of_the_dead, remove_folders_of_the_dead
from agent_env.sandbox.images import SOURCES_LABEL
from agent_env.sandbox.presence import somebody_is_present
from agent_env.sandbox.process import sandboxes_dir

log = logging.getLogger(__name__)


class Item(NamedTuple):
    kind: str
    """`container`, `network`, `image`, `sandbox folder` or `grader folder`"""
    name: str


@dataclass(slots=True)
class Garbage:
    """What was removed, or would be."""

    items: list[Item] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    """what was not looked at or left alone, and why"""


async def collect(*, dry_run: bool, label: str | None = None) -> Garbage:
    """Remove it all; with `dry_run` only look. A daemon that does not answer is skipped.

    `label`: only images that carry this one too, `name=value`; the firewall's chain stays then.
    """
    garbage = Garbage()
    garbage.items += await asyncio.to_thread(_folders, dry_run)
    try:
        daemon = Daemon()
    except AgentEnvError as error:
        garbage.skipped.append(f"Docker: {error}")
        return garbage
    try:
        await _docker(daemon, garbage, dry_run, label)
    except AgentEnvError as error:
        garbage.skipped.append(f"Docker: {error}")
    finally:
        daemon.close()
    return garbage


def _folders(dry_run: bool) -> list[Item]:
    found = [*(layout.folder for layout in leftovers.left_over(sandboxes_dir())), *folders_of_the_dead()]
    graders = temporary.folders_of_the_dead()
    if not dry_run:
        leftovers.reap(sandboxes_dir())
        remove_folders_of_the_dead()
        temporary.remove_folders_of_the_dead()
    items = [Item("sandbox folder", str(folder)) for folder in found]
    return items + [Item("grader folder", str(folder)) for folder in graders]


async def _docker(daemon: Daemon, garbage: Garbage, dry_run: bool, label: str | None) -> None:
    left_over = await remove_left_over(daemon, dry_run=dry_run)
    garbage.items += [Item(*text.split(" ", 1)) for text in left_over]
    if somebody_is_present(daemon.host):
        garbage.skipped.append("images: a server or run of yours is working with them")
        return
    try:
        garbage.items += await daemon.finish(lambda client: _images(client, dry_run, label))
        networks = await daemon.call(lambda client: client.networks(filters={"label": OWNER_LABEL}))
    except Exception as error:
        raise daemon.failure(error, "removing unused images") from error
    unused = not networks and not dry_run and label is None
    if unused and daemon.local and await open_bridges():
        log.info("the firewall's chain of our bridges is gone")


def _images(client: Client, dry_run: bool, label: str | None) -> list[Item]:
    used = {entry["ImageID"] for entry in client.containers(all=True)}
    removed: list[Item] = []
    for image in client.images(filters={"label": [SOURCES_LABEL, *([label] if label else [])]}):
        if image["Id"] in used:
            continue
        for name in _names(image):
            if dry_run or _remove(client, name):
                removed.append(Item("image", name))
    return removed


def _names(image: dict[str, Any]) -> Iterable[str]:
    tags = [tag for tag in image.get("RepoTags") or () if tag != "<none>:<none>"]
    return tags or [image["Id"]]


def _remove(client: Client, name: str) -> bool:
    try:
        client.remove_image(name)
    except APIError as error:
        if not is_gone(error):
            log.warning("image %s is in use, left alone: %s", name, error.explanation or error)
        return False
    return True
