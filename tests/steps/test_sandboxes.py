from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from stubs.stage import AGENT, ASK, ENV, GRADE, a_bundle, played, problems_of, refusals_of, staged, warnings_of

from agent_env.episode import Deadlines, Episode, EpisodeFailure
from agent_env.errors import FailureKind

pytestmark = pytest.mark.integration

BOX = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm", "sandbox_type": "local"}
GREETING = {"hello.txt": "hello there\n", "check.sh": "[[ $(cat hello.txt) == *hello* ]]\n"}
LOAD = {
    "id": "load",
    "type": "load_artifact",
    "sandbox_name": "box",
    "artifact_id": "greeting",
    "destination_path": "/app/greeting",
}


def verify(*criteria: dict[str, Any], **fields: Any) -> dict[str, Any]:
    usual = {"id": "look", "type": "verify_sandbox", "sandbox_name": "box", "base_dir": "/app/greeting"}
    return {**usual, "criteria": list(criteria), **fields}


@asynccontextmanager
async def boxed(folder: Path, *steps: dict[str, Any], **more: Any) -> AsyncIterator[Episode]:
    bundle = a_bundle(folder / "b", BOX, LOAD, *steps, artifacts={"greeting": GREETING})
    async with staged(bundle, **more) as start:
        yield await start()


async def rows_of(folder: Path, *criteria: dict[str, Any], **fields: Any) -> list[dict[str, Any]]:
    async with boxed(folder, verify(*criteria, **fields)) as episode:
        await episode.result()
        (verification,) = episode._context.verifications.values()
        return verification.results


@pytest.mark.anyio
async def test_files_and_commands_are_probed(tmp_path: Path) -> None:
    criteria = [
        {"type": "probe_file_exists", "criterion": "there", "paths": ["hello.txt", "/app/greeting/check.sh"]},
        {"type": "probe_dir_exists", "paths": ["/app/greeting"]},
        {"type": "probe_file_contains", "paths": ["hello.txt"], "expected": "^hel+o"},
        {"type": "bash_cmd_succeeds", "bash_cmd": "bash check.sh"},
        {
            "type": "bash_cmd_succeeds",
            "bash_cmd": "test -f /app/greeting/hello.txt && grep -q hello '/app/greeting/hello.txt'",
        },
    ]
    async with boxed(tmp_path, verify(*criteria)) as episode:
        assert await episode.next_turn() is None
        assert await episode.result() == {"look": 1.0}


@pytest.mark.anyio
async def test_what_is_not_met_says_why(tmp_path: Path) -> None:
    rows = await rows_of(
        tmp_path,
        {"type": "probe_file_exists", "paths": ["hello.txt", "bye.txt"]},
        {"type": "probe_dir_exists", "paths": ["hello.txt"]},
        {"type": "probe_file_contains", "paths": ["hello.txt"], "expected": "bye"},
        {"type": "probe_file_contains", "paths": ["bye.txt"], "expected": "bye"},
        {"type": "probe_file_contains", "paths": ["hello.txt"], "expected": "("},
        {"type": "probe_file_exists", "paths": []},
        {"type": "probe_file_exists", "paths": ["../../../../etc/passwd"]},
        {"type": "bash_cmd_succeeds", "bash_cmd": "echo no >&2; exit 3"},
        {"type": "bash_cmd_succeeds"},
        {"type": "bash_cmd_succeeds", "bash_cmd": "sleep 30"},
        shell_timeout_seconds=0.5,
    )
    assert [row["result"] for row in rows] == [False] * len(rows)
    assert [row["criterion_index"] for row in rows] == list(range(len(rows)))
    told = [row["justification"] for row in rows]
    for text, part in zip(
        told,
        [
            "missing: ['bye.txt']",
            "missing: ['hello.txt']",
            "does not contain 'bye'",
            "bye.txt can't be read",
            "'(' is no regular expression",
            "paths must name",
            "leads out of the sandbox",
            "exit code 3; stderr: no",
            "bash_cmd must be a text",
            "not done after 0.5 s",
        ],
        strict=True,
    ):
        assert part in text


@pytest.mark.anyio
async def test_criteria_of_other_types_are_rows_that_do_not_count(tmp_path: Path) -> None:
    met = {"type": "probe_file_exists", "paths": ["hello.txt"], "weight": 2}
    other = {"type": "response_contains", "needles": ["x"]}
    async with boxed(tmp_path, verify(met, other)) as episode:
        assert await episode.result() == {"look": 1.0}
        (verification,) = episode._context.verifications.values()
        assert [row["skipped"] for row in verification.results] == [False, True]
        assert verification.results[0]["weight"] == 2


@pytest.mark.anyio
async def test_no_criteria_is_no_row_and_scores_nothing(tmp_path: Path) -> None:
    async with boxed(tmp_path, verify()) as episode:
        assert await episode.result() == {"look": 0.0}


@pytest.mark.anyio
async def test_a_base_dir_that_is_not_there_is_a_criterion_not_met(tmp_path: Path) -> None:
    (row,) = await rows_of(tmp_path, {"type": "bash_cmd_succeeds", "bash_cmd": "true"}, base_dir="/nowhere")
    assert row["result"] is False
    assert "nowhere" in row["justification"]


@pytest.mark.anyio
async def test_a_pattern_that_never_ends_is_stopped_and_masks(tmp_path: Path) -> None:
    endless = {"type": "probe_file_contains", "paths": ["long.txt"], "expected": "^(a+)+$"}
    steps = [BOX, {**LOAD, "artifact_id": "long"}, verify(endless)]
    bundle = a_bundle(tmp_path / "b", *steps, artifacts={"long": {"long.txt": "a" * 60 + "!"}})
    async with staged(bundle, deadlines=Deadlines(verify=2.0)) as start:
        episode = await start()
        with pytest.raises(EpisodeFailure) as caught:
            await episode.result()
        assert caught.value.kind is FailureKind.VERIFIER_TIMEOUT


@pytest.mark.anyio
async def test_probes_have_one_deadline_in_all(tmp_path: Path) -> None:
    slow = {"type": "bash_cmd_succeeds", "bash_cmd": "sleep 30"}
    async with boxed(tmp_path, verify(slow, slow), deadlines=Deadlines(verify=0.5)) as episode:
        with pytest.raises(EpisodeFailure, match="--verify-timeout") as caught:
            await episode.result()
        assert caught.value.kind is FailureKind.VERIFIER_TIMEOUT


@pytest.mark.anyio
async def test_a_sandbox_that_was_taken_down_masks_and_is_no_score(tmp_path: Path) -> None:
    down = {"id": "down", "type": "teardown_sandboxes", "sandbox_names": ["box", "none"]}
    met = {"type": "probe_file_exists", "paths": ["hello.txt"]}
    async with boxed(tmp_path, down, verify(met)) as episode:
        with pytest.raises(EpisodeFailure) as caught:
            await episode.result()
        assert caught.value.kind is FailureKind.SANDBOX_LOST


@pytest.mark.anyio
async def test_what_is_taken_down_early_is_gone_while_the_task_goes_on(tmp_path: Path) -> None:
    down = {"id": "down", "type": "teardown_sandboxes", "env_ids": ["stub"], "agent_names": ["default-agent"]}
    nobody = {"id": "nobody", "type": "deploy_agent", "agent_name": "nobody"}
    later = {**ASK, "id": "later", "agent_name": "nobody"}
    bundle = a_bundle(tmp_path / "b", ENV, AGENT, {**GRADE, "id": "grade"}, down, nobody, later)
    async with staged(bundle) as start:
        episode = await start()
        turn = await episode.next_turn()
        assert not (await episode._context.envs["stub"].sandbox.state()).running
        await turn.end("")
        assert await episode.result() == {"grade": 0.0}
        assert episode.failed_steps == []


@pytest.mark.anyio
async def test_envs_and_sandboxes_live_side_by_side(tmp_path: Path) -> None:
    met = {"type": "probe_file_exists", "paths": ["hello.txt"]}
    steps = [BOX, LOAD, ENV, AGENT, ASK, GRADE, verify(met)]
    async with staged(a_bundle(tmp_path / "b", *steps, artifacts={"greeting": GREETING})) as start:
        assert await played(await start(), [("submit", {"value": 0.5})]) == {"grade": 0.5, "look": 1.0}


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([{**BOX, "sandbox_mode": "pod"}], "step 'box': sandbox_mode: input should be 'vm' or 'container'"),
        ([{**BOX, "sandbox_name": ""}], "step 'box': sandbox_name: string should have at least 1 character"),
        ([{**BOX, "memory_mb": 0}], "step 'box': memory_mb must be above 0"),
        ([BOX, {**BOX, "id": "two"}], "step 'two': sandbox 'box' is deployed twice in this task"),
        ([verify()], "step 'look': sandbox_name: no earlier deploy_sandbox step deploys 'box'"),
        ([BOX, verify(agent_name="me")], "step 'look': give either agent_name or sandbox_name"),
        ([BOX, verify(shell_timeout_seconds=0)], "step 'look': shell_timeout_seconds: input should be greater than 0"),
        (
            [BOX, {"id": "x", "type": "teardown_sandboxes"}],
            "step 'x': give at least one of env_ids, sandbox_names and agent_names",
        ),
    ],
)
def test_wrong_fields_are_named(tmp_path: Path, steps: list[dict[str, Any]], expected: str) -> None:
    assert expected in problems_of(tmp_path / "b", *steps)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([{**BOX, "sandbox_type": "modal"}], "sandbox_type 'modal' is not run here"),
        ([{**BOX, "sandbox_mode": "container", "image": "x", "port": 1}], "make its image an env"),
        ([{**BOX, "image": "x"}], "choose one with --sandbox-image"),
        ([{**BOX, "exposed_ports": [80]}], "exposed_ports is not run here"),
        ([{**BOX, "network_policy": {"mode": "allow_all"}}], "sandboxes have no network"),
        ([BOX, verify(sandbox_name=" ")], "agents have no sandbox of their own here"),
    ],
)
def test_what_is_not_run_is_refused_with_what_to_use(tmp_path: Path, steps: list[Any], expected: str) -> None:
    (refusal,) = refusals_of(tmp_path / "b", *steps)
    assert expected in refusal


def test_criteria_that_will_be_skipped_are_warned_of(tmp_path: Path) -> None:
    (warning,) = warnings_of(tmp_path / "b", BOX, verify({"type": "smells_right"}))
    assert warning.startswith("step 'look': criteria.0: type 'smells_right' is skipped")
