"""The same policy earns the same in `agent-env run` and over HTTP, through both servers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from stubs.processes import NEMO_GYM, OPENENV, chain, finished

from agent_env.examples.gridsim.bundle import write_bundle
from agent_env.examples.gridsim.prices import synthetic_days

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]

DAYS = [day for day in synthetic_days() if day.split == "eval"][:3]


@pytest.mark.parametrize("policy", ["random", "broken"])
def test_run_and_play_agree(tmp_path: Path, policy: str) -> None:
    bundle = write_bundle(tmp_path / "gridsim-v1", days=DAYS)
    run = finished(
        OPENENV, "run", str(bundle), "--policy", policy, "--sandbox", "process", "--out", str(tmp_path / "run.jsonl")
    )
    assert run.process.returncode == 0, run.log
    with chain(bundle, tmp_path / "gym-root") as running:
        rows = running.folder / "data" / "eval.jsonl"
        out = tmp_path / "play.jsonl"
        play = finished(NEMO_GYM, "play", running.url, "--rows", str(rows), "--policy", policy, "--out", str(out))
    assert play.process.returncode == 0, play.log
    here = {line["task"]: line["scores"]["grade"] for line in lines(tmp_path / "run.jsonl")}
    there = {line["row"]: line["reward"] for line in lines(out)}
    assert here == there
    assert len(here) == len(DAYS)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]
