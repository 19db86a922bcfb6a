"""Seconds of what `tests/soak/test_soak_tallies.py` does for minutes."""

from __future__ import annotations

from pathlib import Path

import pytest
from stubs.tally_run import run_and_compare

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.timeout(120)]


async def test_metrics_log_and_summaries_tell_the_same(tmp_path: Path) -> None:
    told = await run_and_compare(tmp_path, seconds=8, players=12, on_sandboxes=2)
    assert told["stub"]["counts"]["seeded"] > 20
