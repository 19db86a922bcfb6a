from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from stubs.stage import AGENT, ASK, ENV, GRADE, a_bundle, played, problems_of, staged, warnings_of

from agent_env.episode import Deadlines, EpisodeFailure
from agent_env.errors import FailureKind

pytestmark = pytest.mark.integration


def check(*criteria: dict[str, Any], **fields: Any) -> dict[str, Any]:
    usual = {"id": "said", "type": "agent_prompt_response_verifier", "prompt_id": "ask"}
    return {**usual, "criteria": list(criteria), **fields}


def has(*needles: str, **more: Any) -> dict[str, Any]:
    return {"type": "response_contains", "needles": list(needles), **more}


def matches(pattern: str, **more: Any) -> dict[str, Any]:
    return {"type": "response_regex_present", "pattern": pattern, **more}


async def rows_of(folder: Path, reply: str, *criteria: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    async with staged(a_bundle(folder / "b", ENV, AGENT, ASK, check(*criteria, **fields))) as start:
        episode = await start()
        await played(episode, reply=reply)
        return next(iter(episode._context.verifications.values())).results


@pytest.mark.anyio
async def test_replies_are_searched_for_words_and_patterns(tmp_path: Path) -> None:
    rows = await rows_of(
        tmp_path,
        "The answer is 42.\nIt is final.",
        has("answer", "42"),
        has("answer", "43", weight=3, note="kept"),
        matches(r"is \d+"),
        matches("answer.*final"),
        matches("answer.*final", flags=[]),
        matches("ANSWER", flags=["IGNORECASE"]),
        matches("^It", flags=["MULTILINE", "I"]),
    )
    assert [row["result"] for row in rows] == [True, False, True, True, False, True, True]
    assert rows[1]["justification"] == "missing: ['43']"
    assert (rows[1]["weight"], rows[1]["note"], rows[1]["criterion_index"], rows[1]["score"]) == (3, "kept", 1, 0.0)


@pytest.mark.anyio
async def test_an_empty_reply_is_a_reply(tmp_path: Path) -> None:
    (row,) = await rows_of(tmp_path, "", has("x"))
    assert row["result"] is False


@pytest.mark.anyio
async def test_scores_follow_the_aggregator_and_go_by_step(tmp_path: Path) -> None:
    steps = [
        ENV,
        AGENT,
        ASK,
        check(has("a"), has("b"), id="all", verifier_id="x"),
        check(has("a"), has("b"), id="any", score_aggregator="any_pass"),
        check(has("a", weight=3), has("b"), id="mean", score_aggregator="weighted_average"),
    ]
    async with staged(a_bundle(tmp_path / "b", *steps)) as start:
        assert await played(await start(), reply="a") == {"all": 0.0, "any": 1.0, "mean": 0.75}


@pytest.mark.anyio
async def test_a_pattern_that_never_ends_is_stopped_and_masks(tmp_path: Path) -> None:
    bundle = a_bundle(tmp_path / "b", ENV, AGENT, ASK, check(matches("^(a+)+$")))
    async with staged(bundle, deadlines=Deadlines(verify=1.5)) as start:
        episode = await start()
        with pytest.raises(EpisodeFailure) as caught:
            await played(episode, reply="a" * 60 + "!")
        assert caught.value.kind is FailureKind.VERIFIER_TIMEOUT


@pytest.mark.anyio
async def test_a_prompt_out_of_time_scores_nothing_where_the_task_goes_on(tmp_path: Path) -> None:
    late = {**ASK, "timeout_seconds": 0.2, "fail_task_on_error": False}
    async with staged(a_bundle(tmp_path / "b", ENV, AGENT, late, check(has("a")))) as start:
        episode = await start()
        assert await episode.next_turn() is not None
        assert await episode.result() == {"said": 0.0}
        (row,) = next(iter(episode._context.verifications.values())).results
        assert row["id"] == "prompt_error"
        assert "turn_expired" in row["message"]


@pytest.mark.anyio
async def test_a_prompt_that_the_env_failed_masks_all_the_same(tmp_path: Path) -> None:
    excused = {**ASK, "fail_task_on_error": False}
    async with staged(a_bundle(tmp_path / "b", ENV, AGENT, excused, check(has("a")))) as start:
        episode = await start()
        turn = await episode.next_turn()
        with pytest.raises(EpisodeFailure):
            await turn.call("crash", {})
        with pytest.raises(EpisodeFailure) as caught:
            await episode.result()
        assert caught.value.kind is FailureKind.ENV_CRASHED


@pytest.mark.anyio
async def test_rows_of_several_graders_are_scored_as_one(tmp_path: Path) -> None:
    box = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}
    probes = [{"type": "probe_dir_exists", "paths": ["/tmp"], "weight": 2}, {"type": "unheard_of", "weight": 100}]
    look = {"id": "look", "type": "verify_sandbox", "sandbox_name": "box", "verifier_id": "v", "criteria": probes}
    both = {"id": "both", "type": "aggregate_verifiers", "verifier_ids": ["v", "said", "grade"]}
    steps = [ENV, box, AGENT, ASK, check(has("a"), has("b")), GRADE, look, both]
    async with staged(a_bundle(tmp_path / "b", *steps)) as start:
        scores = await played(await start(), [("submit", {"value": 0.5})], reply="a")
    assert scores["both"] == pytest.approx((2 * 1 + 1 + 0 + 0.5) / 5)
    assert scores["grade"] == 0.5


@pytest.mark.anyio
async def test_nothing_to_aggregate_after_a_failed_grader_masks(tmp_path: Path) -> None:
    both = {"id": "both", "type": "aggregate_verifiers", "verifier_ids": ["grade"]}
    broken = {**GRADE, "fail_task_on_error": False}
    bundle = a_bundle(tmp_path / "b", ENV, AGENT, ASK, broken, both)
    (tmp_path / "b" / "artifacts" / "verify" / "verify.py").write_text("async def verify(url):\n    1 / 0\n")
    async with staged(bundle) as start:
        episode = await start()
        with pytest.raises(EpisodeFailure, match="step 'both': nothing was recorded for grade") as caught:
            await played(episode)
        assert caught.value.kind is FailureKind.NO_SCORE


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (check(has()), "criteria.0: response_contains needs needles"),
        (check(matches("")), "criteria.0: response_regex_present needs a pattern"),
        (check(matches("(")), "criteria.0: pattern '(': missing ), unterminated subpattern at position 0"),
        (check(matches("a", flags=["LOUD"])), "criteria.0: flags: 'LOUD' is no flag of Python's re"),
        (
            check({"type": "probe_file_exists"}),
            "criteria.0.type: input should be 'response_contains' or 'response_regex_present'",
        ),
        (check(prompt_id="no"), "prompt_id: no earlier prompt_agent step has prompt_id 'no'"),
        (check(verifier_id=""), "verifier_id must not be empty"),
        (
            {"id": "said", "type": "aggregate_verifiers", "verifier_ids": ["x"]},
            "verifier_ids: no earlier grader records 'x' (there are: none)",
        ),
        (
            {"id": "said", "type": "aggregate_verifiers", "verifier_ids": []},
            "verifier_ids: list should have at least 1 item after validation, not 0",
        ),
    ],
)
def test_wrong_fields_are_named(tmp_path: Path, step: dict[str, Any], expected: str) -> None:
    assert problems_of(tmp_path / "b", ENV, AGENT, ASK, step) == (f"step 'said': {expected}",)


def test_what_may_not_be_meant_is_warned_of(tmp_path: Path) -> None:
    assert warnings_of(tmp_path / "b", ENV, AGENT, ASK, check()) == (
        "step 'said': has no criteria, so its score is always 0",
    )
    twice = [check(has("a"), verifier_id="v"), check(has("a"), verifier_id="v", id="again")]
    assert warnings_of(tmp_path / "c", ENV, AGENT, ASK, *twice) == (
        "step 'again': verifier_id 'v' is step 'said''s too: its score takes the place of that one",
    )
