"""Who started a thing, and whether it still lives.

An owner is `<machine>.<boot>.<pid namespace>.<pid>.<start>`: enough to tell a live process from one that died and
whose pid was given away, one boot from the next, and machines that share a remote daemon from each other. It is
written on everything we start (labels, folders, journal) and read when somebody tidies up: what a dead owner of this
machine left behind may go at once; a foreign owner's things only past their deadline.
"""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import subprocess
import uuid
from pathlib import Path
from typing import Literal

OwnerState = Literal["own", "live", "dead", "foreign"]

_INITIAL_PID_NAMESPACE = "4026531836"
"""its inode on every Linux (include/linux/proc_ns.h): who is in it sees every process of the machine"""


def owner() -> str:
    """This process, as an owner."""
    pid = os.getpid()
    return f"{_machine()}.{_boot()}.{_pid_namespace('self')}.{pid}.{_start_time(pid)}"


def owner_state(owner_id: str) -> OwnerState:
    """What became of an owner, judged from here.

    "foreign" is what can't be judged from here: another machine, or a process in a pid namespace we don't see into.
    """
    if owner_id == owner():
        return "own"
    try:
        machine, boot, namespace, pid, start = owner_id.split(".")
        number = int(pid)
    except ValueError:
        return "foreign"
    if boot != _boot():
        return "dead" if machine == _machine() else "foreign"
    if namespace == _pid_namespace("self"):
        return "live" if start and _start_time(number) == start else "dead"
    if _pid_namespace("self") == _INITIAL_PID_NAMESPACE:
        return "live" if _lives_in_namespace(namespace, number, start) else "dead"
    return "foreign"


@functools.cache
def _machine() -> str:
    # Images of virtual machines are cloned with their machine-id, so the network card's address counts as well.
    seed = f"{_read('/etc/machine-id')} {platform.node()} {uuid.getnode():x}"
    return hashlib.sha256(seed.encode()).hexdigest()[:16]


@functools.cache
def _boot() -> str:
    # The kernel's own id is the same in every container of one kernel, which is what makes their owners comparable.
    return _read("/proc/sys/kernel/random/boot_id").replace("-", "") or "0"


def _pid_namespace(pid: int | str) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid").partition("[")[2].rstrip("]")
    except OSError:
        return "0"


def _start_time(pid: int) -> str:
    """Start of a process in its kernel's own unit; empty when there is none of that pid."""
    if Path("/proc/self/stat").exists():
        # Fields after the command's name, which may hold spaces and brackets; 22nd of all is the start time.
        fields = _read(f"/proc/{pid}/stat").rpartition(")")[2].split()
        return fields[19] if len(fields) > 19 and fields[0] not in "ZX" else ""
    listed = subprocess.run(["ps", "-o", "lstart=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return hashlib.sha256(listed.stdout.encode()).hexdigest()[:12] if listed.stdout.strip() else ""


def _lives_in_namespace(namespace: str, inner_pid: int, start: str) -> bool:
    """Is there a process of that pid, as counted inside that pid namespace? Asked from the initial namespace only."""
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or _pid_namespace(entry.name) != namespace:
            continue
        for line in _read(f"/proc/{entry.name}/status").splitlines():
            if line.startswith("NSpid:") and line.split()[-1] == str(inner_pid):
                return _start_time(int(entry.name)) == start
    return False


def _read(path: str) -> str:
    try:
        return Path(path).read_text(errors="replace").strip()
    except OSError:
        return ""
