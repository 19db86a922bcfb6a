"""verifiers, installed once in a place of its own, and what its processes need to run offline: 0.4.0, or another.

Two things are made, both in the toolkit's cache: a venv with the client (and uv, which its chat program needs), and a
home whose uv cache holds the chat program's packages. verifiers resolves those anew in every `vf-eval` and forces uv
online for it, so the first `uv` on its PATH is a wrapper that forces it offline again.
"""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from clients.chosen import chosen

from agent_env.errors import AgentEnvError
from agent_env.sandbox.venvs import ensure_venv
from agent_env.state import cache_dir

REQUIREMENTS = Path(__file__).with_name("verifiers-0.4.0.txt")

_WARM = """\
import asyncio
from verifiers.v1.harnesses.utils.launch import CHAT_PROGRAM_SOURCE
from verifiers.v1.runtimes import SubprocessConfig, make_runtime

async def main():
    runtime = make_runtime(SubprocessConfig())
    await runtime.start()
    try:
        await runtime.prepare_uv_script(CHAT_PROGRAM_SOURCE)
    finally:
        await runtime.stop()

asyncio.run(main())
"""
"""prepares the chat program exactly as the null harness does, in the script's own place"""

_WRAPPER = """\
#!/bin/sh
UV_OFFLINE=true exec '{uv}' "$@"
"""

_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
_INDEX = ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS", "UV_NATIVE_TLS")
_PROXY = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")


class ClientMissing(Exception):
    """The client could not be installed; the message holds the installer's last lines."""


@dataclass(frozen=True)
class VerifiersClient:
    """The installed client."""

    version: str
    vf_eval: Path
    environment: dict[str, str]
    """of its processes: nothing of ours but the path and certificates"""


def ensure_client() -> VerifiersClient:
    """The client, installed on first use (from a package index; a minute or two): `AGENT_ENV_VERIFIERS`, or 0.4.0.

    Raises:
        ClientMissing: it can't be installed.
    """
    try:
        wanted = chosen("verifiers", REQUIREMENTS, ["uv"], platform.python_version())
        python = asyncio.run(ensure_venv(wanted.requirements))
        home = _warmed_home(python, wanted.version)
    except (AgentEnvError, OSError, subprocess.SubprocessError) as error:
        raise ClientMissing(f"verifiers can't be installed: {error}") from error
    return VerifiersClient(wanted.version, python.with_name("vf-eval"), _environment(home, home / "bin"))


def _warmed_home(python: Path, version: str) -> Path:
    """A HOME in which the chat program's environment is built. Made under a lock, counted once its mark is there."""
    digest = hashlib.sha256(f"{python} {_WARM} {_WRAPPER}".encode()).hexdigest()[:16]
    home = cache_dir() / "client-homes" / f"verifiers-{version}-{digest}"
    home.parent.mkdir(parents=True, exist_ok=True)
    mark = home / "ready"
    with home.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists():
            shutil.rmtree(home, ignore_errors=True)
            _make_home(home, python)
            mark.touch()
    return home


def _make_home(home: Path, python: Path) -> None:
    wrapper = home / "bin" / "uv"
    wrapper.parent.mkdir(parents=True)
    wrapper.write_text(_WRAPPER.format(uv=python.with_name("uv")))
    wrapper.chmod(0o755)
    online = _environment(home, python.parent) | {name: os.environ[name] for name in _online_names()}
    online["UV_COMPILE_BYTECODE"] = "true"
    done = subprocess.run(
        [python, "-c", _WARM], env=online, cwd=home, capture_output=True, text=True, timeout=900, check=False
    )
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-15:])
        raise ClientMissing(f"the chat program of verifiers can't be prepared:\n{last}")


def _environment(home: Path, uv_folder: Path) -> dict[str, str]:
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    return kept | {
        "PATH": f"{uv_folder}{os.pathsep}{kept.get('PATH', os.defpath)}",
        "HOME": str(home),
        "XDG_CACHE_HOME": str(home / ".cache"),
        "XDG_CONFIG_HOME": str(home / ".config"),
        "XDG_DATA_HOME": str(home / ".local/share"),
        "UV_CACHE_DIR": str(home / ".cache/uv"),
        "UV_PYTHON_DOWNLOADS": "never",
        "NO_PROXY": "127.0.0.1,localhost",
        "HF_HUB_OFFLINE": "1",
    }


def _online_names() -> list[str]:
    return [name for name in os.environ if name in _INDEX or name.upper() in _PROXY]
