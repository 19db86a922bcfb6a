"""What a test needs from the machine: absent, the test is skipped and says why; where it must be there, it fails."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def must_have(name: str) -> bool:
    """Whether `AGENT_ENV_REQUIRE` (a comma-separated list, set in CI) names it."""
    return name in os.environ.get("AGENT_ENV_REQUIRE", "").replace(" ", "").split(",")


def absent(name: str, reason: str) -> NoReturn:
    """Skip the test, or fail it where `name` must be there."""
    if must_have(name):
        pytest.fail(f"{name} is required here (AGENT_ENV_REQUIRE) and absent: {reason}", pytrace=False)
    pytest.skip(f"{name}: {reason}")
