"""What the commands of this package share: lines for people, Ctrl-C, tokens."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import typer

from agent_env.errors import ConfigError

INTERRUPTED = 130

T = TypeVar("T")


def say(line: str) -> None:
    """A line for people, on stderr: stdout carries results only."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def run(work: Coroutine[Any, Any, T]) -> T:
    """Runs a command's work; Ctrl-C cancels it, waits for its end and exits with 130."""
    try:
        return asyncio.run(work)
    except KeyboardInterrupt:
        say("interrupted")
        raise typer.Exit(INTERRUPTED) from None


def read_token(path: Path | None) -> str | None:
    """The bearer token in a file. Raises ConfigError that names the file."""
    if path is None:
        return None
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't read the token: {error}") from None
    if not token.isprintable() or not token or " " in token:
        raise ConfigError(f"{path}: a token is one line of visible characters")
    return token
