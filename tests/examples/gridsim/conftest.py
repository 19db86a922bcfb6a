from __future__ import annotations

import pytest

from agent_env.examples.gridsim.prices import Day, synthetic_days


@pytest.fixture(scope="session")
def days() -> tuple[Day, ...]:
    return synthetic_days()
