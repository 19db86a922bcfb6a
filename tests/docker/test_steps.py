"""Steps that need a container: bare sandboxes, files that the env's own user reads, a real end by memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import modes
import pytest
from stubs.stage import AGENT, ASK, ENV, GRADE, a_bundle, played, staged

from agent_env.env.data import data_get
from agent_env.episode import EpisodeFailure
from agent_env.errors import FailureKind
from agent_env.sandbox.docker import DockerProvider

pytestmark = [pytest.mark.anyio, pytest.mark.docker, pytest.mark.integration]

BOX = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm", "sandbox_type": "local"}
ORDERS = {"orders.json": '{"orders": [17]}', "artifact.toml": 'type = "environment"\nenvironment_name = "stub"\n'}


@pytest.fixture
def bare(options: dict[str, Any], base_image: str) -> DockerProvider:
    return DockerProvider(**options, sandbox_image=base_image)


async def test_a_bare_sandbox_takes_files_and_runs_commands(tmp_path: Path, bare: DockerProvider) -> None:
    greeting = {"hello.txt": "hello\n", "check.sh": "[[ $(< hello.txt) == *hello* ]]\n"}
    load = {"id": "load", "type": "load_artifact", "sandbox_name": "box", "artifact_id": "greeting"}
    look = {
        "id": "hello",
        "type": "verify_sandbox",
        "sandbox_name": "box",
        "base_dir": "/app/greeting",
        "score_aggregator": "weighted_average",
        "criteria": [
            {"type": "probe_file_contains", "paths": ["hello.txt"], "expected": "hello"},
            {"type": "probe_dir_exists", "paths": ["/app/greeting"]},
            {"type": "bash_cmd_succeeds", "bash_cmd": "bash check.sh && test -f /app/greeting/hello.txt"},
            {"type": "probe_file_exists", "paths": ["bye.txt"]},
        ],
    }
    steps = [BOX, {**load, "destination_path": "/app/greeting"}, look]
    async with staged(a_bundle(tmp_path / "b", *steps, artifacts={"greeting": greeting}), provider=bare) as start:
        episode = await start()
        assert await episode.result() == {"hello": 0.75}
        rows = episode._context.verifications["hello"].results
        assert [row["result"] for row in rows] == [True, True, True, False]


async def test_a_bare_sandbox_that_is_not_to_be_had_is_told_before_any_episode(
    tmp_path: Path, options: dict[str, Any]
) -> None:
    provider = DockerProvider(**options, sandbox_image="agent-env-test-none:of-that-name")
    with pytest.raises(EpisodeFailure, match="agent-env-test-none") as caught:
        async with staged(a_bundle(tmp_path / "b", BOX), provider=provider):
            raise AssertionError("it was begun")
    assert caught.value.kind is FailureKind.IMAGE_MISSING


@pytest.mark.skipif(modes.FORKED, reason="a fork has a /data of its own, under its folder")
async def test_seed_data_lies_where_the_original_puts_it(tmp_path: Path, bare: DockerProvider) -> None:
    load = {"id": "load", "type": "load_artifact", "env_id": "stub", "artifact_id": "orders"}
    bundle = a_bundle(tmp_path / "b", ENV, load, AGENT, ASK, GRADE, artifacts={"orders": ORDERS})
    async with staged(bundle, provider=bare) as start:
        episode = await start()
        await episode.next_turn()
        deployed = episode._context.envs["stub"]
        (part,) = (await data_get(deployed.http, timeout=5))[0]["data"]["parts"]
        assert part["file"]["uri"] == "file:///data/orders.json"
        read = await deployed.sandbox.exec(["cat", "/data/orders.json"], timeout=10)
        assert read.stdout == b'{"orders": [17]}'
        await episode.abandon("enough")


@pytest.mark.skipif(modes.FORKED, reason="a fork is refused more memory, not killed")
@pytest.mark.parametrize(("settings", "scored"), [("", False), ('on_oom = "score"', True)])
async def test_an_env_out_of_memory_masks_or_is_scored(
    tmp_path: Path, bare: DockerProvider, settings: str, scored: bool
) -> None:
    bundle = a_bundle(tmp_path / "b", ENV, AGENT, ASK, GRADE, settings=f'memory = "48m"\n{settings}')
    async with staged(bundle, provider=bare) as start:
        episode = await start()
        if scored:
            assert await played(episode, [("submit", {"value": 1.0}), ("big", {"size": 400_000_000})]) == {"grade": 0.0}
            return
        turn = await episode.next_turn()
        with pytest.raises(EpisodeFailure):
            await turn.call("big", {"size": 400_000_000})
        with pytest.raises(EpisodeFailure) as caught:
            await episode.result()
        assert caught.value.kind is FailureKind.PROVIDER_OOM_KILLED
