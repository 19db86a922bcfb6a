"""What entities may be called. Equal rules on every file system, so that a bundle means the same everywhere."""

from __future__ import annotations

import unicodedata

LOCAL = "@local/"
"""what an id that a bundle declares begins with"""
MAX_ID_BYTES = 4096
JUNK = frozenset({".DS_Store", "Thumbs.db", "desktop.ini", "__pycache__"})
"""never part of an entity's contents"""

_MARKS = frozenset(" ._-~/@()+,&")


def nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def fold(text: str) -> str:
    """Equal for two names that some file system holds to be the same."""
    return nfc(nfc(text).casefold())


def is_ignored(name: str) -> bool:
    """Such entries are never entities."""
    return name.startswith(".") or name == "__pycache__"


def name_problem(name: str) -> str | None:
    """Why a folder name or file stem can't name an entity."""
    if "/" in name:
        return "contains '/'"
    if name != name.strip(" "):
        return "begins or ends with a space"
    return id_problem(name)


def id_problem(text: str) -> str | None:
    """Why this can't be (part of) an id."""
    for char in text:
        if not (char.isalpha() or char.isdecimal() or unicodedata.category(char).startswith("M") or char in _MARKS):
            return f"contains {char!r}; allowed are letters, digits, spaces and . _ - ~ / @ ( ) + , &"
    for segment in text.split("/"):
        if segment in {"", ".", ".."}:
            return "has an empty, '.' or '..' segment"
        if segment != segment.strip(" "):
            return "has a segment that begins or ends with a space"
    if len(text.encode()) > MAX_ID_BYTES:
        return f"is longer than {MAX_ID_BYTES} bytes"
    return None


def declared_id_problem(text: str) -> str | None:
    """Why a toml's `id` is refused."""
    if not text.startswith(LOCAL):
        return f"must begin with {LOCAL!r}"
    return id_problem(text)
