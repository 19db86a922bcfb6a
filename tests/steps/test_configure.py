from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stubs.stage import AGENT, ASK, ENV, GRADE, a_bundle, problems_of, staged, warnings_of

from agent_env.env.data import data_get
from agent_env.episode import Episode, EpisodeFailure
from agent_env.errors import FailureKind

pytestmark = pytest.mark.integration

LOAD = {
    "id": "load",
    "type": "apply_server_config",
    "env_id": "stub",
    "directives": [{"service": "stub", "uri": "urn:stub:load/v1", "args": {"value": 0.5}}],
}
RESET = {"id": "reset", "type": "reset_env", "env_id": "stub"}


async def loaded(episode: Episode) -> Any:
    return (await data_get(episode._context.envs["stub"].http, timeout=5))[0]["data"]["loaded"]


@pytest.mark.anyio
async def test_a_reset_reaches_an_env_that_the_task_has_not_set_up(tmp_path: Path) -> None:
    steps = [ENV, AGENT, ASK, {**RESET, "fail_task_on_error": True}, GRADE]
    async with staged(a_bundle(tmp_path / "b", *steps)) as start:
        episode = await start()
        turn = await episode.next_turn()
        await turn.call("submit", {"value": 1.0})
        await turn.end("")
        assert await episode.result() == {"grade": 0.0}  # what was submitted is gone


@pytest.mark.anyio
async def test_a_reset_leaves_alone_what_the_task_has_set_up(tmp_path: Path) -> None:
    async with staged(a_bundle(tmp_path / "b", ENV, LOAD, RESET, AGENT, ASK, GRADE)) as start:
        episode = await start()
        await episode.next_turn()
        assert await loaded(episode) == 0.5
        await episode.abandon("enough")


@pytest.mark.anyio
async def test_a_reset_is_skipped_where_it_is_not_served(tmp_path: Path) -> None:
    bundle = a_bundle(tmp_path / "b", ENV, RESET, AGENT, ASK, GRADE, env_vars={"STUB_OPERATIONS": "data/add,data/get"})
    async with staged(bundle) as start:
        episode = await start()
        await episode.next_turn()
        assert episode.failed_steps == []
        await episode.abandon("enough")


@pytest.mark.anyio
async def test_a_failed_reset_is_recorded_unless_the_task_says_it_is_fatal(tmp_path: Path) -> None:
    knobs = {"STUB_REFUSE": "data/reset"}
    async with staged(a_bundle(tmp_path / "b", ENV, RESET, AGENT, ASK, GRADE, env_vars=knobs)) as start:
        episode = await start()
        await episode.next_turn()
        (failed,) = episode.failed_steps
        assert (failed["step_id"], failed["kind"]) == ("reset", FailureKind.LOAD_FAILED)
        await episode.abandon("enough")
    fatal = {**RESET, "fail_task_on_error": True}
    async with staged(a_bundle(tmp_path / "c", ENV, fatal, AGENT, ASK, GRADE, env_vars=knobs)) as start:
        episode = await start()
        with pytest.raises(EpisodeFailure, match="step 'reset'") as caught:
            await episode.result()
        assert caught.value.kind is FailureKind.LOAD_FAILED


def test_a_reset_after_a_load_is_warned_of(tmp_path: Path) -> None:
    (warning,) = warnings_of(tmp_path / "b", ENV, LOAD, RESET)
    assert warning == "step 'reset': is skipped: it would drop what step 'load' sets up in env 'stub'"
    assert not warnings_of(tmp_path / "c", ENV, RESET, LOAD)


def test_what_a_reset_names_must_be_deployed(tmp_path: Path) -> None:
    assert problems_of(tmp_path / "b", RESET) == ("step 'reset': env_id: no earlier deploy_env step deploys 'stub'",)


@pytest.mark.anyio
async def test_several_directives_are_applied_in_order(tmp_path: Path) -> None:
    directives = [
        {"environment": "stub", "uri": "urn:stub:load/v1", "args": {"value": 1}},
        {"service": "*", "uri": "urn:stub:load/v1", "args": {"value": 2}},
    ]
    async with staged(a_bundle(tmp_path / "b", ENV, {**LOAD, "directives": directives}, AGENT, ASK, GRADE)) as start:
        episode = await start()
        await episode.next_turn()
        assert await loaded(episode) == 2
        await episode.abandon("enough")


@pytest.mark.anyio
async def test_an_unadvertised_extension_can_be_tolerated(tmp_path: Path) -> None:
    tolerant = {**LOAD, "directives": [{"service": "stub", "uri": "urn:no"}], "tolerate_unadvertised": True}
    async with staged(a_bundle(tmp_path / "b", ENV, tolerant, AGENT, ASK, GRADE)) as start:
        episode = await start()
        assert await episode.next_turn() is not None
        await episode.abandon("enough")
