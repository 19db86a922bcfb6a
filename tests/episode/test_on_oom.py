"""An env that runs out of memory masks its episode, or is scored where its settings say so."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from stubs.stage import AGENT, ASK, ENV, GRADE, a_bundle, staged

from agent_env.episode import EpisodeFailure
from agent_env.errors import FailureKind
from agent_env.sandbox.base import SandboxSpec, SandboxState
from agent_env.sandbox.process import ProcessProvider, ProcessSandbox

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

SECOND = {**ASK, "id": "again", "prompt_id": "again"}
HAS_A = {
    "id": "said",
    "type": "agent_prompt_response_verifier",
    "prompt_id": "again",
    "criteria": [{"type": "response_contains", "needles": ["a"]}],
}
SCORED = 'on_oom = "score"'


class KilledProvider(ProcessProvider):
    """Its sandboxes call every end of their own an end by the kernel's memory killer, which processes never tell."""

    async def start(self, spec: SandboxSpec) -> ProcessSandbox:
        sandbox = await super().start(spec)
        state = sandbox.state

        async def killed() -> SandboxState:
            told = await state()
            return replace(told, oom_killed=not told.running and not told.stopped_by_us)

        sandbox.state = killed  # type: ignore[method-assign]
        return sandbox


async def test_it_masks_by_default(tmp_path: Path) -> None:
    bundle = a_bundle(tmp_path / "b", ENV, AGENT, ASK, GRADE)
    async with staged(bundle, provider=KilledProvider()) as start:
        episode = await start()
        turn = await episode.next_turn()
        with pytest.raises(EpisodeFailure):
            await turn.call("crash", {})
        with pytest.raises(EpisodeFailure) as caught:
            await episode.result()
        assert caught.value.kind is FailureKind.PROVIDER_OOM_KILLED


async def test_where_it_is_scored_the_model_reads_so_and_the_other_turns_and_graders_run(tmp_path: Path) -> None:
    load: dict[str, Any] = {
        "id": "load",
        "type": "apply_server_config",
        "env_id": "stub",
        "directives": [{"uri": "urn:stub:load/v1", "args": {"value": 1}}],
    }
    reset = {"id": "reset", "type": "reset_env", "env_id": "stub", "fail_task_on_error": True}
    bundle = a_bundle(tmp_path / "b", ENV, AGENT, ASK, load, reset, SECOND, GRADE, HAS_A, settings=SCORED)
    async with staged(bundle, provider=KilledProvider()) as start:
        episode = await start()
        turn = await episode.next_turn()
        listed = [tool.name for tool in turn.list()]
        await turn.call("submit", {"value": 1.0})
        for _ in range(2):
            result = await turn.call("crash", {})
            assert result.is_error
            assert "used up its memory" in result.text
        await turn.end("")
        turn = await episode.next_turn()
        assert [tool.name for tool in turn.list()] == listed
        assert (await turn.call("look", {})).is_error
        await turn.end("a")
        assert await episode.result() == {"grade": 0.0, "said": 1.0}
        (row,) = episode._context.verifications["grade"].results
        assert row["id"] == "out_of_memory"
        assert "used up its memory" in row["description"]


async def test_an_env_that_dies_between_two_turns_is_scored_as_well(tmp_path: Path) -> None:
    bundle = a_bundle(tmp_path / "b", ENV, AGENT, ASK, SECOND, GRADE, settings=SCORED)
    async with staged(bundle, provider=KilledProvider()) as start:
        episode = await start()
        turn = await episode.next_turn()
        os.kill(episode._context.envs["stub"].sandbox.pid, signal.SIGKILL)
        await turn.end("")
        turn = await episode.next_turn()
        assert turn.list()
        assert "used up its memory" in (await turn.call("look", {})).text
        await turn.end("")
        assert await episode.result() == {"grade": 0.0}


@pytest.mark.parametrize(("settings", "scored"), [("", False), (SCORED, True)])
async def test_an_env_that_dies_while_it_is_graded_is_told_from_a_broken_grader(
    tmp_path: Path, settings: str, scored: bool
) -> None:
    bundle = a_bundle(tmp_path / "b", ENV, AGENT, ASK, GRADE, settings=settings, env_vars={"STUB_EXIT_ON_GET": "3"})
    async with staged(bundle, provider=KilledProvider()) as start:
        episode = await start()
        turn = await episode.next_turn()
        await turn.end("")
        if scored:
            assert await episode.result() == {"grade": 0.0}
            return
        with pytest.raises(EpisodeFailure, match="step 'grade'") as caught:
            await episode.result()
        assert caught.value.kind is FailureKind.PROVIDER_OOM_KILLED
