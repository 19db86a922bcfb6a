"""The episode log of a real server process: killed, started again, and with a file that can't be had."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from stubs.gym_client import message, post, response, row, until
from stubs.quick_server import quick
from stubs.stub_openenv import StubOpenEnv

from agent_env.commands.logtable import gaps, totals
from agent_env.observe.reading import read

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


def folder(place: Path, url: str) -> Path:
    made = place / "resources_servers" / "stub_v1"
    (made / "configs").mkdir(parents=True)
    block = {"format": 1, "openenv_url": url, "env": "stub-v1"}
    document = {"stub_v1_resources_server": {"resources_servers": {"stub_v1": {"agent_env": block}}}}
    (made / "configs" / "stub_v1.yaml").write_text(yaml.safe_dump(document))
    return made


def command(folder: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", "agent_env.training.nemo_gym", "serve", str(folder), "--port", "0", *flags]


@asynccontextmanager
async def serving(folder: Path, **environment: str) -> AsyncIterator[tuple[Any, str]]:
    process = await asyncio.create_subprocess_exec(
        *command(folder), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={**os.environ, **environment}
    )
    assert process.stdout is not None
    try:
        yield process, (await process.stdout.readline()).decode().split()[-1]
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def rollout(url: str) -> None:
    _, headers, _ = await post(url, "/seed_session", row())
    cookie = headers["set-cookie"].split(";")[0]
    await post(url, "/look", {"at": "sun"}, cookie)
    await post(url, "/verify", {**row(), "response": response(message("done"))}, cookie)


async def test_a_killed_server_leaves_a_log_that_can_be_read_and_gone_on_with(tmp_path: Path) -> None:
    log = tmp_path / "e.jsonl"
    async with quick(StubOpenEnv(keep=False)) as upstream:
        made = folder(tmp_path, upstream)
        async with serving(made, AGENT_ENV_EPISODE_LOG=str(log)) as (process, url):
            for _ in range(3):
                await rollout(url)
            await until(lambda: len(read([log]).entries) == 3)
            process.send_signal(signal.SIGKILL)
            await process.wait()
        with log.open("ab") as file:
            file.write(b'{"of":"session","run":"x","n":4,"fa')  # what a write that was cut short leaves
        async with serving(made, AGENT_ENV_EPISODE_LOG=str(log)) as (process, url):
            await rollout(url)
            process.send_signal(signal.SIGTERM)
            out, _ = await process.communicate()
    told = read([log])
    assert [entry.fate for entry in told.entries] == ["verified"] * 4
    assert f"{log}: 1 torn line passed over" in gaps(told)
    killed, ended = told.runs
    assert f"run {killed}: it has no end: it still runs, or was killed" in gaps(told)
    summary = out.decode().splitlines()[-1]
    assert totals(told, told.entries)[1] == f"run {ended}: {summary}"


@pytest.mark.parametrize("log", ["/dev/full", "/proc/nothing/e.jsonl"])
def test_a_log_that_cannot_be_written_ends_the_start_with_one_line(log: str, tmp_path: Path) -> None:
    told = subprocess.run(
        command(folder(tmp_path, "http://127.0.0.1:9"), "--episode-log", log),
        capture_output=True,
        text=True,
        check=False,
    )
    assert told.returncode == 2
    assert told.stderr.startswith(f"error: --episode-log {log}: can't be written: ")
    assert len(told.stderr.splitlines()) == 1
