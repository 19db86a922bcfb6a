"""The documentation as data: its fenced blocks with the mark that stands before each, and the commands in them.

A block of commands carries a comment before its fence that says who runs it:

    <!-- run -->                        tests/docs/test_pages_run.py, in the page's order
    <!-- covered: tests/x/test_y.py --> that test
    <!-- parsed -->                     nobody: it needs what a test can't have; its flags are checked
    <!-- gpu -->                        nobody: it needs GPUs, and its first line says so
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
README = REPOSITORY / "README.md"

OURS = ("agent-env", "python -m agent_env")
_MARK = re.compile(r"<!--\s*([a-z]+)(?::\s*(.*?))?\s*-->")
_FENCE = re.compile(r"( *)```([a-z]*)(.*)")
_COMMENT = re.compile(r"(?:^|\s)#.*")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    text: str
    mark: str | None
    told: str
    """what follows the mark's colon"""

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(REPOSITORY)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Its logical lines: continued ones joined, comments and blank lines left out."""
        joined = re.sub(r"\\\n\s*", " ", self.text)
        lines = (_COMMENT.sub("", line).strip() for line in joined.splitlines())
        return [line for line in lines if line]


def pages() -> list[Path]:
    return [README, *sorted(DOCS.rglob("*.md"))]


def blocks(page: Path) -> list[Block]:
    return list(_blocks(page))


def _blocks(page: Path) -> Iterator[Block]:
    before, opened = "", None
    inside: list[str] = []
    for number, line in enumerate(page.read_text("utf-8").splitlines(), start=1):
        fence = _FENCE.fullmatch(line)
        if opened is None and fence:
            opened = (number, fence[1], fence[2], _MARK.fullmatch(before.strip()))
            inside = []
        elif opened is not None and line.strip() == "```":
            start, indent, language, mark = opened
            text = "\n".join(each.removeprefix(indent) for each in inside)
            yield Block(page, start, language, text, mark and mark[1], (mark and mark[2]) or "")
            opened = None
        elif opened is not None:
            inside.append(line)
        before = line
    assert opened is None, f"{page}: the block that begins in line {opened and opened[0]} has no end"


def our_commands() -> Iterator[tuple[str, list[str]]]:
    """(where, words) of every call of one of our commands in any block, synopses like `BUNDLE [flags]` left out."""
    for page in pages():
        for block in blocks(page):
            for command in block.commands if block.language in ("", "bash", "sh", "console") else ():
                words = command_words(command)
                if words:
                    yield block.where, words


def command_words(command: str) -> list[str]:
    """The words from our command's name on; empty when the line is none of ours, or a synopsis."""
    if any(mark in command for mark in ("[flags]", "<", "...", "…")):
        return []
    try:
        words = shlex.split(command)
    except ValueError:
        return []
    while words and re.fullmatch(r"[A-Z_]+=.*", words[0]):
        words = words[1:]
    if words[:1] == ["agent-env"]:
        return words
    if words[:2] == ["python", "-m"] and words[2:3] and words[2].startswith("agent_env"):
        return words
    return []
