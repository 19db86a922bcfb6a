"""What every measurement is told: where to work, how often to repeat, how to say how far it is."""

from __future__ import annotations

import socket
import sys
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Context:
    work: Path
    """a folder of this measurement's own, gone afterwards"""
    out: Path
    """where the results go"""
    pairs: int
    """interleaved repetitions of a comparison"""
    quick: bool
    """short runs that only show that a measurement works"""

    def say(self, line: str) -> None:
        print(f"  {line}", file=sys.stderr, flush=True)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port: int = sock.getsockname()[1]
    return port
