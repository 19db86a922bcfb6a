"""What process sandboxes leave behind when both their server and their keeper were killed, and its removal."""

from __future__ import annotations

import json
import logging
import os
import signal
import time
from pathlib import Path

from agent_env.sandbox.keeper import remove
from agent_env.sandbox.layout import Layout
from agent_env.sandbox.ownership import owner_state

log = logging.getLogger(__name__)

MARK = "AGENT_ENV_SANDBOX"
"""variable that holds the sandbox's id in the environment of every process of it"""


def reap(parent: Path) -> int:
    """Remove the sandboxes of dead owners, and of foreign ones past their deadline; returns how many. Blocks."""
    removed = 0
    for file in sorted(parent.glob("*.json")):
        try:
            record = json.loads(file.read_text())
            owner, deadline = str(record["owner"]), float(record["deadline"])
        except FileNotFoundError:
            continue
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s: not the record of a sandbox, left alone: %s", file, error)
            continue
        state = owner_state(owner)
        if state == "dead" or (state == "foreign" and time.time() > deadline):
            remove_sandbox(Layout(parent, file.stem))
            removed += 1
            log.info("sandbox %s: removed, its owner is gone", file.stem)
    return removed


def remove_sandbox(layout: Layout) -> None:
    """Kill what still runs of it and remove its files. Blocks."""
    for pid in _marked(layout.id):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    remove(str(layout.folder))
    remove(str(layout.owner_file))
    remove(str(layout.owner_file.with_suffix(".new")))


def _marked(sandbox_id: str) -> list[int]:
    mark = f"{MARK}={sandbox_id}".encode()
    found = []
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes()
        except OSError:
            continue
        if mark in environment.split(b"\0"):
            found.append(int(entry))
    return found
