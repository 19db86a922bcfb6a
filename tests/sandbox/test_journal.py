from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_env.sandbox.journal import Journal, remove_journals_of_the_dead
from agent_env.sandbox.ownership import owner


def test_the_journal_says_which_episode_a_sandbox_serves_and_goes_with_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_ENV_STATE", str(tmp_path))
    journal = Journal()
    journal.hand_over("sandbox 1", "episode 1")
    journal.hand_over("sandbox 2", "episode 2")
    (file,) = (tmp_path / "journal").iterdir()
    assert [json.loads(line)["episode"] for line in file.read_text().splitlines()] == ["episode 1", "episode 2"]
    journal.close()
    assert not list((tmp_path / "journal").iterdir())


def test_the_journals_of_dead_owners_go_and_those_of_the_living_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENT_ENV_STATE", str(tmp_path))
    Journal().hand_over("sandbox", "episode")
    *same, _ = owner().split(".")
    dead = tmp_path / "journal" / ".".join([*same, "1"])
    dead.write_text("{}\n")
    remove_journals_of_the_dead()
    assert [file.name for file in (tmp_path / "journal").iterdir()] == [owner()]
