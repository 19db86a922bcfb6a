from __future__ import annotations

import asyncio
import io
import os
import signal
import sys

import pytest

from agent_env.commands.interrupts import run_to_end
from agent_env.errors import ConfigError


async def answer() -> int:
    return 7


def test_it_returns_what_the_work_returns() -> None:
    assert run_to_end(answer()) == 7


async def wrong() -> None:
    raise ConfigError("x")


def test_it_raises_what_the_work_raises() -> None:
    with pytest.raises(ConfigError):
        run_to_end(wrong())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_cancels_once_and_leaves_time_to_tear_down(
    number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    torn_down: list[bool] = []

    async def work() -> None:
        try:
            os.kill(os.getpid(), number)
            await asyncio.sleep(30)
        finally:
            os.kill(os.getpid(), number)
            await asyncio.sleep(0.05)
            torn_down.append(True)

    with pytest.raises(KeyboardInterrupt):
        run_to_end(work())
    assert torn_down == [True]
    said = capsys.readouterr().err.splitlines()
    assert said == ["interrupted: removing what was started", "still removing what was started"]


def test_it_works_with_nobody_left_to_read_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gone(io.StringIO):
        def write(self, text: str) -> int:
            raise BrokenPipeError

    async def work() -> None:
        monkeypatch.setattr(sys, "stderr", Gone())
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(30)

    with pytest.raises(KeyboardInterrupt):
        run_to_end(work())


def test_work_that_ends_in_spite_of_a_signal_has_its_result() -> None:
    async def work() -> str:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(30)
        except asyncio.CancelledError:
            return "done"
        return "never"

    assert run_to_end(work()) == "done"
