from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent_env.observe.history import History
from agent_env.observe.log import EpisodeLog
from agent_env.observe.times import Times
from agent_env.observe.watcher import Watcher
from agent_env.openenv import hub
from agent_env.training.nemo_gym import session
from benchmarks.switched import Switched, Unnoted, switch


@pytest.fixture
def observers(tmp_path: Path) -> Iterator[Switched]:
    kept = EpisodeLog(tmp_path / "e.jsonl")
    yield Switched(Watcher(Times("wait"), logging.getLogger("test")), kept)
    switch("both")
    Switched.made.clear()
    kept.close()


def test_what_a_session_notes_can_be_left_out() -> None:
    """Those that only a record needs are not asked for: without observers there is none."""
    noted = {name for name, value in vars(History).items() if callable(value) and not name.startswith("_")}
    assert noted - set(vars(Unnoted)) == {"took", "phases"}


def test_a_server_switches_between_its_observers(observers: Switched) -> None:
    assert (bool(observers), observers.full) == (True, True)
    switch("metrics")
    assert (bool(observers), observers.full) == (True, False)
    assert session.History is hub.History is History  # type: ignore[attr-defined]
    switch("neither")
    assert (bool(observers), observers.full) == (False, False)
    unnoted = session.History(observers, time.monotonic)  # type: ignore[attr-defined]
    assert isinstance(unnoted, Unnoted)
    assert session.History is hub.History  # type: ignore[attr-defined]
    switch("both")
    assert (bool(observers), observers.full) == (True, True)
