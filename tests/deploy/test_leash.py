"""A server on a leash ends, in order, with whoever started it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest
from stubs.stub_bundle import write_stub_bundle

from agent_env.deploy.node import NodeServer

_PROGRAM = """\
import pathlib, signal, sys, threading
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set())
pathlib.Path(sys.argv[1]).write_text("runs")
ended.wait()
pathlib.Path(sys.argv[1]).write_text("ended in order")
sys.exit(7)
"""


def on_a_leash(mark: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "agent_env.deploy.leash", sys.executable, "-c", _PROGRAM, str(mark)]
    process = subprocess.Popen(command, stdin=subprocess.PIPE)
    until(mark, "runs")
    return process


def until(mark: Path, text: str, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not mark.exists() or mark.read_text() != text:
        assert time.monotonic() < end, mark.read_text() if mark.exists() else "nothing"
        time.sleep(0.02)


def test_the_end_of_the_starters_pipe_ends_the_command_and_its_exit_code_is_told(tmp_path: Path) -> None:
    leash = on_a_leash(tmp_path / "mark")
    assert leash.stdin is not None
    leash.stdin.close()
    assert leash.wait(20) == 7
    until(tmp_path / "mark", "ended in order")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's signal at the parent's end is Linux's")
def test_the_leashs_own_end_ends_the_command_in_order(tmp_path: Path, number: signal.Signals) -> None:
    leash = on_a_leash(tmp_path / "mark")
    os.kill(leash.pid, number)
    until(tmp_path / "mark", "ended in order")
    assert leash.wait(20) == (7 if number is signal.SIGTERM else -signal.SIGKILL)
    assert leash.stdin is not None
    leash.stdin.close()


@pytest.mark.integration
def test_a_nodes_server_serves_with_its_token_until_it_is_stopped(tmp_path: Path) -> None:
    bundle = write_stub_bundle(tmp_path / "stub-v1")
    server = NodeServer([str(bundle), "--port", "0", "--sandbox", "process", "--warm", "0"], "a-token-of-nodes")
    url = server.start()
    assert httpx.get(f"{url}/capacity", trust_env=False).status_code == 401
    sent = {"Authorization": "Bearer a-token-of-nodes"}
    assert httpx.get(f"{url}/capacity", trust_env=False, headers=sent).json()["places"] == 8
    codes: list[int] = []
    waiting = threading.Thread(target=lambda: codes.append(server.ended()))
    waiting.start()
    server.stop()
    waiting.join(20)
    assert codes == [0]


@pytest.mark.integration
def test_a_nodes_server_that_cant_start_says_so(tmp_path: Path) -> None:
    server = NodeServer([str(tmp_path / "none"), "--port", "0"], None)
    with pytest.raises(RuntimeError, match="ended with 1 before it served"):
        server.start()
    server.stop()
