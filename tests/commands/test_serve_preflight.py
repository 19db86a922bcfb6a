from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
from stubs.processes import OPENENV
from stubs.stub_bundle import write_stub_bundle

pytestmark = pytest.mark.integration


def test_a_server_says_at_its_start_what_the_machine_lacks_and_serves_all_the_same(tmp_path: Path) -> None:
    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))

    path = write_stub_bundle(tmp_path / "stub-v1")
    flags = ["--port", "0", "--sandbox", "process", "--max-concurrent-envs", "96"]
    serving = subprocess.Popen(
        [sys.executable, "-m", OPENENV, "serve", str(path), *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=few_files,
    )
    assert serving.stdout is not None
    try:
        assert serving.stdout.readline().startswith(f"serving {path} at http://127.0.0.1:")
    finally:
        serving.terminate()
        _, log = serving.communicate(timeout=30)
    (line,) = [line for line in log.splitlines() if "preflight" in line]
    assert "ERROR   preflight: error: open files: this process may open 400, and 96 episodes may need 1664" in line
