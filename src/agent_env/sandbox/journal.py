"""Which episode a sandbox serves. Labels can't change after creation, so a spare's says nothing of it: this does.

`<state>/journal/<owner>`, a JSON line for each hand-over: `{"at", "sandbox", "episode"}`. It goes with its owner.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from agent_env.sandbox.ownership import owner, owner_state
from agent_env.state import state_dir


class Journal:
    """This process's. The file is there from the first line on."""

    def __init__(self) -> None:
        self._path: Path | None = None
        self._fd = -1

    def hand_over(self, sandbox: str, episode: str) -> None:
        """Raises OSError."""
        if self._path is None:
            self._path = _folder() / owner()
            self._fd = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
        line = {"at": round(time.time(), 3), "sandbox": sandbox, "episode": episode}
        os.write(self._fd, json.dumps(line).encode() + b"\n")

    def close(self) -> None:
        if self._path is not None:
            os.close(self._fd)
            self._path.unlink(missing_ok=True)
            self._path = None


def remove_journals_of_the_dead() -> None:
    for path in _folder().iterdir():
        if owner_state(path.name) == "dead":
            path.unlink(missing_ok=True)


def _folder() -> Path:
    folder = state_dir() / "journal"
    folder.mkdir(exist_ok=True)
    return folder
