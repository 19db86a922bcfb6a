"""Plain tables for terminals and logs."""

from __future__ import annotations

import re
from collections.abc import Sequence

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


def align(rows: Sequence[Sequence[str]], left: Sequence[int] = (0,)) -> str:
    """Rows of cells as lines: columns two blanks apart, those in `left` to the left and the others to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    )


def plain(text: str) -> str:
    """Text of others as a terminal can show it: what would steer it, or can't be written, stands as an escape."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text)
