from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse
from stubs.judge import Answer, StubJudge, verdicts
from stubs.stage import AGENT, ASK, ENV, a_bundle, played, problems_of, refusals_of, staged, warnings_of

from agent_env.episode import EpisodeFailure
from agent_env.errors import ConfigError, FailureKind
from agent_env.grading.judge import Judge, JudgeSettings

CRITERIA = [
    {"id": "polite", "criterion": "Is polite.", "weight": 3},
    {"id": "right", "criterion": "Submits 1."},
]
JUDGE = {"id": "judge", "type": "rubrics_verifier", "prompt_id": "ask", "criteria": CRITERIA}


@asynccontextmanager
async def judged(folder: Path, *answers: Answer, **fields: Any) -> AsyncIterator[tuple[Callable[..., Any], StubJudge]]:
    stub = StubJudge(*answers)
    bundle = a_bundle(folder / "b", ENV, AGENT, ASK, {**JUDGE, **fields})
    async with stub.serving() as url:
        settings = JudgeSettings(base_url=url, model="m")
        async with staged(bundle, judge=Judge(settings)) as start:
            yield start, stub


@pytest.mark.anyio
async def test_a_judge_scores_what_the_agent_did_and_said(tmp_path: Path) -> None:
    async with judged(tmp_path, verdicts(1, 0), score_aggregator="weighted_average") as (start, stub):
        calls = [("submit", {"value": 0.25}), ("fail", {"message": "no refund"}), ("no_such", {})]
        assert await played(await start(), calls, reply="Thank you.") == {"judge": 0.75}
    (prompt,) = stub.prompts
    for part in (
        "Do it.",
        "Thank you.",
        'call: submit {"value": 0.25}',
        'answer: {"accepted": true}',
        "answer (error): Error executing tool fail: no refund",
        "call: no_such {}",
    ):
        assert part in prompt


@pytest.mark.anyio
async def test_recorded_model_calls_are_part_of_what_is_judged(tmp_path: Path) -> None:
    async with judged(tmp_path, verdicts(1, 1)) as (start, stub):
        episode = await start()
        turn = await episode.next_turn()
        await turn.record_model_call("I think about it.")
        await turn.end("done")
        assert await episode.result() == {"judge": 1.0}
    assert "agent: I think about it." in stub.prompts[0]


@pytest.mark.anyio
async def test_without_the_trajectory_the_reply_alone_is_judged(tmp_path: Path) -> None:
    more = {"use_trajectory": False, "grading_policy_prompt": "Be strict.", "run_context_for_judge": ["conversation"]}
    async with judged(tmp_path, verdicts(1, 1), **more) as (start, stub):
        await played(await start(), [("submit", {"value": 0.25})], reply="Bye.")
    assert "call: submit" not in stub.prompts[0]
    assert "user: Do it.\nagent: Bye." in stub.prompts[0]
    assert "Be strict." in stub.prompts[0]


@pytest.mark.anyio
async def test_an_answer_that_can_not_be_used_is_asked_for_again_with_the_reason(tmp_path: Path) -> None:
    async with judged(tmp_path, "Looks fine!", verdicts(1), verdicts(1, 1)) as (start, stub):
        assert await played(await start()) == {"judge": 1.0}
    assert "Looks fine!" in stub.prompts[1]
    assert "it is not JSON" in stub.prompts[1]
    assert "there is no verdict for criterion 2" in stub.prompts[2]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        ("Looks fine!", "the judge's answer can't be used, 3 times over: it is not JSON"),
        (PlainTextResponse("no key", status_code=401), "HTTP 401: no key"),
    ],
)
async def test_a_judge_that_fails_masks(tmp_path: Path, answer: Any, why: str) -> None:
    async with judged(tmp_path, answer) as (start, _):
        episode = await start()
        with pytest.raises(EpisodeFailure, match=f"step 'judge': .*{why}") as caught:
            await played(episode)
        assert caught.value.kind is FailureKind.JUDGE_FAILED


@pytest.mark.anyio
async def test_partial_credit_counts(tmp_path: Path) -> None:
    more = {"output_format": "rubric_partial", "score_aggregator": "weighted_average"}
    async with judged(tmp_path, verdicts(0.5, 0.9), **more) as (start, _):
        assert await played(await start()) == {"judge": pytest.approx((3 * 0.5 + 0.9) / 4)}


@pytest.mark.anyio
async def test_a_task_that_needs_a_judge_is_not_begun_without_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tasks/t\.json: step 'judge': no judge is set"):
        async with staged(a_bundle(tmp_path / "b", ENV, AGENT, ASK, JUDGE), judge=Judge(JudgeSettings())):
            raise AssertionError("it was begun")


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"criteria": []}, "criteria: list should have at least 1 item after validation, not 0"),
        ({"criteria": [{"criterion": "x"}]}, "criteria: each needs an id of its own, a string that is not empty"),
        ({"criteria": [{"id": "a"}, {"id": "a"}]}, "criteria: each needs an id of its own, a string that is not empty"),
        ({"prompt_id": "no"}, "prompt_id: no earlier prompt_agent step has prompt_id 'no'"),
    ],
)
def test_wrong_fields_are_named(tmp_path: Path, fields: dict[str, Any], expected: str) -> None:
    assert problems_of(tmp_path / "b", ENV, AGENT, ASK, {**JUDGE, **fields}) == (f"step 'judge': {expected}",)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"output_format": "rubric_evidence"}, "output_format 'rubric_evidence' is not run here: use rubric_binary"),
        ({"agent_name": "judge"}, "agent_name is not run here: the judge is a model, asked directly"),
        ({"judge_a2a_agent_id": "x"}, "judge_a2a_agent_id is not run here"),
        ({"context_facts_for_judge": {"a": "b"}}, "context_facts_for_judge is not run here"),
        ({"trajectory_filter": {"compaction_type": "screenshot"}}, "trajectory_filter: screenshots are not run here"),
    ],
)
def test_other_judges_are_refused_by_name(tmp_path: Path, fields: dict[str, Any], expected: str) -> None:
    (refusal,) = refusals_of(tmp_path / "b", ENV, AGENT, ASK, {**JUDGE, **fields})
    assert refusal.startswith(f"step 'judge': {expected}")


def test_an_agent_judge_is_asked_directly_with_a_warning(tmp_path: Path) -> None:
    (warning,) = warnings_of(tmp_path / "b", ENV, AGENT, ASK, {**JUDGE, "use_agent_judge": True})
    assert "the judge is asked directly here" in warning
