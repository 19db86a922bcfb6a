from __future__ import annotations

import contextlib
import json
import os
import pty
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from stubs.stub_resources import StubResources
from stubs.stub_taskapi import served

from agent_env.training.nemo_gym.cli import main

POLICIES = """
async def half(play):
    await play.call("submit", {"answer": 0.5})
    play.say("done")

async def varied(play):
    await play.call("submit", {"answer": round(play.rng.random(), 3)})

async def raises(play):
    raise ValueError("no idea")

def plain(play):
    pass
"""
TOOL = {"type": "function", "name": "submit", "parameters": {"type": "object"}, "strict": False}


@pytest.fixture
def rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_policies.py").write_text(POLICIES)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_policies", raising=False)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row(index)) + "\n" for index in range(6)))
    return path


def row(index: int) -> dict[str, Any]:
    params = {"input": [{"role": "user", "content": "Go."}], "tools": [TOOL]}
    return {"responses_create_params": params, "split": "eval", "index": index, "task_id": f"eval-{index:04}"}


def play(stub: StubResources, rows: Path, *flags: str) -> int:
    with served(stub.app()) as url:
        return main(["play", url, "--rows", str(rows), *flags])


def test_plays_every_row_and_says_what_came_of_it(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, summary = tmp_path / "deep/out.jsonl", tmp_path / "deep/summary.json"
    flags = ["--policy", "my_policies:half,my_policies:varied", "--out", str(out), "--summary", str(summary)]
    assert play(StubResources(), rows, *flags, "--note", "sandbox=process") == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].split()[:8] == ["policy", "rollouts", "mean", "std", "min", "max", "errors", "masked"]
    assert lines[1].split()[:8] == ["my_policies:half", "6", "0.500000", "0.0000", "0.5000", "0.5000", "0", "0"]
    assert len({len(line) for line in lines}) == 1
    assert "my_policies:half: 6/6 rollouts, mean 0.5000, 0 errors, 0 masked" in shown.err
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert len(results) == 12
    assert {result["row"] for result in results} == {f"eval-{index:04}" for index in range(6)}
    assert results[0]["reward"] == 0.5
    assert set(results[0]["seconds"]) == {"seed", "first_call", "calls", "verify", "total"}
    content = json.loads(summary.read_text())
    assert list(content) == ["sandbox", "policies"]
    assert content["sandbox"] == "process"
    half = content["policies"]["my_policies:half"]
    assert half | {"seconds": 0} == {"rollouts": 6, "mean_reward": 0.5, "masked": 0, "errors": 0, "seconds": 0}
    assert isinstance(half["seconds"], float)


def test_the_same_seed_earns_the_same(rows: Path, tmp_path: Path) -> None:
    rewards = []
    for seed in ("1", "1", "2"):
        out = tmp_path / "out.jsonl"
        assert play(StubResources(), rows, "--policy", "my_policies:varied", "--seed", seed, "--out", str(out)) == 0
        results = [json.loads(line) for line in out.read_text().splitlines()]
        rewards.append({result["row"]: result["reward"] for result in results})
    assert rewards[0] == rewards[1] != rewards[2]


def test_limit_and_repeats_count_rollouts(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    flags = ["--policy", "my_policies:varied", "--limit", "2", "--repeats", "3", "--out", str(out)]
    assert play(StubResources(), rows, *flags) == 0
    results = [json.loads(line) for line in out.read_text().splitlines()]
    assert sorted((result["index"], result["repeat"]) for result in results) == [
        (index, repeat) for index in range(2) for repeat in range(3)
    ]
    assert len({result["reward"] for result in results}) > 2


def test_concurrency_bounds_the_rollouts_at_once(rows: Path) -> None:
    stub = StubResources()
    assert play(stub, rows, "--policy", "my_policies:half", "--concurrency", "2", "--repeats", "3") == 0
    assert stub.most == 2


def test_a_masked_rollout_makes_the_command_fail_and_leaves_the_mean_alone(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def verify(request: Request) -> Response:
        masked = (await request.json())["index"] == 0
        return JSONResponse(
            {
                "reward": 0.0 if masked else 1.0,
                "mask_sample": masked,
                "failure_kind": "agent_env:env_crashed" if masked else None,
                "failure_reason": "exit code 3" if masked else None,
                "response": {},
                "responses_create_params": {},
            }
        )

    summary = tmp_path / "summary.json"
    stub = StubResources(verify=verify)
    assert play(stub, rows, "--policy", "my_policies:half", "--summary", str(summary)) == 1
    entry = json.loads(summary.read_text())["policies"]["my_policies:half"]
    assert (entry["mean_reward"], entry["masked"], entry["errors"]) == (1.0, 1, 0)
    assert "1 x my_policies:half: masked: agent_env:env_crashed: exit code 3" in capsys.readouterr().err


def test_failed_rollouts_are_counted_and_grouped_by_reason(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert play(StubResources(), rows, "--policy", "my_policies:raises") == 1
    shown = capsys.readouterr()
    assert "6 x my_policies:raises: error: policy: ValueError: no idea" in shown.err
    assert shown.out.splitlines()[1].split()[:8] == ["my_policies:raises", "6", "-", "-", "-", "-", "6", "0"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "can't read the rows: No such file"),
        (b"", "the file holds no row"),
        (b"\n  \n", "the file holds no row"),
        (b"\xef\xbb\xbf", "the file holds no row"),
        (json.dumps(row(0)).encode() + b"\n\n{oops\n", "rows.jsonl, line 3: not JSON"),
        (b"[1]\n", "line 1: a row is a JSON object, this is list"),
        (b'{"split": "eval"}\n', "line 1: the row has no object 'responses_create_params'"),
        (b'{"responses_create_params": []}\n', "line 1: the row has no object 'responses_create_params'"),
        (b"\xff\xfe{\x00", "line 1: not JSON"),
    ],
)
def test_rows_that_can_not_be_played_are_one_clear_line(
    rows: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, said: str
) -> None:
    rows.unlink()
    if content is not None:
        rows.write_bytes(content)
    stub = StubResources()
    assert play(stub, rows, "--policy", "my_policies:half") == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"error: {rows}")
    assert said in lines[0]
    assert stub.seen == []


@pytest.mark.parametrize("ends", ["\r\n", "\n", ""])
def test_a_byte_order_mark_crlf_and_a_missing_last_newline_do_no_harm(rows: Path, ends: str) -> None:
    lines = [json.dumps(row(index)) for index in range(2)]
    rows.write_bytes(b"\xef\xbb\xbf" + ("\r\n".join(lines) + ends).encode())
    stub = StubResources()
    assert play(stub, rows, "--policy", "my_policies:half") == 0
    assert [body["index"] for path, _, body in stub.seen if path == "/seed_session"] == [0, 1]


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ("clever", "no policy 'clever': known are idle, greedy, optimal, random, broken, and module:function"),
        ("nowhere:f", "can't import nowhere"),
        ("my_policies:f", "my_policies has no 'f'"),
        ("my_policies:plain", "is not an `async def policy(play)`"),
    ],
)
def test_an_unknown_policy_is_one_clear_line(
    rows: Path, capsys: pytest.CaptureFixture[str], policy: str, said: str
) -> None:
    stub = StubResources()
    assert play(stub, rows, "--policy", f"my_policies:half,{policy}") == 2
    assert said in capsys.readouterr().err
    assert stub.seen == []


def test_a_server_that_is_down_is_one_clear_line(rows: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    assert main(["play", url, "--rows", str(rows), "--policy", "my_policies:half"]) == 1
    assert f"error: no server answers at {url}" in capsys.readouterr().err


def test_a_file_that_can_not_be_written_is_one_clear_line(
    rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert play(StubResources(), rows, "--policy", "my_policies:half", "--out", str(tmp_path)) == 2
    assert f"error: {tmp_path}: can't write the rollouts" in capsys.readouterr().err


@pytest.mark.parametrize(
    "flags",
    [
        [],
        ["--policy", "idle", "--limit", "0"],
        ["--policy", "idle", "--note", "nothing"],
        ["--policy", "idle", "--note", "policies=x"],
        ["--policy", "idle", "--request-timeout", "nan"],
    ],
)
def test_wrong_usage_exits_with_two(rows: Path, flags: list[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["play", "http://127.0.0.1:1", "--rows", str(rows), *flags])
    assert stop.value.code == 2


def test_a_token_is_sent_as_bearer(rows: Path, tmp_path: Path) -> None:
    seen = set()

    async def verify(request: Request) -> Response:
        seen.add(request.headers.get("authorization"))
        return JSONResponse({"reward": 1, "response": {}, "responses_create_params": {}})

    (tmp_path / "token").write_text("secret-of-serve\n")
    flags = ["--policy", "my_policies:half", "--token-file", str(tmp_path / "token")]
    assert play(StubResources(verify=verify), rows, *flags) == 0
    assert seen == {"Bearer secret-of-serve"}


def test_plot_writes_a_picture_of_the_rewards(rows: Path, tmp_path: Path) -> None:
    assert play(StubResources(), rows, "--policy", "my_policies:varied", "--plot", str(tmp_path / "pictures")) == 0
    assert (tmp_path / "pictures/rewards.png").read_bytes().startswith(b"\x89PNG")


def test_plot_without_matplotlib_says_so_before_anything_is_played(
    rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    stub = StubResources()
    assert play(stub, rows, "--policy", "my_policies:half", "--plot", str(tmp_path)) == 2
    assert "pictures need matplotlib" in capsys.readouterr().err
    assert stub.seen == []


def test_a_terminal_gets_a_bar(rows: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with served(StubResources().app()) as url:
        command = [sys.executable, "-m", "agent_env.training.nemo_gym", "play", url, "--rows", str(rows)]
        environment = os.environ | {"PYTHONPATH": str(tmp_path), "TERM": "xterm", "COLUMNS": "160"}
        process = subprocess.Popen(
            [*command, "--policy", "my_policies:half"], env=environment, stdout=subprocess.DEVNULL, stderr=theirs
        )
        os.close(theirs)
        shown = b""
        with contextlib.suppress(OSError):  # Linux ends a terminal that nobody writes to any more with EIO
            while chunk := os.read(ours, 65536):
                shown += chunk
        os.close(ours)
        assert process.wait(10) == 0
    assert "━".encode() in shown
    assert b"my_policies:half: 6/6 rollouts, mean 0.5000" in shown


def test_the_five_policies_of_gridsim_are_known_by_name() -> None:
    from agent_env.examples.gridsim.policies import POLICIES as NAMES
    from agent_env.training.nemo_gym.play import find_policy

    assert [find_policy(name).__name__ for name in NAMES] == list(NAMES)


def test_ctrl_c_ends_at_once_with_what_was_played(rows: Path, tmp_path: Path) -> None:
    async def verify(request: Request) -> Response:
        if (await request.json())["index"] == 1:
            while (await request.receive())["type"] != "http.disconnect":
                pass
        return JSONResponse({"reward": 1, "response": {}, "responses_create_params": {}})

    out = tmp_path / "out.jsonl"
    with served(StubResources(verify=verify).app()) as url:
        command = [sys.executable, "-m", "agent_env.training.nemo_gym", "play", url, "--rows", str(rows)]
        command += ["--policy", "my_policies:half", "--concurrency", "1", "--out", str(out)]
        environment = os.environ | {"PYTHONPATH": str(tmp_path)}
        process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        deadline = time.monotonic() + 20
        while not (out.exists() and out.stat().st_size) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=10)
    assert process.returncode == 130
    assert stdout.splitlines()[1].split()[:3] == ["my_policies:half", "1", "1.000000"]
    assert stderr.splitlines()[-1] == "interrupted"
    assert "Traceback" not in stderr
