from __future__ import annotations

import json
from pathlib import Path

import pytest
from stubs.processes import OPENENV, finished

pytestmark = pytest.mark.integration


def test_it_says_what_would_go_then_removes_it_then_finds_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "sandboxes" / ("a" * 32)
    folder.mkdir(parents=True)
    machine = "0" * 16
    record = {"owner": f"{machine}.boot.1.2.3", "deadline": 1.0, "episode": "e"}
    folder.with_suffix(".json").write_text(json.dumps(record))
    env = {"AGENT_ENV_STATE": str(tmp_path), "DOCKER_HOST": "unix:///nowhere.sock"}

    dry = finished(OPENENV, "gc", "--dry-run", env=env)
    assert dry.process.returncode == 0, dry.log
    assert dry.out.splitlines() == [f"would remove sandbox folder {folder}", "to remove: 1 sandbox folder"]
    assert "skipped Docker: provider_unavailable" in dry.log
    assert folder.exists()

    done = finished(OPENENV, "gc", env=env)
    assert done.out.splitlines() == [f"removed sandbox folder {folder}", "removed: 1 sandbox folder"]
    assert not folder.exists()
    assert finished(OPENENV, "gc", env=env).out == "nothing to remove\n"
