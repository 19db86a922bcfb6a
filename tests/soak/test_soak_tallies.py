"""`/metrics`, the episode log and the summaries tell the same, after minutes in which everything went wrong.

AGENT_ENV_TALLIES_MINUTES=10 python -m pytest -s tests/soak/test_soak_tallies.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from stubs.tally_run import run_and_compare

MINUTES = float(os.environ.get("AGENT_ENV_TALLIES_MINUTES", "10"))

pytestmark = [
    pytest.mark.anyio,
    pytest.mark.integration,
    pytest.mark.timeout(MINUTES * 60 + 300),
    pytest.mark.soak,
]


async def test_metrics_log_and_summaries_tell_the_same_after_minutes(tmp_path: Path) -> None:
    print(await run_and_compare(tmp_path, seconds=MINUTES * 60, players=60, on_sandboxes=4))
