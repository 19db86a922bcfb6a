from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from stubs.stub_bundle import stub_task, write_stub_bundle

from agent_env.bundle import load_bundle
from agent_env.env.data import data_get
from agent_env.episode import Deadlines, Episode, EpisodeError, EpisodeFailure, EpisodeSpec, Runtime
from agent_env.errors import FailureKind
from agent_env.sandbox.capacity import Capacity
from agent_env.sandbox.process import ProcessProvider

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


class InProcessGrader:
    """Scores what was submitted, without a grader's venv; behaviour can be replaced by `act`."""

    def __init__(self) -> None:
        self.act: Callable[[str], Awaitable[list[dict[str, Any]]]] | None = None
        self.runs: list[Any] = []

    async def prepare(self) -> None: ...

    async def aclose(self) -> None: ...

    async def verify(
        self, source: Path, mcp_url: str, run: Any, *, step_id: str, timeout: float
    ) -> list[dict[str, Any]]:
        self.runs.append(run)
        if self.act is not None:
            return await self.act(mcp_url)
        import httpx

        body = {"jsonrpc": "2.0", "id": 1, "method": "data/get", "params": {}}
        async with httpx.AsyncClient(trust_env=False) as client:
            answer = await client.post(mcp_url.removesuffix("/mcp") + "/agentenv", json=body)
        value = answer.json()["result"]["parts"][0]["data"]["submission"]
        return [{"id": "value", "result": value == 1, "score": value or 0.0}]


@asynccontextmanager
async def stage(
    folder: Path, *, places: int = 4, deadlines: Deadlines | None = None, **bundle: Any
) -> AsyncIterator[tuple[Runtime, EpisodeSpec]]:
    loaded = load_bundle(write_stub_bundle(folder / "bundle", **bundle))
    provider = ProcessProvider()
    runtime = Runtime(
        provider,
        capacity=Capacity(places),
        grader=InProcessGrader(),  # type: ignore[arg-type]
        deadlines=deadlines,
    )
    await runtime.prepare(loaded.envs.values())
    try:
        yield runtime, EpisodeSpec.from_task(next(iter(loaded.tasks.values())))
    finally:
        await runtime.aclose()
    assert runtime.capacity.snapshot()["running"] == 0


async def play(episode: Episode, value: float) -> dict[str, float]:
    turn = await episode.next_turn()
    assert turn is not None
    result = await turn.call("submit", {"value": value})
    assert not result.is_error, result.text
    await turn.end("done")
    assert await episode.next_turn() is None
    return await episode.result()


async def test_an_episode_is_played_and_scored(tmp_path: Path) -> None:
    async with stage(tmp_path) as (runtime, spec):
        episode = await spec.start(runtime=runtime)
        assert await play(episode, 0.25) == {"grade": 0.25}
        assert episode.finished
        assert episode.turns_played == 1
        assert {"wait_s", "deploy_s", "load_s", "turn_s", "verify_s", "teardown_s"} <= episode.timings.keys()


async def test_the_turn_carries_prompt_system_prompt_and_visible_tools(tmp_path: Path) -> None:
    async with stage(tmp_path) as (runtime, spec):
        episode = await spec.start(runtime=runtime)
        turn = await episode.next_turn()
        assert turn is not None
        assert (turn.prompt, turn.system_prompt, turn.step_id) == ("Submit the value.", "You test stubs.", "ask")
        names = [tool.name for tool in turn.list()]
        assert "submit" in names
        assert "plumbing" not in names
        await episode.abandon("enough")


async def test_the_load_step_reaches_the_env_before_the_turn(tmp_path: Path) -> None:
    async with stage(tmp_path, tasks={"t": stub_task(0.75)}) as (runtime, spec):
        episode = await spec.start(runtime=runtime)
        turn = await episode.next_turn()
        assert turn is not None
        assert "0.75" in (await turn.call("look", {})).text
        await episode.abandon("enough")


async def test_what_the_model_does_wrong_is_text_and_the_turn_goes_on(tmp_path: Path) -> None:
    async with stage(tmp_path) as (runtime, spec):
        episode = await spec.start(runtime=runtime)
        turn = await episode.next_turn()
        assert turn is not None
        unknown = await turn.call("no_such", {})
        assert unknown.is_error
        assert "Unknown tool: no_such" in unknown.text
        refused = await turn.call("fail", {"message": "no"})
        assert refused.is_error
        await turn.end("")
        assert await episode.result() == {"grade": 0.0}


async def test_several_prompts_are_several_turns_and_the_grader_sees_the_last(tmp_path: Path) -> None:
    tasks = {"t": stub_task(0.5, prompts=("one", "two"))}
    async with stage(tmp_path, tasks=tasks) as (runtime, spec):
        episode = await spec.start(runtime=runtime)
        first = await episode.next_turn()
        assert first is not None
        await first.end("reply one")
        with pytest.raises(EpisodeError, match="over"):
            await first.call("look", {})
        second = await episode.next_turn()
        assert second is not None
        assert second.prompt == "two"
        await second.end("reply two")
        await episode.result()
        (run,) = runtime.grader.runs  # type: ignore[attr-defined]
        (turn,) = run["turns"]
        assert (turn["message"]["text"], turn["reply"]["text"]) == ("two", "reply two")


async def test_a_place_is_held_until_the_teardown_is_over_and_given_in_order(tmp_path: Path) -> None:
    async with stage(tmp_path, places=1) as (runtime, spec):
        first, second, third = [await spec.start(runtime=runtime) for _ in range(3)]
        assert await first.next_turn() is not None
        assert runtime.capacity.snapshot()["queued"] == 2
        await first.abandon("enough")
        assert await second.next_turn() is not None
        assert not second.finished
        assert not third.finished
        await second.abandon("enough")
        await play(third, 1.0)


@pytest.mark.parametrize(
    ("env_vars", "deadlines", "kind"),
    [
        ({"STUB_EXIT_AT_START": "7"}, Deadlines(), FailureKind.ENV_CRASHED),
        ({"STUB_START_DELAY": "30"}, Deadlines(deploy=0.5), FailureKind.DEPLOY_TIMEOUT),
        ({"STUB_LOAD_DELAY": "30"}, Deadlines(load=0.5), FailureKind.LOAD_TIMEOUT),
    ],
)
async def test_a_start_that_fails_says_how(
    tmp_path: Path, env_vars: dict[str, str], deadlines: Deadlines, kind: FailureKind
) -> None:
    async with stage(tmp_path, env_vars=env_vars, deadlines=deadlines) as (runtime, spec):
        episode = await spec.start(runtime=runtime)
        with pytest.raises(EpisodeFailure) as caught:
            await episode.next_turn()
        assert caught.value.kind is kind, caught.value
        await episode.closed()


async def test_a_refused_load_names_the_step_and_the_envs_message(tmp_path: Path) -> None:
    steps = stub_task(0.5)
    steps[1]["directives"][0]["args"] = {"value": "bad"}
    async with stage(tmp_path, tasks={"t": steps}) as (runtime, spec):
        episode = await spec.start(runtime=runtime)
        with pytest.raises(EpisodeFailure, match="step 'load'") as caught:
            await episode.next_turn()
        assert caught.value.kind is FailureKind.LOAD_FAILED


async def test_an_extension_that_is_not_advertised_lists_those_that_are(tmp_path: Path) -> None:
    steps = stub_task(0.5)
    steps[1]["directives"][0]["uri"] = "urn:none"
    async with stage(tmp_path, tasks={"t": steps}) as (runtime, spec):
        episode = await spec.start(runtime=runtime)
        with pytest.raises(EpisodeFailure, match="urn:stub:load/v1") as caught:
            await episode.result()
        assert caught.value.kind is FailureKind.LOAD_FAILED


async def test_an_env_that_dies_in_a_call_fails_the_episode(tmp_path: Path) -> None:
    async with stage(tmp_path) as (runtime, spec):
        episode = await spec.start(runtime=runtime)
        turn = await episode.next_turn()
        assert turn is not None
        with pytest.raises(EpisodeFailure) as caught:
            await turn.call("crash", {})
        assert caught.value.kind is FailureKind.ENV_CRASHED
        with pytest.raises(EpisodeFailure):
            await episode.result()


async def test_a_tool_past_its_deadline_masks(tmp_path: Path) -> None:
    async with stage(tmp_path, deadlines=Deadlines(tool=0.5)) as (runtime, spec):
        episode = await spec.start(runtime=runtime)
        turn = await episode.next_turn()
        assert turn is not None
        with pytest.raises(EpisodeFailure) as caught:
            await turn.call("sleep", {"seconds": 20})
        assert caught.value.kind is FailureKind.TOOL_TIMEOUT
        with pytest.raises(EpisodeFailure) as ended:
            await episode.scores()
        assert ended.value.kind is FailureKind.TOOL_TIMEOUT


async def test_a_tool_past_its_deadline_is_text_where_the_env_says_so(tmp_path: Path) -> None:
    settings = 'on_tool_timeout = "score"'
    async with stage(tmp_path, deadlines=Deadlines(tool=0.5), settings=settings) as (runtime, spec):
        episode = await spec.start(runtime=runtime)
        turn = await episode.next_turn()
        assert turn is not None
        result = await turn.call("sleep", {"seconds": 1})
        assert result.is_error
        assert "in time" in result.text
        await turn.end("")
        assert await episode.result() == {"grade": 0.0}


async def test_a_turn_past_its_deadline_masks_or_scores_as_the_env_says(tmp_path: Path) -> None:
    async with stage(tmp_path / "mask", deadlines=Deadlines(turn=0.2)) as (runtime, spec):
        episode = await spec.start(runtime=runtime)
        turn = await episode.next_turn()
        with pytest.raises(EpisodeFailure) as caught:
            await episode.result()
        assert caught.value.kind is FailureKind.TURN_EXPIRED
        assert turn is not None
        with pytest.raises(EpisodeFailure, match="turn_expired"):
            await turn.call("look", {})
    settings = 'on_turn_timeout = "score"'
    async with stage(tmp_path / "score", deadlines=Deadlines(turn=0.2), settings=settings) as (runtime, spec):
        episode = await spec.start(runtime=runtime)
        turn = await episode.next_turn()
        assert await episode.result() == {"grade": 0.0}
        assert turn is not None
        with pytest.raises(EpisodeError, match="over"):
            await turn.call("look", {})


async def test_abandoning_ends_a_call_in_flight_and_leaves_nothing(tmp_path: Path) -> None:
    async with stage(tmp_path) as (runtime, spec):
        episode = await spec.start(runtime=runtime)
        turn = await episode.next_turn()
        assert turn is not None
        call = asyncio.create_task(turn.call("sleep", {"seconds": 30}))
        await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            await episode.abandon("the client left", FailureKind.CLIENT_GONE)
            with pytest.raises(EpisodeFailure) as caught:
                await call
        assert caught.value.kind is FailureKind.CLIENT_GONE
        with pytest.raises(EpisodeFailure) as ended:
            await episode.result()
        assert ended.value.kind is FailureKind.CLIENT_GONE


@pytest.mark.parametrize("moment", ["queued", "deploying", "grading"])
async def test_abandoning_works_in_every_phase(tmp_path: Path, moment: str) -> None:
    env_vars = {"STUB_START_DELAY": "20"} if moment == "deploying" else None
    async with stage(tmp_path, places=1, env_vars=env_vars) as (runtime, spec):
        if moment == "queued":
            await spec.start(runtime=runtime)
        grading = asyncio.Event()

        async def hang(_: str) -> list[dict[str, Any]]:
            grading.set()
            await asyncio.sleep(60)
            return []

        runtime.grader.act = hang  # type: ignore[attr-defined]
        episode = await spec.start(runtime=runtime)
        if moment == "deploying":
            await episode.placed()
        if moment == "grading":
            turn = await episode.next_turn()
            assert turn is not None
            await turn.end("")
            await grading.wait()
        async with asyncio.timeout(5):
            await episode.abandon("test")
        with pytest.raises(EpisodeFailure) as caught:
            await episode.result()
        assert caught.value.kind is FailureKind.CANCELLED


async def test_a_cancelled_waiter_leaves_the_episode_alone(tmp_path: Path) -> None:
    async with stage(tmp_path, env_vars={"STUB_START_DELAY": "0.3"}) as (runtime, spec):
        episode = await spec.start(runtime=runtime)
        waiter = asyncio.create_task(episode.next_turn())
        await asyncio.sleep(0.05)
        waiter.cancel()
        await asyncio.wait({waiter})
        assert await play(episode, 0.5) == {"grade": 0.5}


async def test_a_grader_failure_is_the_episodes(tmp_path: Path) -> None:
    async with stage(tmp_path) as (runtime, spec):

        async def fails(_: str) -> list[dict[str, Any]]:
            raise EpisodeFailure(FailureKind.VERIFIER_ERROR, "step 'grade': ValueError: no")

        runtime.grader.act = fails  # type: ignore[attr-defined]
        episode = await spec.start(runtime=runtime)
        turn = await episode.next_turn()
        assert turn is not None
        await turn.end("")
        with pytest.raises(EpisodeFailure) as caught:
            await episode.result()
        assert caught.value.kind is FailureKind.VERIFIER_ERROR


async def test_a_step_that_may_fail_is_recorded_and_the_task_goes_on(tmp_path: Path) -> None:
    steps = stub_task(0.5)
    steps[1]["directives"][0]["uri"] = "urn:none"
    steps[1]["fail_task_on_error"] = False
    async with stage(tmp_path, tasks={"t": steps}) as (runtime, spec):
        episode = await spec.start(runtime=runtime)
        assert await play(episode, 1.0) == {"grade": 1.0}
        (failed,) = episode.failed_steps
        assert (failed["step_id"], failed["kind"]) == ("load", FailureKind.LOAD_FAILED)


async def test_closing_the_runtime_ends_every_episode(tmp_path: Path) -> None:
    async with stage(tmp_path, places=2) as (runtime, spec):
        episodes = [await spec.start(runtime=runtime) for _ in range(3)]
        assert await episodes[0].next_turn() is not None
        await runtime.aclose()
        for episode in episodes:
            with pytest.raises(EpisodeFailure) as caught:
                await episode.result()
            assert caught.value.kind is FailureKind.SERVER_SHUTDOWN


async def test_the_state_of_the_env_can_be_read_while_it_runs(tmp_path: Path) -> None:
    async with stage(tmp_path) as (runtime, spec):
        episode = await spec.start(runtime=runtime)
        turn = await episode.next_turn()
        assert turn is not None
        await turn.call("submit", {"value": 0.5})
        deployed = episode._context.envs["stub"]
        parts = await data_get(deployed.http, timeout=5)
        assert "0.5" in str(parts)
        await episode.abandon("enough")
