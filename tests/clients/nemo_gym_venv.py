"""nemo-gym and what our server needs beside it, installed once in a venv of its own in the toolkit's cache.

It is 0.7.0, or what `AGENT_ENV_NEMO_GYM` asks for.

NeMo Gym asks for Python 3.13.14 in its metadata and runs on 3.13.0 as well, so any 3.13 of this machine is taken: uv is
told to resolve for 3.13.14. Our own code is not installed but put on PYTHONPATH, so that it is the code under test.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from clients.chosen import chosen

import agent_env
from agent_env.errors import ConfigError
from agent_env.sandbox.venvs import _installer_environment, _uv
from agent_env.state import cache_dir

REQUIREMENTS = Path(__file__).with_name("nemo-gym-0.7.0.txt")
OLDER = ("0.5.1", "0.6.0")
"""releases that the written folder must run on, too"""
_ASKED_FOR = "3.13.14"
_KEPT = ("PATH", "LANG", "LC_ALL", "TZ", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")


class ClientMissing(Exception):
    """The client could not be installed; the message holds the installer's last lines."""


@dataclass(frozen=True)
class NemoGym:
    """The installed client."""

    version: str
    venv: Path
    older: dict[str, Path]
    """release -> a folder with nothing but its `nemo_gym`, to be put in front of the venv's"""

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def gym(self) -> Path:
        return self.venv / "bin" / "gym"

    def environment(self, home: Path, version: str | None = None) -> dict[str, str]:
        """Of its processes: nothing of ours but the path, and our package on PYTHONPATH. Nothing goes online."""
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        ours = str(Path(agent_env.__file__).parents[1])
        front = [str(self.older[version])] if version else []
        return kept | {
            "HOME": str(home),
            "PATH": f"{self.venv / 'bin'}{os.pathsep}{kept.get('PATH', os.defpath)}",
            "PYTHONPATH": os.pathsep.join([*front, ours]),
            "PYTHONUNBUFFERED": "1",
            "NO_PROXY": "127.0.0.1,localhost",
            "RAY_USAGE_STATS_ENABLED": "0",
            "HF_HUB_OFFLINE": "1",
            "UV_OFFLINE": "1",
        }


def ensure_nemo_gym() -> NemoGym:
    """The client, installed on first use from a package index (with uv a minute, about 1.4 GB on disk).

    Raises:
        ClientMissing: no Python 3.13 is here, or it can't be installed.
    """
    interpreter = _python_313()
    try:
        wanted = chosen("nemo-gym", REQUIREMENTS, ["pytest", *_our_dependencies()], _ASKED_FOR)
    except ConfigError as error:
        raise ClientMissing(str(error)) from error
    lines = "".join(f"{line}\n" for line in wanted.requirements)
    key = hashlib.sha256(f"{interpreter} {OLDER} {lines}".encode()).hexdigest()[:16]
    venv = cache_dir() / "client-venvs" / f"nemo-gym-{wanted.version}-{key}"
    venv.parent.mkdir(parents=True, exist_ok=True)
    client = NemoGym(wanted.version, venv, {version: venv / "older" / version for version in OLDER})
    mark = venv / "ready"
    with venv.with_name(f"{venv.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists():
            shutil.rmtree(venv, ignore_errors=True)
            for command in _install_commands(client, interpreter, wanted.requirements):
                _run(command)
            mark.touch()
    return client


def _our_dependencies() -> list[str]:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    return list(project["dependencies"])


def _install_commands(client: NemoGym, interpreter: Path, requirements: Sequence[str]) -> Iterator[list[str]]:
    uv = _uv()
    if uv:
        yield [uv, "venv", "--quiet", "--no-project", "--python", str(interpreter), str(client.venv)]
        install = [uv, "pip", "install", "--python", str(client.python), "--python-version", _ASKED_FOR, "--no-deps"]
    else:
        yield [str(interpreter), "-I", "-m", "venv", str(client.venv)]
        pip = [str(client.python), "-I", "-m", "pip", "install", "--no-input", "--progress-bar=off"]
        install = [*pip, "--ignore-requires-python", "--no-deps"]
    yield [*install, *(["--compile-bytecode"] if uv else []), *requirements]
    for version, folder in client.older.items():
        yield [*install, "--target", str(folder), f"nemo-gym=={version}"]


def _run(command: list[str]) -> None:
    done = subprocess.run(
        command,
        env=_installer_environment(os.environ),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1800,
        check=False,
    )
    if done.returncode:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-15:])
        raise ClientMissing(f"{' '.join(command[:3])} failed to install nemo-gym:\n{last}")


def _python_313() -> Path:
    """On PATH, among pyenv's, or uv's own, which gets one where it can. A shim that leads nowhere is passed over."""
    for candidate in _candidates():
        ask = [str(candidate), "-I", "-c", "import sys; print(*sys.version_info[:2], sys.executable)"]
        told = subprocess.run(ask, capture_output=True, text=True, timeout=60, check=False)
        if told.stdout.startswith("3 13 "):
            return Path(told.stdout.removeprefix("3 13 ").strip())
    raise ClientMissing("NeMo Gym needs Python 3.13, and none is on PATH, in pyenv or to be had by uv")


def _candidates() -> Iterator[str | Path]:
    if on_path := shutil.which("python3.13"):
        yield on_path
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    yield from sorted(pyenv.glob("versions/3.13*/bin/python3.13"), reverse=True)
    if uv := _uv():
        for command in (["install", "3.13"], ["find", "--managed-python", "3.13"]):
            done = subprocess.run([uv, "python", *command], capture_output=True, text=True, timeout=300, check=False)
            if done.returncode:
                return
        yield done.stdout.strip()
