from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from stubs.gym_client import Rollout, until
from stubs.quick_server import quick
from stubs.stub_openenv import Knobs, StubOpenEnv

from agent_env.training.nemo_gym.serve import serve_command

pytestmark = pytest.mark.anyio


def write_folder(place: Path, url: str = "http://127.0.0.1:9", **block: Any) -> Path:
    folder = place / "resources_servers" / "stub_v1"
    (folder / "configs").mkdir(parents=True)
    settings = {"format": 1, "openenv_url": url, "env": "stub-v1", "bundle_digest": "d" * 64, "aliases": {}} | block
    server = {"entrypoint": "app.py", "domain": "agent", "agent_env": settings}
    document = {"stub_v1_resources_server": {"resources_servers": {"stub_v1": server}}}
    (folder / "configs" / "stub_v1.yaml").write_text(yaml.safe_dump(document))
    return folder


class Running:
    def __init__(self, process: asyncio.subprocess.Process, url: str, http: httpx.AsyncClient) -> None:
        self.process = process
        self.url = url
        self.http = http

    async def stop(self, number: signal.Signals = signal.SIGTERM) -> tuple[str, float]:
        """What it printed last, and the seconds it took."""
        began = time.monotonic()
        self.process.send_signal(number)
        out, _ = await asyncio.wait_for(self.process.communicate(), 10)
        return out.decode(), time.monotonic() - began


@asynccontextmanager
async def serving(folder: Path, *flags: str, **environment: str) -> AsyncIterator[Running]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agent_env.training.nemo_gym", "serve", str(folder), "--port", "0", *flags),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    try:
        line = (await asyncio.wait_for(process.stdout.readline(), 20)).decode()
        assert line.startswith("serving stub_v1 at http://127.0.0.1:"), line
        url = line.split()[-1]
        async with httpx.AsyncClient(base_url=url, timeout=20, verify=False) as http:
            yield Running(process, url, http)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_it_says_its_url_plays_and_ends_with_a_summary(tmp_path: Path, number: signal.Signals) -> None:
    stub = StubOpenEnv(Knobs(tool_s=20))
    async with quick(stub) as upstream, serving(write_folder(tmp_path, upstream)) as server:
        verified, calling = Rollout(server.http), Rollout(server.http)
        await verified.seed()
        assert (await verified.verify()).json()["reward"] == 0.75
        await calling.seed()
        call = asyncio.create_task(calling.call("look"))
        await until(lambda: len(stub.calls) == 1)
        out, took = await server.stop(number)
        assert server.process.returncode == 0
        assert out.startswith("seeded 2, verified 1, masked 0, reclaimed 0, closed 0, refused 0, open at the end 1")
        assert took < 4
        assert "server_shutdown" in (await call).text
        await until(lambda: stub.running == 0)


async def test_flags_win_over_the_environment_and_that_over_the_file(tmp_path: Path) -> None:
    fault = Knobs(fail={"tool": ("env_crashed", "x")})
    async with quick(StubOpenEnv(fault)) as upstream:
        folder = write_folder(tmp_path)
        flags = ("--openenv", upstream, "--log-level", "error")
        async with serving(folder, *flags, AGENT_ENV_MASKED_AS_ERROR="1", AGENT_ENV_OPENENV="http://x") as server:
            rollout = Rollout(server.http)
            await rollout.seed()
            await rollout.call("look")
            assert (await rollout.verify()).status_code == 503


def test_it_starts_without_openenv_fastapi_or_nemo_gym() -> None:
    code = "import sys, agent_env.training.nemo_gym.serve as s; print([m for m in sys.modules])"
    names = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for heavy in ("'openenv", "'fastapi", "'nemo_gym", "'pydantic", "'httpx", "'docker", "'typer", "'rich"):
        assert heavy not in names


def test_a_port_in_use_is_one_line_and_exit_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert serve_command([str(write_folder(tmp_path)), "--port", str(port)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert f"port {port}" in lines[0]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--host", "0.0.0.0"], "--token-file"),
        (["--token-file", "/no/such/file"], "/no/such/file"),
    ],
)
def test_a_wrong_setting_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    assert serve_command([str(write_folder(tmp_path)), *flags]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert said in lines[0]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--port", "65536"], "not a port"),
        (["--idle-timeout", "0"], "above 0"),
        (["--keepalive-after", "-1"], "above 0"),
        (["--openenv", "127.0.0.1:8200"], "http://"),
        (["--metrics", "reward"], "'reward' is no metric"),
        (["--workers", "4"], "--name, --rows"),
        (["--nonsense"], "unrecognized"),
        (["--log-level", "loud"], "invalid choice"),
    ],
)
def test_a_wrong_flag_is_named_and_exits_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], flags: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as exit:
        serve_command([str(write_folder(tmp_path)), *flags])
    assert exit.value.code == 2
    assert said in capsys.readouterr().err


def test_a_folder_that_the_writer_did_not_write_is_one_line_and_exit_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, said in ((tmp_path / "absent", "no such folder"), (tmp_path, "configs")):
        assert serve_command([str(folder)]) == 2
        lines = capsys.readouterr().err.splitlines()
        assert len(lines) == 1
        assert said in lines[0]


async def test_the_server_seldom_searches_for_cycles(tmp_path: Path) -> None:
    """With Python's defaults that takes an eighth of its processor time."""
    told = tmp_path / "told"
    ask = f"import atexit, gc; atexit.register(lambda: open({str(told)!r}, 'w').write(repr("
    (tmp_path / "sitecustomize.py").write_text(f"{ask}(gc.get_threshold()[0], gc.get_freeze_count() > 0))))\n")
    async with serving(write_folder(tmp_path), PYTHONPATH=str(tmp_path)) as server:
        await server.stop()
    assert told.read_text() == "(10000, True)"
