"""`.dockerignore`, as Docker reads it: the last pattern that matches a path, or a folder above it, decides."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable


class DockerIgnore:
    """Says which paths of a build context the file keeps out."""

    def __init__(self, text: str = "") -> None:
        self._rules = [rule for line in text.splitlines() if (rule := _rule(line))]

    @property
    def has_exceptions(self) -> bool:
        """Without any, a folder that is kept out need not be looked into."""
        return any(keeps for keeps, _ in self._rules)

    def excludes(self, path: str) -> bool:
        """`path` is relative to the context, POSIX form."""
        spellings = [path, *_parents(path)]
        excluded = False
        for keeps, pattern in self._rules:
            if excluded == keeps and any(pattern.fullmatch(spelling) for spelling in spellings):
                excluded = not keeps
        return excluded


def _rule(line: str) -> tuple[bool, re.Pattern[str]] | None:
    """Whether it is an exception (`!`), and the pattern. A pattern Docker would refuse matches nothing."""
    text = line.strip()
    if not text or line.startswith("#"):
        return None
    keeps = text.startswith("!")
    if keeps:
        text = text[1:].strip()
    if not text:
        return None
    text = posixpath.normpath(text).lstrip("/")
    try:
        return keeps, re.compile(_regex(text), re.DOTALL)
    except re.error:
        return None


def _regex(pattern: str) -> str:
    """Go's filepath.Match, with `**` for any number of folders."""
    out, at = "", 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*" and pattern.startswith("*", at):
            at += 2 if pattern.startswith("/", at + 1) else 1
            out += "(?:.*/)?" if at < len(pattern) else ".*"
        elif char == "*":
            out += "[^/]*"
        elif char == "?":
            out += "[^/]"
        elif char == "[":
            text, at = _class(pattern, at)
            out += text
        else:
            if char == "\\" and at < len(pattern):
                char = pattern[at]
                at += 1
            out += re.escape(char)
    return out


def _class(pattern: str, at: int) -> tuple[str, int]:
    """A character class whose `[` is just before `at`, as a regular expression, and where the pattern goes on."""
    negated = pattern.startswith("^", at)
    at += negated
    ranges: list[str] = []
    while at < len(pattern) and (pattern[at] != "]" or not ranges):
        low, at = _class_char(pattern, at)
        if pattern.startswith("-", at):
            high, at = _class_char(pattern, at + 1)
            ranges.append(f"{re.escape(low)}-{re.escape(high)}")
        else:
            ranges.append(re.escape(low))
    if at >= len(pattern):
        raise re.error("a character class is not closed")
    return f"[{'^' if negated else ''}{''.join(ranges)}]", at + 1


def _class_char(pattern: str, at: int) -> tuple[str, int]:
    if pattern.startswith("\\", at):
        at += 1
    return pattern[at : at + 1], at + 1


def _parents(path: str) -> Iterable[str]:
    while path := path.rpartition("/")[0]:
        yield path
