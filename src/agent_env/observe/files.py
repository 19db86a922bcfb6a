"""A file of whole lines that is rotated: FILE, then FILE.1, the one before it, and so on."""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Sequence
from pathlib import Path

MOST_BYTES = 100_000_000
"""of one file"""
FILES = 5
"""in all, FILE included"""


class Unwritten(Exception):
    """The disk refused lines, `lost` of them."""

    def __init__(self, lost: int, error: OSError) -> None:
        self.lost = lost
        super().__init__(error.strerror or str(error))


class RotatingFile:
    """Appends to `path`, which no other process may do meanwhile. Raises OSError when it can't be opened.

    A line longer than `most_bytes` gets a file of its own. A line that a killed process or a full disk left torn is
    closed, so that what follows begins a new one. A file that somebody moved or removed is made anew. What is no file
    (a pipe, `/dev/null`) is never rotated.
    """

    def __init__(self, path: Path, most_bytes: int = MOST_BYTES, files: int = FILES) -> None:
        self._path = path
        self._most = most_bytes
        self._files = files
        self._fd = self._size = 0
        self._torn = self._rotates = False
        self._identity: tuple[int, int] = 0, 0
        self._open()

    def write(self, lines: Sequence[bytes]) -> None:
        """Raises `Unwritten`; lines before the refused one are in the file."""
        done = 0
        try:
            if self._rotates and not self._there():
                self._reopen()
            while done < len(lines):
                chunk = self._fitting(lines, done)
                if not chunk:
                    self._rotate()
                    continue
                done += self._put(b"".join(chunk))
        except OSError as error:
            raise Unwritten(len(lines) - done, error) from error

    def close(self) -> None:
        os.close(self._fd)

    def _fitting(self, lines: Sequence[bytes], start: int) -> Sequence[bytes]:
        if not self._rotates:
            return lines[start:]
        room, stop = self._most - self._size, start
        while stop < len(lines) and len(lines[stop]) <= room:
            room -= len(lines[stop])
            stop += 1
        return lines[start : max(stop, start + 1 if self._size == 0 else start)]

    def _put(self, data: bytes) -> int:
        """Writes whole lines; how many. When the disk refuses the rest, that is told the next time."""
        if self._torn:
            data = b"\n" + data
        written = 0
        try:
            while written < len(data):
                written += os.write(self._fd, memoryview(data)[written:])
        except OSError:
            if not data[:written].strip(b"\n"):
                raise
        finally:
            self._size += written
            if written:
                self._torn = data[written - 1] != 0x0A
        return data[:written].count(b"\n") - (1 if data.startswith(b"\n") else 0)

    def _rotate(self) -> None:
        # What could not be opened the last time was moved out of the way then.
        if self._path.exists():
            for number in range(self._files - 1, 0, -1):
                newer = rotated(self._path, number - 1)
                if newer.exists():
                    newer.replace(rotated(self._path, number))
        self._reopen()

    def _there(self) -> bool:
        """Whether the file that is open still has its name."""
        try:
            named = os.stat(self._path)
        except FileNotFoundError:
            return False
        return (named.st_dev, named.st_ino) == self._identity

    def _reopen(self) -> None:
        before = self._fd
        self._open()
        os.close(before)

    def _open(self) -> None:
        self._fd, self._size, self._torn = _open(self._path)
        status = os.fstat(self._fd)
        self._identity = status.st_dev, status.st_ino
        self._rotates = stat.S_ISREG(status.st_mode)


def rotated(path: Path, number: int) -> Path:
    """What `path` is called after so many rotations."""
    return path.with_name(f"{path.name}.{number}") if number else path


def _open(path: Path) -> tuple[int, int, bool]:
    """The file, its size, and whether its last line has no end."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        status = os.fstat(fd)
        if stat.S_ISREG(status.st_mode):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        size = status.st_size
        return fd, size, size > 0 and os.pread(fd, 1, size - 1) != b"\n"
    except BaseException:
        os.close(fd)
        raise
