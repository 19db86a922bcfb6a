"""Faults are collected while reading and raised together."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from typing import Any

from agent_env.bundle.names import fold
from agent_env.errors import BundleError

_HINT_LIMIT = 500
"""names to compare with; thousands would take seconds for a file of typing errors"""
_UNSHOWN = {"Cc", "Cf", "Cs", "Zl", "Zp"}


class Problems:
    """Lines of the form `<path in bundle>: <why>`."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, path: str, why: str) -> None:
        self._lines.append(f"{shown(path)}: {why}")

    def __len__(self) -> int:
        return len(self._lines)

    def raise_any(self) -> None:
        if self._lines:
            raise BundleError(self._lines)


def brief(value: Any) -> str:
    """A value from a file, as a problem line shows it."""
    words = {None: "null", True: "true", False: "false"}
    text = words[value] if value is None or isinstance(value, bool) else shown(repr(value))
    return text if len(text) <= 60 else f"{text[:57]}..."


def shown(text: str) -> str:
    """Text on one printable line: control characters and undecodable bytes as escapes."""
    if text.isprintable():
        return text
    return "".join(
        char.encode("unicode_escape").decode() if unicodedata.category(char) in _UNSHOWN else char for char in text
    )


class Known:
    """The names of a bundle's entities of one kind; says why another name is not among them."""

    def __init__(self, noun: str, names: Iterable[str]) -> None:
        self._noun = noun
        self._names = frozenset(names)
        self._folded = {fold(name): name for name in self._names}

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def missing(self, name: str) -> str:
        if other := self._folded.get(fold(name)):
            return f"{brief(name)} isn't in this bundle, but {brief(other)} is; names are case-sensitive"
        return f"no {self._noun} {brief(name)} in this bundle{hint(name, self._names)}"


def hint(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` when something known is near, else nothing."""
    candidates = sorted(known)
    near = difflib.get_close_matches(word, candidates, n=1) if len(candidates) <= _HINT_LIMIT else []
    return f"; did you mean {near[0]!r}?" if near else ""


def listed(words: Iterable[str]) -> str:
    """`a, b and c`."""
    *rest, last = words
    return f"{', '.join(rest)} and {last}" if rest else last
