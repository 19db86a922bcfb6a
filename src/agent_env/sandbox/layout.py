"""The folder of one process sandbox, and the way of paths inside it.

    <id>.json          who owns it and until when; written first, removed last
    <id>/output.<n>    the last of what the env printed
    <id>/root/app      the env's own copy of its folder; where it runs, and where relative paths start
    <id>/root/home     HOME
    <id>/root/tmp      TMPDIR
    <id>/root/data     the SQLite file of DATABASE_URL

An absolute path of `put`, `get` and `exec` is meant from `root`, as it would be in a container.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from agent_env.errors import EpisodeFailure, FailureKind

LOG_NAME = "output"


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of the sandbox `id` under `parent`."""

    parent: Path
    id: str

    @property
    def folder(self) -> Path:
        return self.parent / self.id

    @property
    def owner_file(self) -> Path:
        return self.parent / f"{self.id}.json"

    @property
    def root(self) -> Path:
        return self.folder / "root"

    @property
    def app(self) -> Path:
        return self.root / "app"

    def make(self, source: Path | None, *, owner: str, deadline: float, episode: str) -> None:
        """Write the owner, then the folder with a copy of `source`, or an empty one. Blocks.

        Raises:
            EpisodeFailure: DISK_FULL, or DEPLOY_FAILED with the reason.
        """
        try:
            record = {"owner": owner, "deadline": deadline, "episode": episode}
            unfinished = self.owner_file.with_suffix(".new")
            unfinished.write_text(json.dumps(record))
            unfinished.rename(self.owner_file)
            for name in ("home", "tmp", "data"):
                (self.root / name).mkdir(parents=True)
            if source is None:
                self.app.mkdir()
            else:
                shutil.copytree(source, self.app, ignore=shutil.ignore_patterns(".git", "__pycache__"))
        except (OSError, shutil.Error) as error:
            raise storage_failure(error, f"the sandbox's folder {self.folder}", FailureKind.DEPLOY_FAILED) from error

    def inside(self, path: str) -> Path:
        """Where `path` lies on this machine.

        Raises:
            EpisodeFailure: LOAD_FAILED, it would lead out of the sandbox.
        """
        root = self.root.resolve()
        given = PurePosixPath(path)
        if given.is_relative_to(self.root):
            given = given.relative_to(self.root)
        elif given.is_absolute():
            given = given.relative_to("/")
        else:
            given = "app" / given
        target = Path(os.path.realpath(root / given))
        if not target.is_relative_to(root):
            raise EpisodeFailure(FailureKind.LOAD_FAILED, f"{path!r} leads out of the sandbox")
        return target

    def write(self, path: str, data: bytes, mode: int) -> None:
        """Blocks. Raises `EpisodeFailure`."""
        target = self.inside(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
            with os.fdopen(fd, "wb") as file:
                os.fchmod(fd, mode)
                file.write(data)
        except OSError as error:
            raise storage_failure(error, f"writing {path!r}", FailureKind.LOAD_FAILED) from error

    def read(self, path: str, limit: int) -> bytes:
        """Blocks. Raises `EpisodeFailure`."""
        target = self.inside(path)
        try:
            with target.open("rb") as file:
                data = file.read(limit + 1)
        except OSError as error:
            raise storage_failure(error, f"reading {path!r}", FailureKind.LOAD_FAILED) from error
        if len(data) > limit:
            raise EpisodeFailure(FailureKind.LOAD_FAILED, f"reading {path!r}: it is larger than {limit} bytes")
        return data

    def log_tail(self, limit: int) -> str:
        """The last `limit` bytes the env printed, with a first line that says what was left out. Blocks."""
        parts: list[bytes] = []
        start = end = 0
        for number, (offset, file) in enumerate(self._log_files()):
            data = file.read_bytes()
            start = offset if number == 0 else start
            end = offset + len(data)
            parts.append(data)
        text = b"".join(parts)[-limit:] if limit > 0 else b""
        left_out = max(start, end - limit)
        shown = text.decode(errors="replace")
        return f"[{left_out} earlier bytes left out]\n{shown}" if left_out else shown

    def _log_files(self) -> list[tuple[int, Path]]:
        try:
            files = [(int(file.suffix[1:]), file) for file in self.folder.glob(f"{LOG_NAME}.*")]
        except OSError:
            return []
        return sorted(files)


def storage_failure(error: Exception, what: str, otherwise: FailureKind) -> EpisodeFailure:
    """The failure that an error of the file system means."""
    full = isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)
    reason = (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
    return EpisodeFailure(FailureKind.DISK_FULL if full else otherwise, f"{what}: {reason}")
