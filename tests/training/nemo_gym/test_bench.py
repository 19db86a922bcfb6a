"""`bench` against a resources server whose OpenEnv server is a stub, and against both real servers."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stubs.gym_client import row
from stubs.processes import chain
from stubs.stub_bundle import write_stub_bundle
from stubs.stub_openenv import Knobs, StubOpenEnv
from stubs.stub_taskapi import served

from agent_env.training.nemo_gym.cli import main
from agent_env.training.nemo_gym.folder import FolderConfig
from agent_env.training.nemo_gym.options import ServeOptions
from agent_env.training.nemo_gym.server import build_server


@contextmanager
def resources(stub: StubOpenEnv, **options: object) -> Iterator[str]:
    with served(stub) as upstream:
        folder = FolderConfig(name="stub_v1", openenv_url=upstream, env=stub.env)
        with served(build_server(folder, ServeOptions(**options))) as url:  # type: ignore[arg-type]
            yield url


@pytest.fixture
def rows(tmp_path: Path) -> str:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row(index=index)) + "\n" for index in range(6)))
    return str(path)


def test_tells_levels_phases_and_settings(rows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "deep/bench.json"
    stub = StubOpenEnv(Knobs(start_s=0.02, verify_s=0.01))
    with resources(stub) as url:
        flags = ["--levels", "1,2", "--seconds", "0.2", "--out", str(out)]
        assert main(["bench", url, "--rows", rows, *flags]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].split()[:4] == ["at", "once", "rollouts", "per"]
    assert [line.split()[0] for line in lines[1:3]] == ["1", "2"]
    for setting in ("max_inflight", "--max-concurrent-envs", "--warm", "request_timeout", "This box sustains"):
        assert setting in shown.out
    assert "8 places" in shown.err
    told = json.loads(out.read_text())
    assert [(level["concurrency"], level["held"]) for level in told["levels"]] == [(1, False), (2, False), (8, True)]
    assert stub.most_running == 8, "those that were held ran all at once"
    for level in told["levels"]:
        assert level["clean"]
        assert level["timings"]["deploy_s"] == 0.5
        assert level["seconds"]["ready"]["median"] >= 0.01
        assert level["seconds"]["verify"]["median"] >= 0.01
    assert told["settings"]["max_inflight"] >= 8
    assert not stub.calls, "a null rollout calls no tool"
    assert len(stub.replies) == stub.ended


def test_concurrency_doubles_until_the_rate_stops_rising(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    with resources(StubOpenEnv(Knobs(start_s=0.05), places=2)) as url:
        assert main(["bench", url, "--rows", rows, "--seconds", "0.3"]) == 0
    shown = capsys.readouterr()
    tried = [int(line.split()[0]) for line in shown.err.splitlines() if "at once:" in line]
    assert tried[:3] == [1, 2, 4]
    assert tried[-1] < 1024
    assert "2 places" in shown.out


def test_faults_end_the_rise_and_are_told(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    stub = StubOpenEnv(Knobs(start_s=0.05), places=2, queue=0)
    with resources(stub, reset_timeout=0.01) as url:
        assert main(["bench", url, "--rows", rows, "--seconds", "0.2"]) == 0
    shown = capsys.readouterr()
    assert " at once: masked: capacity" in shown.err
    assert "This box sustains" in shown.out


def test_a_first_rollout_that_fails_ends_it_with_the_reason(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    with resources(StubOpenEnv(Knobs(fail={"start": ("deploy_failed", "no image")}))) as url:
        assert main(["bench", url, "--rows", rows]) == 1
    assert "deploy_failed: no image" in capsys.readouterr().err


def test_no_server_is_one_line(rows: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "http://127.0.0.1:9", "--rows", rows]) == 1
    assert "http://127.0.0.1:9" in capsys.readouterr().err


@pytest.mark.integration
def test_a_real_chain_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bundle = write_stub_bundle(tmp_path / "stub-v1")
    with chain(bundle, tmp_path / "gym-root", openenv=["--max-concurrent-envs", "4"]) as running:
        flags = ["--rows", str(running.folder / "data/train.jsonl"), "--levels", "1,4", "--seconds", "1"]
        assert main(["bench", running.url, *flags, "--out", str(tmp_path / "bench.json")]) == 0
    told = json.loads((tmp_path / "bench.json").read_text())
    for level in told["levels"]:
        assert level["clean"]
        assert 0 < level["timings"]["deploy_s"] <= level["seconds"]["total"]["p99"]
        assert level["timings"]["verify_s"] > 0
    assert "4 places" in capsys.readouterr().err
