from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agent_env.errors import ConfigError
from agent_env.examples.gridsim import policies as gridsim
from agent_env.policies import KNOWN, find_policy


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_policy_module.py").write_text("async def good(play):\n    pass\n\ndef plain(play):\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "a_policy_module", raising=False)


@pytest.mark.parametrize("name", KNOWN)
def test_gridsims_are_known_by_name(name: str) -> None:
    assert find_policy(name) is getattr(gridsim, name)


def test_others_are_named_by_module_and_function() -> None:
    assert find_policy("a_policy_module:good").__name__ == "good"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("clever", "no policy 'clever': known are idle, greedy"),
        ("nowhere_at_all:x", "can't import nowhere_at_all"),
        ("a_policy_module:bad", "a_policy_module has no 'bad'"),
        ("a_policy_module:plain", "is not an `async def policy"),
    ],
)
def test_what_is_none_is_refused(name: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        find_policy(name)
