"""Regular expressions, searched for where they can be stopped: see `pattern_grader`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

GRADER = Path(__file__).with_name("pattern_grader.py")


@dataclass(frozen=True, slots=True)
class Search:
    """One pattern in one text. `flags` are those of `re`."""

    pattern: str
    text: str
    flags: int = 0


class Verifies(Protocol):
    """What runs graders; see `agent_env.grading.pool.GraderPool`."""

    async def verify(
        self, source: Path, mcp_url: str, run: Any, *, step_id: str, timeout: float
    ) -> list[dict[str, Any]]: ...


async def search(grader: Verifies, searches: Sequence[Search], *, step_id: str, timeout: float) -> list[bool | str]:
    """Whether each pattern is found, or what is wrong with it.

    Raises:
        EpisodeFailure: VERIFIER_TIMEOUT, VERIFIER_ERROR or SERVER_SHUTDOWN.
    """
    if not searches:
        return []
    wanted = [{"pattern": item.pattern, "text": item.text, "flags": item.flags} for item in searches]
    message = {"role": "user", "text": json.dumps(wanted)}
    run = {"turns": [{"number": 1, "message": message, "reply": None}]}
    rows = await grader.verify(GRADER, "", run, step_id=step_id, timeout=timeout)
    return [str(row["error"]) if "error" in row else row["found"] is True for row in rows]


def flags_of(names: Sequence[str] | None) -> int:
    """Flags by name, such as `IGNORECASE`; by default `.` stands for line ends too. Raises KeyError."""
    if names is None:
        return int(re.DOTALL)
    flags = 0
    for name in names:
        flags |= int(re.RegexFlag[name])
    return flags
