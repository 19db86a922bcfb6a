"""Run by the graders' processes, not by ours: regular expressions over texts that a model wrote.

A pattern can take for ever, and Python's `re` can't be interrupted: in a grader's process there is a deadline for it.
"""

import json
import re
from typing import Any


async def verify(mcp_url: str, run: Any) -> list[dict[str, object]]:
    """A row for each search of the request: `found`, or the pattern's `error`."""
    return [_search(**search) for search in json.loads(run.turns[0].message.text)]


def _search(pattern: str, text: str, flags: int) -> dict[str, object]:
    try:
        return {"found": re.search(pattern, text, flags) is not None}
    except re.error as error:
        return {"error": str(error)}
