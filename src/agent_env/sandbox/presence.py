"""Who works with a Docker daemon's images right now, told to `gc` by a lock that ends with its holder."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

from agent_env.state import state_dir


class Presence:
    """As long as it is open, `gc` leaves the images of that daemon alone."""

    def __init__(self, host: str) -> None:
        self._descriptor: int | None = os.open(_file(host), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def close(self) -> None:
        """A second call does nothing."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def somebody_is_present(host: str) -> bool:
    """Does a process of this state folder work with that daemon's images? Never waits."""
    descriptor = os.open(_file(host), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def _file(host: str) -> Path:
    folder = state_dir() / "docker"
    folder.mkdir(exist_ok=True)
    return folder / f"{hashlib.sha256(host.encode()).hexdigest()[:16]}.lock"
