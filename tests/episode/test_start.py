from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from stubs.stage import AGENT, ASK, ENV, GRADE, a_bundle

from agent_env.bundle import Bundle
from agent_env.episode import EpisodeError, EpisodeFailure, EpisodeSpec, Runtime
from agent_env.errors import ConfigError, FailureKind
from agent_env.grading.pool import GraderPool
from agent_env.sandbox.fork import Isolating
from agent_env.sandbox.process import ProcessProvider

pytestmark = pytest.mark.integration


def spec_of(bundle: Bundle, **more: Any) -> EpisodeSpec:
    return EpisodeSpec.from_task(bundle.tasks["t"], **more)


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return a_bundle(tmp_path / "b", ENV, AGENT, ASK, GRADE)


@pytest.mark.anyio
async def test_an_episode_needs_nothing_but_the_name_of_a_sandbox(bundle: Bundle) -> None:
    episode = await spec_of(bundle).start("process")
    turn = await episode.next_turn()
    assert turn is not None
    async with turn.tools() as tools:
        await tools.call("submit", {"value": 0.5})
    await turn.end("done")
    assert await episode.result() == {"grade": 0.5}
    assert episode.finished
    isolating = episode._runtime.provider
    assert isinstance(isolating, Isolating)
    assert isinstance(isolating.provider, ProcessProvider)
    assert not isolating.provider._sandboxes


@pytest.mark.parametrize("whole", [True, False])
@pytest.mark.anyio
async def test_a_bare_provider_gives_an_env_the_isolation_that_it_asks_for(tmp_path: Path, whole: bool) -> None:
    bundle = a_bundle(tmp_path / "b", ENV, AGENT, ASK, GRADE, settings='isolation = "fork"')
    provider = ProcessProvider()
    runtime = Runtime(provider, close_provider=whole, grader=GraderPool(requirements=(), workers=1))
    try:
        spec = spec_of(bundle)
        await runtime.prepare_tasks([spec.plan])
        episode = await spec.start(runtime=runtime)
        assert await episode.next_turn() is not None
        assert isinstance(runtime.provider, Isolating)
        assert len(runtime.provider.sandboxes) == 1
        await episode.abandon("seen")
    finally:
        await runtime.aclose()
    assert not runtime.provider.hosts
    if not whole:
        await provider.check()
        assert not provider._sandboxes
        await provider.aclose()


@pytest.mark.anyio
async def test_a_given_provider_stays_open(bundle: Bundle) -> None:
    provider = ProcessProvider()
    try:
        for _ in range(2):
            episode = await spec_of(bundle).start(provider)
            assert await episode.next_turn() is not None
            await episode.abandon("enough")
            assert not provider._sandboxes
    finally:
        await provider.aclose()


@pytest.mark.anyio
async def test_an_abandoned_episode_closes_what_was_its_own(bundle: Bundle) -> None:
    episode = await spec_of(bundle).start("process")
    await episode.abandon("at once")
    assert episode.finished
    with pytest.raises(EpisodeFailure) as caught:
        await episode.result()
    assert caught.value.kind is FailureKind.CANCELLED
    assert episode._runtime.graders.default._closed


@pytest.mark.anyio
async def test_episodes_of_their_own_run_at_once(bundle: Bundle) -> None:
    episodes = await asyncio.gather(*(spec_of(bundle).start("process") for _ in range(3)))
    for episode in episodes:
        turn = await episode.next_turn()
        assert turn is not None
        await turn.end("")
    assert await asyncio.gather(*(episode.result() for episode in episodes)) == [{"grade": 0.0}] * 3


@pytest.mark.anyio
async def test_a_sandbox_that_is_not_known_is_told(bundle: Bundle) -> None:
    with pytest.raises(ConfigError, match="sandbox 'cloud' is not known"):
        await spec_of(bundle).start("cloud")


@pytest.mark.anyio
async def test_what_can_not_be_built_fails_the_start_and_leaves_nothing(tmp_path: Path) -> None:
    bundle = a_bundle(tmp_path / "b", ENV, AGENT, ASK, GRADE)
    (tmp_path / "b" / "envs" / "stub" / "requirements.txt").write_text("-e .\n")
    with pytest.raises(ConfigError, match="only packages of an index"):
        await spec_of(bundle).start("process")


@pytest.mark.anyio
async def test_a_runtime_decides_for_itself(bundle: Bundle) -> None:
    runtime = Runtime(ProcessProvider())
    try:
        with pytest.raises(EpisodeError, match="the runtime has not prepared stub"):
            await spec_of(bundle).start(runtime=runtime)
        with pytest.raises(EpisodeError, match="give one or the other"):
            await spec_of(bundle).start("process", runtime=runtime)
    finally:
        await runtime.aclose()


@pytest.mark.anyio
async def test_the_time_of_turns_can_be_given(bundle: Bundle, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)
    episode = await spec_of(bundle, turn_timeout=0.2).start("process")
    assert await episode.next_turn() is not None
    with pytest.raises(EpisodeFailure, match=r"step 'ask': the turn was not ended after 0\.2 s"):
        await episode.result()


def test_every_reason_why_a_task_can_not_be_played_comes_in_one_error(tmp_path: Path) -> None:
    odd = {**ASK, "output_format": {"type": "json"}, "retry_config": {"retry_from_step_id": "env"}}
    bundle = a_bundle(tmp_path / "b", ENV, {"id": "code", "type": "run_code"}, AGENT, odd, GRADE)
    with pytest.raises(EpisodeError) as caught:
        spec_of(bundle)
    for part in ("task t can't run as an episode", "'run_code'", "output_format", "retry_config"):
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("trainer_agents", "why"),
    [(["bob"], r"trainer_agents are \['bob'\], and it prompts default-agent"), ([], "trainer_agents are")],
)
def test_trainer_agents_are_those_that_the_task_prompts(bundle: Bundle, trainer_agents: list[str], why: str) -> None:
    with pytest.raises(EpisodeError, match=why):
        spec_of(bundle, trainer_agents=trainer_agents)


def test_a_task_that_prompts_nobody_is_no_episode(tmp_path: Path) -> None:
    with pytest.raises(EpisodeError, match="it prompts no agent"):
        spec_of(a_bundle(tmp_path / "b", ENV, GRADE))


def test_several_agents_must_all_be_the_trainers(tmp_path: Path) -> None:
    two = [AGENT, {**AGENT, "id": "two", "agent_name": "b"}, ASK, {**ASK, "id": "q", "agent_name": "b"}]
    bundle = a_bundle(tmp_path / "b", ENV, *two, GRADE)
    for given in (None, ["b"]):
        with pytest.raises(EpisodeError, match=r"it prompts several agents \(default-agent, b\)"):
            spec_of(bundle, trainer_agents=given)
    assert spec_of(bundle, trainer_agents=["b", "default-agent"]).trainer_agents == ("default-agent", "b")
