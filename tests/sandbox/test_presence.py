from __future__ import annotations

from pathlib import Path

import pytest

from agent_env.sandbox.presence import Presence, somebody_is_present

HOST = "unix:///a.sock"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_STATE", str(tmp_path))


def test_nobody_is_present_at_first() -> None:
    assert not somebody_is_present(HOST)


def test_several_may_be_present_at_once_until_the_last_has_left() -> None:
    first, second = Presence(HOST), Presence(HOST)
    first.close()
    first.close()
    assert somebody_is_present(HOST)
    second.close()
    assert not somebody_is_present(HOST)


def test_presence_is_at_one_daemon() -> None:
    here = Presence(HOST)
    assert not somebody_is_present("tcp://10.0.0.7:2375")
    here.close()
