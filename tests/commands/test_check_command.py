"""`agent-env check` as a process."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import modes
import pytest
from stubs.processes import OPENENV, finished
from stubs.stub_bundle import stub_task, write_stub_bundle, write_stub_env

pytestmark = pytest.mark.integration

TOOLS = json.dumps([{"name": "add", "inputSchema": {"type": "object"}}])


def bundle(folder: Path, **more: Any) -> Path:
    return write_stub_bundle(folder / "stub-v1", **{"env_vars": {"STUB_TOOLS": TOOLS}, **more})


def check(path: Path, *flags: str) -> tuple[int, str, str]:
    done = finished(OPENENV, "check", str(path), "--sandbox", "process", *flags)
    assert "Traceback" not in done.log, done.log
    return done.process.returncode, done.out, done.log


def test_a_good_bundle_is_ready_for_training(tmp_path: Path) -> None:
    code, out, log = check(bundle(tmp_path))
    assert code == 0
    *done, verdict = out.splitlines()
    assert [line.split()[0] for line in done] == ["ok"] * (5 if modes.FORKED else 4)
    assert "read 3 tasks, 1 env, 1 eval" in done[0]
    assert "this machine takes 8 episodes at once (process sandbox)" in done[1]
    assert "env stub is built" in done[2]
    assert "task train-0000 played with 1 tool" in done[3]
    assert "graded twice alike (grade 0.0000)" in done[3]
    assert verdict == "stub-v1: ready for training"
    assert "playing train-0000" in log


def test_every_finding_has_a_place_and_a_remedy_and_the_exit_code_tells(tmp_path: Path) -> None:
    steps = stub_task(0.5)
    steps[3]["max_turnz"] = 3
    path = bundle(tmp_path, tasks={"a": steps, "b": stub_task(0)[:-1]})
    (path / "artifacts/verify/verify.py").write_text(
        "import random\nasync def verify(url):\n    return [{'result': False, 'score': random.random()}]\n"
    )
    code, out, _ = check(path)
    assert code == 1
    lines = out.splitlines()
    found = [(line, lines[place + 1]) for place, line in enumerate(lines) if line.startswith("error")]
    assert [line.split(": ")[0].split()[1] for line, _ in found] == ["tasks/a.json", "tasks/b.json", "tasks/a.json"]
    assert "unknown key 'max_turnz'" in found[0][0]
    assert "can't be scored" in found[1][0]
    assert "scored the same state" in found[2][0]
    assert all(remedy.startswith("         -> ") for _, remedy in found)
    assert lines[-1] == "stub-v1: not ready for training: 3 errors"


def test_the_report_is_one_json_object_on_stdout(tmp_path: Path) -> None:
    code, out, _ = check(bundle(tmp_path, env_vars={"STUB_EXIT_AT_START": "3"}), "--json")
    report = json.loads(out)
    assert (code, report["ok"], report["bundle"], report["tasks"]) == (1, False, "stub-v1", 3)
    assert len(report["digest"]) == 64
    (finding,) = report["findings"]
    assert finding["level"] == "error"
    assert finding["where"] == "tasks/train-0000.json (envs/stub)"
    assert "exit code 3" in finding["problem"]
    assert finding["remedy"]
    assert report["played"][0]["task"] == "train-0000"


def test_one_task_of_each_toolset_is_played_and_with_all_every_task(tmp_path: Path) -> None:
    tasks = {f"t{n}": stub_task(0) for n in range(3)}
    tasks["u"] = [
        {**step, **({"env_id": "other"} if "env_id" in step else {"env_ids": ["other"]} if "env_ids" in step else {})}
        for step in stub_task(0)
    ]
    tasks["u"][1]["directives"][0]["service"] = "other"
    path = bundle(tmp_path, tasks=tasks)
    write_stub_env(path / "envs/other", env_vars={"STUB_TOOLS": TOOLS})
    (path / "envs/other/env.toml").write_text('environment_name = "other"\n')
    for flags, played in (([], ["t0", "u"]), (["--all"], ["t0", "t1", "t2", "u"])):
        code, out, _ = check(path, "--json", *flags)
        report = json.loads(out)
        assert (code, [task["task"] for task in report["played"]]) == (0, played), report


def test_graders_that_were_not_run_are_noted(tmp_path: Path) -> None:
    tasks = {"a": stub_task(0), "b": stub_task(0)}
    tasks["b"][-1]["file_artifact_id"] = "other"
    path = bundle(tmp_path, tasks=tasks)
    (path / "artifacts/other").mkdir()
    (path / "artifacts/other/verify.py").write_text("async def verify(url):\n    return []\n")
    code, out, _ = check(path)
    assert code == 0
    assert "note     another grader was not run (other, ...): --all plays every task" in out


def test_a_bundle_that_can_not_be_read_gives_every_problem(tmp_path: Path) -> None:
    path = bundle(tmp_path)
    (path / "tasks/x.json").write_text("{")
    (path / "evals/y.toml").write_text("tasks = []")
    code, out, _ = check(path)
    assert code == 1
    assert [line.split(": ")[0] for line in out.splitlines() if line.startswith("error")] == [
        "error    evals/y.toml",
        "error    tasks/x.json",
    ]
    assert check(tmp_path / "nowhere")[0] == 1


def test_an_env_that_can_not_be_built_is_named_and_the_others_are_played(tmp_path: Path) -> None:
    tasks = {"good": stub_task(0), "bad": stub_task(0)}
    tasks["bad"][0]["env_id"] = tasks["bad"][1]["env_id"] = tasks["bad"][-1]["env_id"] = "other"
    tasks["bad"][1]["directives"][0]["service"] = "*"
    tasks["bad"][2]["env_ids"] = ["other"]
    path = bundle(tmp_path, tasks=tasks)
    write_stub_env(path / "envs/other")
    (path / "envs/other/requirements.txt").write_text("-e .\n")
    code, out, _ = check(path, "--json")
    report = json.loads(out)
    assert code == 1
    (finding,) = report["findings"]
    assert finding["where"] == "envs/other"
    assert "only packages of an index can be named" in finding["problem"]
    assert [task["task"] for task in report["played"]] == ["good"]


def test_limits_too_small_for_the_asked_concurrency_are_found(tmp_path: Path) -> None:
    path = bundle(tmp_path)

    def few_files() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400))

    command = [sys.executable, "-m", OPENENV, "check", str(path), "--sandbox", "process", "--concurrency", "96"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, preexec_fn=few_files)
    assert done.returncode == 1, done.stderr
    assert "error    open files: this process may open 400, and 96 episodes may need 1664" in done.stdout
    assert "-> first: raise it (LimitNOFILE)" in done.stdout


def test_a_sandbox_that_does_not_answer_is_a_finding(tmp_path: Path) -> None:
    done = finished(
        OPENENV, "check", str(bundle(tmp_path)), "--sandbox", "docker", env={"DOCKER_HOST": "unix:///nowhere.sock"}
    )
    assert done.process.returncode == 1
    assert "error    docker: Docker at unix:///nowhere.sock does not answer" in done.out
    assert "-> the provider does not answer: is the Docker daemon up" in done.out


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--sandbox", "dokcer"], "sandbox 'dokcer' is not known"),
        (["--policy", "nobody"], "no policy 'nobody'"),
    ],
)
def test_a_flag_that_is_wrong_is_one_line(tmp_path: Path, flags: list[str], words: str) -> None:
    done = finished(OPENENV, "check", str(bundle(tmp_path)), *flags)
    assert done.process.returncode == 2
    assert done.log.strip().startswith(f"error: {words}"), done.log
