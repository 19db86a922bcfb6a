from __future__ import annotations

import json
from pathlib import Path

from benchmarks.results import markdown

ROOT = Path(__file__).parents[2]


def test_the_page_shows_what_was_measured() -> None:
    """`python -m benchmarks --markdown` prints the table."""
    held = json.loads((ROOT / "benchmarks" / "results.json").read_text())
    assert markdown(held) in (ROOT / "docs" / "performance.md").read_text()
