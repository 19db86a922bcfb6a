"""Chaos with forks: their container, the server and the daemon go away while episodes run."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from pathlib import Path

import pytest
from stubs.containers import private_daemon
from stubs.storm import Server, Storm, docker
from stubs.stub_bundle import write_stub_bundle

EPISODES = int(os.environ.get("AGENT_ENV_CHAOS", "40"))
EXPECTED = {"none": "measured", "leave": "left", "exit": "env_crashed"}

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.timeout(300 + 10 * EPISODES)]


async def test_chaos_with_forks_leaves_nothing_and_invents_no_reward(
    base_image: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = int(os.environ.get("AGENT_ENV_CHAOS_SEED") or random.SystemRandom().randrange(10**6))
    bundle = write_stub_bundle(tmp_path / "stub-v1", settings='memory = "128m"\nisolation = "fork"')
    state = tmp_path / "state"
    with private_daemon(tmp_path / "daemon") as daemon:
        await asyncio.to_thread(daemon.load, base_image)
        server = Server(bundle, state, daemon.host, base_image)
        storm = Storm(server, episodes=EPISODES, at_once=8, seed=seed, expected=EXPECTED)

        async def remove_container() -> None:
            for container in (await docker(daemon.host, "ps", "-q")).split():
                await docker(daemon.host, "rm", "-f", container)

        async def kill_fork_server() -> None:
            for container in (await docker(daemon.host, "ps", "-q")).split():
                await docker(daemon.host, "kill", container)

        async def stop_server() -> None:
            await server.stop(signal.SIGTERM)
            assert await docker(daemon.host, "ps", "-aq") == "", "a server that was asked to stop leaves nothing"
            assert not list((state / "forks").iterdir())
            await server.start()

        async def kill_server() -> None:
            await server.stop(signal.SIGKILL)
            await server.start()

        async def restart_daemon() -> None:
            await asyncio.to_thread(daemon.stop)
            await asyncio.to_thread(daemon.start)

        await server.start()
        try:
            await storm.run([remove_container, kill_fork_server, stop_server, kill_server, restart_daemon])
        finally:
            code = await server.stop()
        lines = [f"{count:4} {fault}: {outcome}" for (fault, outcome), count in sorted(storm.tally.items())]
        with capsys.disabled():
            print(f"\nchaos with forks, seed {seed}, {EPISODES} episodes:", *lines, sep="\n")
        assert storm.wrong == [], f"seed {seed}\n" + "".join(server.log[-60:])
        assert sum(storm.tally.values()) == EPISODES
        assert {fault for fault, _ in storm.tally} >= set(EXPECTED), "each fault was to be seen alone as well"
        assert code == 0
        assert await docker(daemon.host, "ps", "-aq") == ""
        assert await docker(daemon.host, "volume", "ls", "-q") == ""
    for left in ("sandboxes", "forks", "journal"):
        assert not list((state / left).glob("*"))
