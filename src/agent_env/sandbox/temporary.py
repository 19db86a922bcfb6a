"""Folders in the temp folder, and who made each: what its owner could not remove is removed for it.

`<state>/temporary/<owner>.<name of the folder>` holds the folder's path; written before it is made, removed after it.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from pathlib import Path

from agent_env.sandbox.keeper import remove
from agent_env.sandbox.ownership import owner, owner_state
from agent_env.state import state_dir


def make_folder(parent: Path, prefix: str) -> Path:
    """An empty folder of this process's, for its user alone. Raises OSError."""
    folder = parent / f"{prefix}{secrets.token_hex(6)}"
    record = _record(folder)
    record.write_text(str(folder))
    try:
        folder.mkdir(mode=0o700)
    except BaseException:
        record.unlink(missing_ok=True)
        raise
    return folder


def remove_folder(folder: Path) -> None:
    """Remove one of `make_folder`'s, if it is still there."""
    remove(str(folder))
    _record(folder).unlink(missing_ok=True)


def folders_of_the_dead() -> list[Path]:
    """Those that are still there. Blocks."""
    return [folder for record in _records_of_the_dead() if (folder := _folder_of(record)) is not None]


def remove_folders_of_the_dead() -> None:
    """Blocks."""
    for record in _records_of_the_dead():
        if (folder := _folder_of(record)) is not None:
            remove(str(folder))
        record.unlink(missing_ok=True)


def _records() -> Path:
    folder = state_dir() / "temporary"
    folder.mkdir(exist_ok=True)
    return folder


def _record(folder: Path) -> Path:
    return _records() / f"{owner()}.{folder.name}"


def _records_of_the_dead() -> list[Path]:
    return [path for path in _records().iterdir() if owner_state(path.name.rpartition(".")[0]) == "dead"]


def _folder_of(record: Path) -> Path | None:
    """None: it is gone, or what stands there now is not what was made."""
    with contextlib.suppress(OSError, ValueError):
        folder = Path(record.read_text())
        there = folder.lstat()
        if folder.name == record.name.rpartition(".")[2] and stat.S_ISDIR(there.st_mode):
            return folder if there.st_uid == os.geteuid() else None
    return None
