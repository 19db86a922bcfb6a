"""An env's command, taken apart for a fork server: its interpreter runs the server, the rest runs in each fork."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass

_INTERPRETER = re.compile(r"(.*/)?python(\d+(\.\d+)?)?")
_OPTION = re.compile(r"-[bBdEiIOPqsSuvx]+")
_WITH_VALUE = re.compile(r"-[bBdEiIOPqsSuvx]*[WX](.*)")
_PLAIN_SHELL = re.compile(r"[\w\s./:=@,+%-]+")


@dataclass(frozen=True, slots=True)
class Launch:
    """A command, taken apart."""

    interpreter: str
    """what the fork server is run with"""
    options: tuple[str, ...]
    words: tuple[str, ...]
    """behind interpreter and options; the whole command where it names no interpreter"""
    python: bool
    """whether it names one"""
    user: str | None = None
    """whom the image runs it as"""


def take_apart(argv: Sequence[str], *, user: str | None = None) -> Launch:
    """`argv` as a Dockerfile's CMD gives it; one that is a single command for a shell is looked into."""
    words = tuple(argv)
    if len(words) == 3 and words[0] in ("/bin/sh", "sh") and words[1] == "-c" and _PLAIN_SHELL.fullmatch(words[2]):
        inner = shlex.split(words[2])
        inner = inner[1:] if inner[:1] == ["exec"] else inner
        words = tuple(inner) if inner and "=" not in inner[0] else words
    if not words or not _INTERPRETER.fullmatch(words[0]):
        return Launch("python3", (), words, python=False, user=user)
    end = 1
    while end < len(words):
        if (match := _WITH_VALUE.fullmatch(words[end])) is not None:
            end += 1 if match[1] else 2
        elif _OPTION.fullmatch(words[end]):
            end += 1
        else:
            break
    if end >= len(words):
        return Launch(words[0], (), words, python=False, user=user)
    return Launch(words[0], words[1:end], words[end:], python=True, user=user)
