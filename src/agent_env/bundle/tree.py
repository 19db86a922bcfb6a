"""Reading a bundle's folder: entries in name order, links followed only while they stay inside."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from agent_env.bundle.names import JUNK, nfc
from agent_env.bundle.problems import Problems


@dataclass(frozen=True, slots=True)
class Node:
    """A file or folder of the bundle."""

    name: str
    """NFC-normalised"""
    path: str
    """inside the bundle, POSIX form; empty for the bundle itself"""
    real: str
    """where to read it, links followed"""
    is_dir: bool

    @property
    def stem(self) -> str:
        return self.name.rpartition(".")[0]

    @property
    def suffix(self) -> str:
        dot, suffix = self.name.rpartition(".")[1:]
        return dot + suffix


class Tree:
    """One bundle's files. What can't be read becomes a problem and is left out."""

    def __init__(self, root: str, problems: Problems) -> None:
        real = os.path.realpath(root)
        self.root = Node(name=nfc(os.path.basename(real)), path="", real=real, is_dir=True)
        self._problems = problems
        self._hashes: dict[str, bytes] = {}

    def names(self, folder: Node) -> list[str]:
        """Every entry's name, links not followed."""
        return sorted(nfc(name) for name in os.listdir(folder.real))

    def children(self, folder: Node, wanted: Callable[[str], bool] = lambda name: True) -> list[Node]:
        """Entries whose (NFC) name is wanted, sorted by name."""
        found = []
        with os.scandir(folder.real) as entries:
            for entry in entries:
                name = nfc(entry.name)
                if wanted(name) and (node := self._node(folder, name, entry)):
                    found.append(node)
        return sorted(found, key=lambda node: node.name)

    def walk(self, folder: Node, closed: Callable[[Node], bool] = lambda node: False) -> Iterator[Node]:
        """Every file below; junk (`__pycache__`, .DS_Store) is not part of it. `closed` folders aren't looked into."""
        yield from self._walk(folder, closed, (folder.real,))

    def read(self, node: Node) -> bytes | None:
        """None, and a problem, when it can't be read."""
        try:
            with open(node.real, "rb") as file:
                data = file.read()
        except OSError as error:
            self._problems.add(node.path, f"can't be read: {error.strerror}")
            return None
        self._hashes[node.real] = hashlib.sha256(data).digest()
        return data

    def text(self, node: Node) -> str | None:
        """UTF-8, a byte order mark taken off."""
        data = self.read(node)
        if data is None:
            return None
        try:
            return data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            self._problems.add(node.path, f"not UTF-8: byte {data[error.start]:#04x} at offset {error.start}")
            return None

    def sha256(self, node: Node) -> bytes:
        """Of the contents, each file read once."""
        if (known := self._hashes.get(node.real)) is not None:
            return known
        try:
            with open(node.real, "rb") as file:
                digest = hashlib.file_digest(file, "sha256").digest()
        except OSError as error:
            self._problems.add(node.path, f"can't be read: {error.strerror}")
            return b""
        self._hashes[node.real] = digest
        return digest

    def mode(self, node: Node) -> int:
        """Who may read and run the file. Write bits differ with a machine's umask and change nothing in an image."""
        return stat.S_IMODE(os.stat(node.real).st_mode) & 0o555

    def _walk(self, folder: Node, closed: Callable[[Node], bool], holders: tuple[str, ...]) -> Iterator[Node]:
        for node in self.children(folder, lambda name: name not in JUNK):
            if not node.is_dir:
                yield node
            elif any(f"{holder}/".startswith(f"{node.real}/") for holder in holders):
                self._problems.add(node.path, "links back to a folder that holds it")
            elif not closed(node):
                yield from self._walk(node, closed, (*holders, node.real))

    def _node(self, folder: Node, name: str, entry: os.DirEntry[str]) -> Node | None:
        path = f"{folder.path}/{name}" if folder.path else name
        real = f"{folder.real}/{entry.name}"
        if not name.isascii() and not _decodable(name):
            self._problems.add(path, "the name isn't UTF-8")
            return None
        if entry.is_symlink():
            return self._followed(name, path, real)
        if entry.is_dir(follow_symlinks=False):
            return Node(name, path, real, is_dir=True)
        if entry.is_file(follow_symlinks=False):
            return Node(name, path, real, is_dir=False)
        self._problems.add(path, "neither a regular file nor a folder")
        return None

    def _followed(self, name: str, path: str, link: str) -> Node | None:
        real = os.path.realpath(link)
        if real != self.root.real and not real.startswith(self.root.real.rstrip("/") + "/"):
            self._problems.add(path, "links to something outside the bundle; put a copy of it inside")
        elif os.path.isdir(real):
            return Node(name, path, real, is_dir=True)
        elif os.path.isfile(real):
            return Node(name, path, real, is_dir=False)
        elif os.path.lexists(real):
            self._problems.add(path, "neither a regular file nor a folder")
        else:
            self._problems.add(path, "a broken link")
        return None


def _decodable(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
