from __future__ import annotations

import os

import modes
import pytest

if isolation := os.environ.get("AGENT_ENV_TEST_ISOLATION"):
    modes.play_in(isolation)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"
