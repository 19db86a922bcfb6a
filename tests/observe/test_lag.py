from __future__ import annotations

import asyncio
import time

import pytest

from agent_env.observe.lag import EVERY, LoopLag

pytestmark = pytest.mark.anyio


async def test_a_loop_that_is_kept_busy_is_late() -> None:
    lag = LoopLag()
    try:
        await asyncio.sleep(0.05)
        time.sleep(EVERY + 0.3)  # noqa: ASYNC251
        await asyncio.sleep(0.05)
        assert 0.3 <= lag.largest < 10
    finally:
        lag.stop()
