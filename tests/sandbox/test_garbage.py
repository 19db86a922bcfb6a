from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent_env.sandbox.fork_host import folders
from agent_env.sandbox.garbage import Item, collect
from agent_env.sandbox.ownership import owner
from agent_env.sandbox.process import sandboxes_dir

pytestmark = pytest.mark.anyio

NOBODY = "unix:///nowhere/docker.sock"


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("DOCKER_HOST", NOBODY)


def sandbox(name: str, owned_by: str) -> Path:
    """What a killed server and keeper leave of a process sandbox."""
    folder = sandboxes_dir() / name
    (folder / "root").mkdir(parents=True)
    record = {"owner": owned_by, "deadline": 4e9, "episode": "e"}
    folder.with_suffix(".json").write_text(json.dumps(record))
    return folder


def dead_owner() -> str:
    machine, boot, namespace, pid, start = owner().split(".")
    return f"{machine}.{boot}.{namespace}.{pid}.{int(start) + 1}"


async def test_a_dead_owners_folder_goes_and_a_live_ones_stays() -> None:
    gone, kept = sandbox("a" * 32, dead_owner()), sandbox("b" * 32, owner())
    looked = await collect(dry_run=True)
    assert looked.items == [Item("sandbox folder", str(gone))]
    assert gone.exists(), "a dry run only looks"
    assert (await collect(dry_run=False)).items == looked.items
    assert not gone.exists()
    assert kept.exists()
    assert (await collect(dry_run=False)).items == []


async def test_folders_of_forks_go_with_their_owner() -> None:
    gone, kept = folders() / "gone", folders() / "kept"
    for folder, owned_by in ((gone, dead_owner()), (kept, owner())):
        folder.mkdir()
        (folder / "owner").write_text(owned_by)
    assert (await collect(dry_run=False)).items == [Item("sandbox folder", str(gone))]
    assert [gone.exists(), kept.exists()] == [False, True]


async def test_a_daemon_that_does_not_answer_is_skipped_and_said() -> None:
    (skipped,) = (await collect(dry_run=False)).skipped
    assert skipped.startswith(f"Docker: provider_unavailable: Docker at {NOBODY} does not answer")


async def test_a_daemon_that_can_not_be_spoken_to_is_skipped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DOCKER_HOST", "ssh://somewhere")
    (skipped,) = (await collect(dry_run=True)).skipped
    assert "ssh is not supported" in skipped
