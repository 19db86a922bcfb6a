"""A bundle's description: the first line of text in its README.md."""

from __future__ import annotations

import re

_COMMENT = re.compile(r"<!--.*?(-->|\Z)", re.DOTALL)
_FRONT_MATTER = re.compile(r"\A---[ \t]*\n.*?^(---|\.\.\.)[ \t]*$\n?", re.DOTALL | re.MULTILINE)
_IMAGE = re.compile(r"!\[[^\]]*\](\([^)]*\)|\[[^\]]*\])")
_EMPTY_LINK = re.compile(r"\[\s*\](\([^)]*\)|\[[^\]]*\])")
_TAG = re.compile(r"</?[A-Za-z][^>]*>")
_REFERENCE = re.compile(r"\[[^\]]+\]:\s*\S+")
_RULE = re.compile(r"[-=*_~`|:\s]*")


def description(text: str) -> str:
    """Front matter, comments, badges (images, alone or linked), HTML tags and rules are skipped."""
    text = _FRONT_MATTER.sub("", text.replace("\r\n", "\n"), count=1)
    for line in _COMMENT.sub("", text).split("\n"):
        line = _EMPTY_LINK.sub("", _IMAGE.sub("", line))
        line = " ".join(_TAG.sub("", line).strip().lstrip("#").split())
        if line and not _RULE.fullmatch(line) and not line.startswith("```") and not _REFERENCE.match(line):
            return line
    return ""
