"""The Ray script on one machine with several raylets: servers come and go with them, and sessions with the servers."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import pytest
from chain.test_openenv_servers import Session, rows_of
from stubs.processes import NEMO_GYM, Command, command, finished
from stubs.stub_bundle import write_stub_bundle

from agent_env.sandbox.venvs import ensure_venv, requirements_of

HERE = Path(__file__).parent
pytestmark = [pytest.mark.ray, pytest.mark.soak, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def python() -> Path:
    """A Python with Ray and what our servers need."""
    return asyncio.run(ensure_venv(requirements_of(HERE / "ray-2.60.0.txt")))


@contextmanager
def cluster(python: Path, *flags: str) -> Iterator[tuple[str, str, Callable[[str], None]]]:
    """Its address, its dashboard, and a way to tell it to `kill` or `add` a raylet."""
    process = subprocess.Popen(
        [python, HERE / "ray_cluster.py", *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=environment(),
    )
    assert process.stdin is not None
    assert process.stdout is not None

    def expect(start: str) -> list[str]:
        for line in process.stdout or ():
            if line.startswith(start):
                return line.split()
        raise AssertionError(f"the cluster ended with {process.wait()}")

    def tell(order: str) -> None:
        print(order, file=process.stdin, flush=True)
        expect(f"done {order}")

    try:
        _, address, dashboard = expect("cluster ")
        yield address, dashboard, tell
    finally:
        process.stdin.close()
        process.stdout.close()
        process.wait(60)


def environment() -> dict[str, str]:
    """Of Ray's processes: they import us from here."""
    source = str(HERE.parents[1] / "src")
    return {**os.environ, "PYTHONPATH": source, "RAY_DEDUP_LOGS": "0", "PYTHONUNBUFFERED": "1"}


def listed(path: Path) -> list[str]:
    return [line for line in path.read_text().splitlines() if not line.startswith("#")] if path.exists() else []


def running_at(url: str) -> int:
    sent = {"Authorization": "Bearer token-of-serve"}
    return int(httpx.get(f"{url}/capacity", trust_env=False, timeout=10, headers=sent).json()["running"])


def until(true: Callable[[], bool], script: Command, seconds: float = 90) -> float:
    began = time.monotonic()
    while not true():
        assert time.monotonic() - began < seconds, script.out + script.log
        assert script.process.poll() is None, script.out + script.log
        time.sleep(0.1)
    return time.monotonic() - began


def test_a_killed_raylet_takes_its_servers_sessions_along_and_a_new_one_gets_a_server(
    python: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    token, servers = tmp_path / "token", tmp_path / "servers"
    token.write_text("token-of-serve\n")
    bundle = write_stub_bundle(tmp_path / "stub-v1")

    def say(line: str) -> None:
        with capsys.disabled():
            print(f"\n{line}")

    with ExitStack() as stack:
        began = time.monotonic()
        address, _, tell = stack.enter_context(cluster(python))
        say(f"a head and two raylets after {time.monotonic() - began:.1f} s")
        flags = ("--openenv-file", str(servers), "--token-file", str(token), "--address", address)
        more = ("--resource", "box", "--sandbox", "process", "--", "--warm", "0", "--max-concurrent-envs", "6")
        monkeypatch.setattr(sys, "executable", str(python))
        script = stack.enter_context(
            command("agent_env.deploy.ray_servers", str(bundle), *flags, *more, env=environment())
        )
        monkeypatch.undo()
        say(f"two servers after {until(lambda: len(listed(servers)) == 2, script):.1f} s")
        sent = ("--openenv-token-file", str(token))
        written = finished(NEMO_GYM, listed(servers)[0], str(tmp_path / "out"), *sent)
        assert written.process.returncode == 0, written.log
        folder = tmp_path / "out/resources_servers/stub_v1"
        serve = stack.enter_context(
            command(
                *(NEMO_GYM, "serve", str(folder), "--port", "0", "--openenv-file", str(servers)),
                *("--token-file", str(token), *sent),
            )
        )
        url, row = serve.url(), rows_of(folder)[0]

        sessions = [Session(url, row) for _ in range(6)]
        before = listed(servers)
        playing = {server: running_at(server) for server in before}
        assert sum(playing.values()) == 6
        assert min(playing.values()) > 0
        tell("kill")
        say(f"a killed raylet's server is off the list after {until(lambda: len(listed(servers)) == 1, script):.1f} s")
        (stays,) = listed(servers)
        answers = [session.verify() for session in sessions]
        masked = [answer["failure_kind"] for answer in answers if answer["mask_sample"]]
        assert len(masked) == 6 - playing[stays]
        assert set(masked) in ({"provider_unavailable"}, {"shutdown"})
        assert {answer["reward"] for answer in answers if not answer["mask_sample"]} == {1.0}
        assert [Session(url, row).verify()["reward"] for _ in range(4)] == [1.0] * 4

        tell("add")
        say(f"a new raylet's server is listed after {until(lambda: len(listed(servers)) == 2, script):.1f} s")
        (new,) = set(listed(servers)) - {stays}
        assert new not in before
        until(lambda: f"{new} is used from now on" in serve.log, script)
        time.sleep(2)
        sessions = [Session(url, row) for _ in range(6)]
        assert [session.verify()["reward"] for session in sessions] == [1.0] * 6
        script.stop(60)
        assert script.process.returncode == 0, script.log
        assert listed(servers) == []
        assert "token-of-serve" not in script.out + script.log + serve.log
    say(f"in all {time.monotonic() - began:.1f} s")


def test_ray_job_submit_runs_it_and_job_stop_ends_it_in_order(python: Path, tmp_path: Path) -> None:
    token, servers = tmp_path / "token", tmp_path / "servers"
    token.write_text("token-of-serve\n")
    bundle = write_stub_bundle(tmp_path / "stub-v1")
    with cluster(python, "--dashboard") as (_, dashboard, _):

        def ray_job(word: str, *words: str) -> str:
            command = [python.with_name("ray"), "job", word, "--address", f"http://{dashboard}", *words]
            for _ in range(30):  # the dashboard is there before the agents that take jobs are
                done = subprocess.run(
                    command, env=environment(), capture_output=True, text=True, timeout=120, check=False
                )
                if "please try again later" not in done.stderr:
                    break
                time.sleep(2)
            assert done.returncode == 0, done.stdout + done.stderr
            return done.stdout

        script = (str(python), "-m", "agent_env.deploy.ray_servers", str(bundle), "--resource", "box")
        flags = ("--openenv-file", str(servers), "--token-file", str(token), "--sandbox", "process")
        ray_job("submit", "--no-wait", "--submission-id", "envs", "--", *script, *flags, "--", "--warm", "0")
        end = time.monotonic() + 90
        while len(listed(servers)) < 2:
            assert time.monotonic() < end, ray_job("logs", "envs")
            time.sleep(0.2)
        assert [running_at(server) for server in listed(servers)] == [0, 0]
        ray_job("stop", "envs")
        assert listed(servers) == []
        said = ray_job("logs", "envs")
        assert said.count("episodes: 0 started") == 2, said
        assert "token-of-serve" not in said
