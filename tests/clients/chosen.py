"""Which version of a client is played with: the pinned one, or what an environment variable asks for.

`AGENT_ENV_VERIFIERS=verifiers` is the newest release, `verifiers @ git+https://...` a commit. What it needs besides is
resolved anew each time, so that a venv in the cache is used again only while everything in it is still the newest.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_env.errors import ConfigError
from agent_env.sandbox.venvs import _installer_environment, _uv, requirements_of


@dataclass(frozen=True)
class Chosen:
    """A client and everything beside it, each at one version."""

    version: str
    """`0.4.0`, or of a commit its first digits"""
    requirements: tuple[str, ...]


def chosen(package: str, pinned: Path, beside: Sequence[str], python_version: str) -> Chosen:
    """What `AGENT_ENV_<PACKAGE>` asks for, with `beside`; without it the lines of `pinned`.

    Raises:
        ConfigError: what it asks for is not to be had.
    """
    asked = os.environ.get(f"AGENT_ENV_{package.upper().replace('-', '_')}", "").strip()
    lines = _resolved([asked, *beside], python_version) if asked else requirements_of(pinned)
    return Chosen(_version(package, lines), tuple(lines))


def _version(package: str, lines: Sequence[str]) -> str:
    line = next(line for line in lines if re.match(rf"{package}\b(?!-)", line))
    found = re.search(r"==([\w.]+)|@([0-9a-f]{7})[0-9a-f]*$", line)
    return (found[1] or found[2]) if found else "unknown"


def _resolved(wanted: Sequence[str], python_version: str) -> list[str]:
    uv = _uv()
    if uv is None:
        raise ConfigError("uv is needed to resolve another version of a client, and is not here")
    command = [uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--python-version", python_version, "-"]
    done = subprocess.run(
        command,
        input="\n".join(wanted),
        env=_installer_environment(os.environ),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-15:])
        raise ConfigError(f"{', '.join(wanted)}: can't be resolved:\n{last}")
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
