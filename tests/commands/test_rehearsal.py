"""One task played for a check, on real sandboxes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from stubs.runtimes import a_runtime
from stubs.stub_bundle import stub_task, write_stub_bundle

from agent_env.bundle import load_bundle
from agent_env.commands.players import policy_player
from agent_env.commands.rehearsal import Rehearsed, graded_twice, rehearse
from agent_env.commands.selection import choose
from agent_env.episode import Deadlines, plan_bundle
from agent_env.findings import Level

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

TOOLS = [
    {"name": "add", "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    {"name": "submit", "inputSchema": {"properties": {"value": {"type": "number"}}, "required": ["value"]}},
]
PLAIN = {"STUB_TOOLS": json.dumps(TOOLS)}


async def rehearsed(
    folder: Path,
    *,
    grader: str | None = None,
    policy: str | None = None,
    deadlines: Deadlines | None = None,
    env_vars: dict[str, str] | None = None,
    steps: list[dict[str, Any]] | None = None,
    **bundle: Any,
) -> Rehearsed:
    tasks = {"t": steps if steps is not None else stub_task(0.5)}
    path = write_stub_bundle(folder / "b", tasks=tasks, env_vars={**PLAIN, **(env_vars or {})}, **bundle)
    if grader is not None:
        (path / "artifacts/verify/verify.py").write_text(grader)
    loaded = load_bundle(path)
    async with a_runtime(loaded, deadlines=deadlines) as runtime:
        (task,) = choose(loaded, plan_bundle(loaded)).tasks
        return await rehearse(task, runtime, None if policy is None else policy_player(policy))


async def test_tools_are_called_with_made_up_arguments_and_the_task_is_graded_twice(tmp_path: Path) -> None:
    found = await rehearsed(tmp_path)
    assert found.findings == []
    assert found.tools == ("add", "submit")
    assert found.scores == {"grade": 1.0}, "what was submitted is 1.0, the plainest number"
    assert found.timings["deploy_s"] > 0


async def test_a_policy_plays_it_in_place_of_made_up_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_checking_policy.py").write_text(
        "async def half(play):\n    await play.call('submit', {'value': 0.5})\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "a_checking_policy", raising=False)
    found = await rehearsed(tmp_path, policy="a_checking_policy:half")
    assert (found.scores, found.findings) == ({"grade": 0.5}, [])


async def test_a_grader_that_scores_the_same_state_differently_is_found(tmp_path: Path) -> None:
    grader = "COUNT = []\nasync def verify(url):\n    COUNT.append(1)\n    return [{'result': len(COUNT) > 1}]\n"
    (finding,) = (await rehearsed(tmp_path, grader=grader)).findings
    assert finding.level is Level.ERROR
    assert finding.where == "tasks/t.json: step 'grade' (artifacts/verify/verify.py)"
    assert finding.problem == "it scored the same state 0 and then 1"
    assert "depend on the state alone" in finding.remedy


@pytest.mark.parametrize(
    ("grader", "words"),
    [
        ("async def verify(url):\n    raise KeyError('gone')\n", "verifier_error: verify.py: raised KeyError"),
        (
            "async def verify(url):\n    return [{'result': True, 'score': float('nan')}]\n",
            "score_not_finite: the",
        ),
        (
            "import time\nasync def verify(url):\n    time.sleep(60)\n",
            "verifier_timeout: verify.py was not",
        ),
        ("async def verify(url)\n", "verifier_error: verify.py:"),
    ],
)
async def test_a_grader_that_fails_is_placed_at_its_step(tmp_path: Path, grader: str, words: str) -> None:
    found = await rehearsed(tmp_path, grader=grader, deadlines=Deadlines(verify=1.0))
    finding = next(finding for finding in found.findings if finding.level is Level.ERROR)
    assert finding.where == "tasks/t.json: step 'grade' (artifacts/verify/verify.py)"
    assert finding.problem.startswith(words)
    assert finding.remedy


async def test_a_grader_that_returns_no_rows_scores_zero_and_is_no_fault(tmp_path: Path) -> None:
    found = await rehearsed(tmp_path, grader="async def verify(url):\n    return []\n")
    assert (found.scores, found.findings) == ({"grade": 0.0}, [])


@pytest.mark.parametrize(
    ("env_vars", "words"),
    [
        (
            {"STUB_EXIT_AT_START": "7"},
            "exit code 7; its last output: ending at once as asked",
        ),
        ({"STUB_START_DELAY": "60"}, "was not ready after 2 s"),
        ({"ENVIRONMENT_NAME": "other"}, "the env's card is named 'other', the bundle calls it 'stub'"),
    ],
)
async def test_an_env_that_does_not_start_is_named(tmp_path: Path, env_vars: dict[str, str], words: str) -> None:
    found = await rehearsed(tmp_path, env_vars=env_vars, settings="start_timeout = 2.0")
    (finding,) = [finding for finding in found.findings if finding.level is Level.ERROR]
    assert finding.where == "tasks/t.json (envs/stub)"
    assert words in finding.problem


async def test_a_tool_that_ends_the_env_is_named_and_the_grader_is_tried_all_the_same(tmp_path: Path) -> None:
    found = await rehearsed(tmp_path, env_vars={"STUB_CRASH_ON": "submit"})
    (finding,) = found.findings
    assert (finding.level, finding.where) == (Level.ERROR, "envs/stub: tool 'submit'")
    assert 'a call with {"value": 1.0} ended the episode: env_crashed' in finding.problem
    assert found.scores == {"grade": 0.0}


@pytest.mark.parametrize("name", ["end_turn", "reset"])
async def test_a_tool_with_a_reserved_name_is_an_error(tmp_path: Path, name: str) -> None:
    found = await rehearsed(tmp_path, env_vars={"STUB_TOOLS": json.dumps([{"name": name, "inputSchema": {}}])})
    (finding,) = found.findings
    assert f"env 'stub' has a tool {name!r}: the name is reserved" in finding.problem


async def test_names_and_schemas_of_tools_are_looked_at_once(tmp_path: Path) -> None:
    tools = [{"name": "a.b", "inputSchema": {"type": "object", "required": None}}]
    found = await rehearsed(
        tmp_path, env_vars={"STUB_TOOLS": json.dumps(tools)}, steps=stub_task(0.5, prompts=("One.", "Two."))
    )
    assert [finding.where for finding in found.findings] == ["envs/stub: tool 'a.b'"] * 2


async def test_a_load_that_is_refused_is_placed_at_its_step(tmp_path: Path) -> None:
    steps = stub_task(0.5)
    steps[1]["directives"][0]["args"] = {"value": "bad"}
    (finding,) = (await rehearsed(tmp_path, steps=steps)).findings
    assert finding.where == "tasks/t.json: step 'load'"
    assert "the value is bad" in finding.problem


async def test_a_step_that_may_fail_is_a_warning(tmp_path: Path) -> None:
    steps = stub_task(0.5)
    steps[1]["directives"][0]["args"] = {"value": "bad"}
    steps[1]["fail_task_on_error"] = False
    (finding,) = (await rehearsed(tmp_path, steps=steps)).findings
    assert (finding.level, finding.where) == (Level.WARNING, "tasks/t.json: step 'load'")


async def test_a_task_without_a_prompt_is_deployed_and_graded(tmp_path: Path) -> None:
    steps = [step for step in stub_task(0.5) if step["type"] not in ("deploy_agent", "prompt_agent")]
    found = await rehearsed(tmp_path, steps=steps)
    assert (found.tools, found.scores, found.findings) == ((), {"grade": 0.0}, [])


async def test_an_env_that_takes_long_to_start_is_a_warning(tmp_path: Path) -> None:
    found = await rehearsed(tmp_path, env_vars={"STUB_START_DELAY": "1.2"}, deadlines=Deadlines(deploy=3.0))
    (finding,) = found.findings
    assert finding.level is Level.WARNING
    assert "--deploy-timeout" in finding.remedy


def test_what_follows_a_grader_waits_for_its_copy(tmp_path: Path) -> None:
    steps = stub_task(0.5)
    steps.append({"id": "down", "type": "teardown_sandboxes", "env_ids": ["stub"], "depends_on": ["grade"]})
    loaded = load_bundle(write_stub_bundle(tmp_path / "b", tasks={"t": steps}))
    plan = graded_twice(plan_bundle(loaded)["t"])
    waits = {planned.step.id: planned.step.depends_on for planned in plan.steps}
    assert waits["grade (again)"] == ("grade",)
    assert waits["down"] == ("grade", "grade (again)")
