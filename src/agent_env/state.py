"""Where this toolkit keeps files: a cache that may be deleted at any time, and state that may not while it runs."""

from __future__ import annotations

import os
from pathlib import Path


def cache_dir() -> Path:
    """`$AGENT_ENV_CACHE`, else `agent-env` in the user's cache folder. Made if absent."""
    return _folder("AGENT_ENV_CACHE", "XDG_CACHE_HOME", ".cache")


def state_dir() -> Path:
    """`$AGENT_ENV_STATE`, else `agent-env` in the user's state folder. Made if absent."""
    return _folder("AGENT_ENV_STATE", "XDG_STATE_HOME", ".local/state")


def _folder(own: str, xdg: str, default: str) -> Path:
    if given := os.environ.get(own):
        path = Path(given)
    else:
        path = Path(os.environ.get(xdg) or Path.home() / default) / "agent-env"
    path.mkdir(parents=True, exist_ok=True)
    return path
