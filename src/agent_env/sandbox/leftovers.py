"""What process sandboxes leave behind when both their server and their keeper were killed, and its removal."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import signal
import time
from pathlib import Path

from agent_env.sandbox.keeper import remove
from agent_env.sandbox.layout import Layout
from agent_env.sandbox.ownership import owner_state

log = logging.getLogger(__name__)

MARK = "AGENT_ENV_SANDBOX"
"""variable that holds the sandbox's id in the environment of every process of it"""
UNFINISHED_FOR = 3600.0
"""seconds after which a record that was never finished is nobody's any more"""
KILL_FOR = 5.0
"""seconds to go on killing what keeps coming"""


def reap(parent: Path) -> int:
    """Remove the sandboxes of dead owners, and of foreign ones past their deadline; returns how many. Blocks."""
    _remove_unfinished(parent)
    found = left_over(parent)
    for layout in found:
        remove_sandbox(layout)
        log.info("sandbox %s: removed, its owner is gone", layout.id)
    return len(found)


def left_over(parent: Path) -> list[Layout]:
    """What `reap` would remove. Blocks."""
    found = []
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
            found.append(Layout(parent, file.stem))
    return found


def _remove_unfinished(parent: Path) -> None:
    """Records whose writer died before it could rename them."""
    for file in parent.glob("*.new"):
        with contextlib.suppress(FileNotFoundError):
            if time.time() - file.stat().st_mtime > UNFINISHED_FOR:
                file.unlink()


def remove_sandbox(layout: Layout) -> None:
    """Kill what still runs of it and remove its files. Blocks."""
    until = time.monotonic() + KILL_FOR
    while (pids := _marked(layout.id)) and time.monotonic() < until:
        for pid in pids:
            _kill(pid, layout.id, until)
    remove(str(layout.folder))
    remove(str(layout.owner_file))
    remove(str(layout.owner_file.with_suffix(".new")))


def _kill(pid: int, sandbox_id: str, until: float) -> None:
    """SIGKILL, and wait for the end. The pidfd sees to it that nobody else is hit who was given the number since."""
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return
    try:
        if _has_mark(pid, sandbox_id):
            signal.pidfd_send_signal(process, signal.SIGKILL)
            ended = select.poll()
            ended.register(process, select.POLLIN)
            ended.poll(max(0.0, until - time.monotonic()) * 1000)
    except ProcessLookupError:
        return
    finally:
        os.close(process)


def _marked(sandbox_id: str) -> list[int]:
    own = os.getpid()
    pids = [int(entry) for entry in os.listdir("/proc") if entry.isdigit()]
    return [pid for pid in pids if pid != own and _has_mark(pid, sandbox_id)]


def _has_mark(pid: int, sandbox_id: str) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
    return f"{MARK}={sandbox_id}".encode() in environment.split(b"\0")
