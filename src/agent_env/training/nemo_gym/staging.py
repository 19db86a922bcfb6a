"""How a written folder takes the place of another.

A folder is complete or absent: it is built beside its place and swapped in. `.agent_env.json` lists what the writer
wrote, with digests; a later writing replaces its own files only. What others put there (collated data, tests,
rollouts) moves along, and what they changed is never lost: `--force` sets the former folder aside.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from agent_env.errors import ConfigError

MANIFEST = ".agent_env.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True)
class Former:
    """What lies at the folder's place before writing."""

    exists: bool
    ours: bool
    changed: tuple[str, ...] = ()
    """files that we wrote and somebody edited since, relative"""
    others: tuple[str, ...] = ()
    """files that we never wrote, relative"""


def survey(folder: Path) -> Former:
    """Looks at `folder`; touches nothing."""
    if not folder.is_dir() or folder.is_symlink():
        return Former(exists=os.path.lexists(folder), ours=False)
    if not any(folder.iterdir()):
        return Former(exists=True, ours=True)
    written = _manifest(folder)
    if written is None:
        return Former(exists=True, ours=False)
    files = _files(folder)
    changed = [name for name in files if name in written and _digest(folder / name) != written[name]]
    others = [name for name in files if name not in written and name != MANIFEST]
    return Former(exists=True, ours=True, changed=tuple(changed), others=tuple(others))


def refuse(folder: Path, former: Former) -> None:
    """Raises ConfigError when writing to `folder` without --force would lose somebody's work."""
    if former.exists and not former.ours:
        raise ConfigError(f"{folder} is there and was not written by this command: give another --name, or --force")
    if former.changed:
        names = ", ".join(former.changed[:3]) + (" and others" if len(former.changed) > 3 else "")
        raise ConfigError(
            f"{folder}: {names} changed since it was written: give another --name, or --force to write anew"
        )


@dataclass(slots=True)
class Stage:
    """A folder under construction."""

    path: Path
    aside: Path | None = None
    """where the former folder went, when it holds what the new one does not"""


@contextmanager
def staged(folder: Path, former: Former) -> Iterator[Stage]:
    """A folder to write into, which takes `folder`'s place when the block ends well and vanishes otherwise."""
    made = [parent for parent in folder.parents if not parent.exists()]
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        stage = Stage(Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent)))
    except OSError as error:
        raise ConfigError(f"{folder}: can't write there: {error.strerror or error}") from None
    try:
        yield stage
        stage.path.chmod(0o755)
        _seal(stage.path)
        stage.aside = _swap(stage.path, folder, former)
    except OSError as error:
        raise ConfigError(f"{folder}: can't write it: {error.strerror or error}") from None
    finally:
        shutil.rmtree(stage.path, ignore_errors=True)
        for parent in made:
            with contextlib.suppress(OSError):  # not empty: the folder is in its place
                parent.rmdir()


def _seal(stage: Path) -> None:
    manifest = {"format": _FORMAT, "files": {name: _digest(stage / name) for name in _files(stage)}}
    (stage / MANIFEST).write_bytes(orjson.dumps(manifest, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))


def _swap(stage: Path, folder: Path, former: Former) -> Path | None:
    """Puts `stage` in the folder's place; where the former one stays, if it does."""
    if not former.exists:
        stage.rename(folder)
        return None
    keep = not former.ours or bool(former.changed) or any((stage / name).exists() for name in former.others)
    if former.ours:
        _bring_along(folder, stage, former.others)
    aside = _free_name(folder, "bak") if keep else _free_name(folder.with_name(f".{folder.name}"), "old")
    folder.rename(aside)
    try:
        stage.rename(folder)
    except OSError:
        aside.rename(folder)
        raise
    if keep:
        return aside
    shutil.rmtree(aside, ignore_errors=True)
    return None


def _bring_along(folder: Path, stage: Path, others: tuple[str, ...]) -> None:
    for name in others:
        target = stage / name
        if not os.path.lexists(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(folder / name, target, follow_symlinks=False)


def _free_name(folder: Path, suffix: str) -> Path:
    number = 1
    while os.path.lexists(path := folder.with_name(f"{folder.name}.{suffix}-{number}")):
        number += 1
    return path


def _files(folder: Path) -> list[str]:
    """Files and links below `folder`, relative, sorted; byte code left out."""
    found: list[str] = []
    for root, folders, files in os.walk(folder):
        links = [name for name in folders if (Path(root) / name).is_symlink()]
        folders[:] = [name for name in folders if name != "__pycache__"]
        found += [(Path(root) / name).relative_to(folder).as_posix() for name in (*files, *links)]
    return sorted(found)


def _manifest(folder: Path) -> dict[str, str] | None:
    try:
        content = orjson.loads((folder / MANIFEST).read_bytes())
    except (OSError, orjson.JSONDecodeError):
        return None
    files = content.get("files") if isinstance(content, dict) and content.get("format") == _FORMAT else None
    return files if isinstance(files, dict) else None


def _digest(path: Path) -> str:
    if path.is_symlink() or not path.is_file():
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
