"""Virtual environments by what is in them, built once and shared by every process of this user.

A venv is built where it stays, because its scripts hold that path, and counts only once its mark is written; whoever
finds one without the mark builds it anew. Builders take turns by a file lock. The installer inherits the lock: while
one whose parent was killed still runs, nobody else starts.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import json
import logging
import os
import re
import shutil
import signal
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from agent_env.errors import ConfigError, EpisodeFailure, FailureKind
from agent_env.sandbox.layout import storage_failure
from agent_env.state import cache_dir

log = logging.getLogger(__name__)

INSTALL_TIMEOUT = 1800.0
"""seconds one venv may take to build"""

_MARK = "agent-env.json"
_SHOWN = 15
"""lines of the installer's output that an error quotes"""
_UV_FROM_PIP = {
    "PIP_INDEX_URL": "UV_DEFAULT_INDEX",
    "PIP_EXTRA_INDEX_URL": "UV_INDEX",
    "PIP_FIND_LINKS": "UV_FIND_LINKS",
}
"""what uv calls pip's settings; it reads none of pip's own"""
_BENDING = frozenset({"VIRTUAL_ENV", "PIP_TARGET", "PIP_PREFIX", "PIP_USER", "PIP_REQUIRE_VIRTUALENV"})
"""settings that would install somewhere else"""


async def ensure_venv(requirements: Sequence[str]) -> Path:
    """The python of a venv that holds these requirements, built if there is none yet.

    Raises:
        EpisodeFailure: DEPLOY_FAILED with the installer's last lines; DEPLOY_TIMEOUT; DISK_FULL.
    """
    lines = sorted({line.strip() for line in requirements if line.strip()})
    folder = cache_dir() / "venvs" / _digest(lines)
    python = folder / "bin" / "python"
    if _is_complete(folder, python):
        return python
    folder.parent.mkdir(parents=True, exist_ok=True)
    async with _lock(folder.with_suffix(".lock")) as lock:
        if not _is_complete(folder, python):
            started = time.monotonic()
            log.info("building a virtual environment for %s", ", ".join(lines) or "no requirements")
            await _build(folder, python, lines, lock)
            log.info("built %s in %.1f s", folder, time.monotonic() - started)
    return python


def requirements_of(file: Path) -> list[str]:
    """The lines of a requirements file: comments dropped, `-r` files read in, continued lines joined.

    Raises:
        ConfigError: the file can't be read, or a line names something beside it (`-e`, `-c`, a path).
    """
    return list(_read_requirements(file, seen=frozenset()))


def _read_requirements(file: Path, seen: frozenset[Path]) -> Iterator[str]:
    if file.resolve() in seen:
        raise ConfigError(f"{file}: it includes itself")
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{file}: can't be read: {error}") from error
    for raw in re.sub(r"\\\r?\n", " ", text).splitlines():
        line = re.sub(r"(^|\s)#.*$", "", raw).strip()
        include = re.match(r"(?:-r|--requirement)[\s=]+(\S+)$", line)
        if include:
            yield from _read_requirements(file.parent / include[1], seen | {file.resolve()})
        elif re.match(r"-e\b|--editable\b|-c\b|--constraint\b|\.{0,2}/", line):
            raise ConfigError(f"{file}: {line!r}: only packages of an index can be named here")
        elif line:
            yield line


def _digest(lines: Sequence[str]) -> str:
    interpreter = [sys.implementation.cache_tag, sys.version.split()[0], os.uname().machine, _base_python()]
    return hashlib.sha256(json.dumps([interpreter, lines]).encode()).hexdigest()[:24]


def _base_python() -> str:
    """The interpreter below our own venv: one built from it outlives ours."""
    return str(getattr(sys, "_base_executable", None) or sys.executable)


def _is_complete(folder: Path, python: Path) -> bool:
    return (folder / _MARK).exists() and python.exists()


@asynccontextmanager
async def _lock(path: Path) -> AsyncIterator[int]:
    """An exclusive file lock. Held by the descriptor, which a child process may share."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    loop = asyncio.get_running_loop()
    taken: asyncio.Future[None] = loop.create_future()
    given_up = threading.Event()

    def take() -> None:
        fcntl.flock(fd, fcntl.LOCK_EX)
        if given_up.is_set():
            os.close(fd)
        else:
            loop.call_soon_threadsafe(_resolve, taken)

    # A thread of its own, which no shutdown waits for: another process may hold the lock for minutes.
    threading.Thread(target=take, name="venv lock", daemon=True).start()
    try:
        await taken
    except asyncio.CancelledError:
        given_up.set()
        raise
    try:
        yield fd
    finally:
        os.close(fd)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def _build(folder: Path, python: Path, lines: Sequence[str], lock: int) -> None:
    wanted = folder / "requirements.txt"
    try:
        await asyncio.to_thread(_clear, folder, wanted, lines)
        async with asyncio.timeout(INSTALL_TIMEOUT):
            for command in _commands(folder, python, wanted, empty=not lines):
                await _run(command, lock)
        _write_mark(folder, lines)
    except TimeoutError:
        raise EpisodeFailure(
            FailureKind.DEPLOY_TIMEOUT, f"installing {', '.join(lines)} took more than {INSTALL_TIMEOUT:g} s"
        ) from None
    except OSError as error:
        raise storage_failure(error, f"the virtual environment {folder}", FailureKind.DEPLOY_FAILED) from error
    finally:
        if not _is_complete(folder, python):
            await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)


def _clear(folder: Path, wanted: Path, lines: Sequence[str]) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    wanted.write_text("\n".join(lines) + "\n")


def _write_mark(folder: Path, lines: Sequence[str]) -> None:
    unfinished = folder / f"{_MARK}.new"
    unfinished.write_text(json.dumps({"requirements": lines, "python": _base_python()}))
    unfinished.rename(folder / _MARK)


def _commands(folder: Path, python: Path, wanted: Path, *, empty: bool) -> list[list[str]]:
    uv = _uv()
    if uv:
        make = [uv, "venv", "--quiet", "--no-project", "--allow-existing", "--python", _base_python(), str(folder)]
        install = [uv, "pip", "install", "--compile-bytecode", "--python", str(python), "-r", str(wanted)]
    else:
        make = [_base_python(), "-I", "-m", "venv", str(folder)]
        install = [str(python), "-I", "-m", "pip", "install", "--no-input", "--progress-bar=off", "-r", str(wanted)]
    return [make] if empty else [make, install]


def _uv() -> str | None:
    """uv beside our own interpreter, where `make` puts it without a PATH that knows, or on PATH."""
    beside = str(Path(sys.executable).parent)
    return shutil.which("uv", path=os.pathsep.join([beside, os.environ.get("PATH", os.defpath)]))


async def _run(command: Sequence[str], lock: int) -> None:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=_installer_environment(os.environ),
        start_new_session=True,
        pass_fds=[lock],
    )
    try:
        output, _ = await process.communicate()
    except BaseException:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    if process.returncode != 0:
        last = output.decode(errors="replace").strip().splitlines()[-_SHOWN:]
        text = "\n".join(last)
        kind = FailureKind.DISK_FULL if "No space left on device" in text else FailureKind.DEPLOY_FAILED
        name = Path(command[0]).name
        raise EpisodeFailure(kind, f"{name} failed (exit code {process.returncode}) to install requirements:\n{text}")


def _installer_environment(ours: Mapping[str, str]) -> dict[str, str]:
    """Ours, so that the machine's pip, uv, proxy and certificate settings hold, without what would bend a Python."""
    kept = {name: value for name, value in ours.items() if not name.startswith("PYTHON") and name not in _BENDING}
    for pip_name, uv_name in _UV_FROM_PIP.items():
        if pip_name in kept:
            kept.setdefault(uv_name, kept[pip_name])
    return kept
