from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stubs.stage import AGENT, ASK, ENV, GRADE, a_bundle, problems_of, staged

from agent_env.episode import plan_task
from agent_env.steps.access import ToolAccess

pytestmark = pytest.mark.integration

names = st.sampled_from(["*", "a", "b"])
changes = st.lists(st.tuples(names, st.lists(names, max_size=3), st.booleans()), max_size=6)


def hide(role: str, *tools: str) -> dict[str, Any]:
    step = {"type": "modify_env_tool_access", "env_id": "stub", "action": "disable", "role": role, "tools": list(tools)}
    return {"id": f"hide-{role}-{'-'.join(tools)}", **step}


def test_the_envs_own_wish_holds_without_rules() -> None:
    access = ToolAccess()
    assert not access.hides("a", None, by_default=False)
    assert access.hides("a", None, by_default=True)


def test_a_role_that_is_none_is_the_default_role() -> None:
    access = ToolAccess()
    access.change("default", ["a"], hide=True)
    assert access.hides("a", None, by_default=False)
    assert access.hides("a", "default", by_default=False)
    assert not access.hides("a", "clerk", by_default=False)


def test_a_hidden_tool_is_shown_only_by_a_rule_that_names_it() -> None:
    access = ToolAccess()
    access.change("*", ["*"], hide=False)
    assert access.hides("secret", None, by_default=True)
    access.change("default", ["secret"], hide=False)
    assert not access.hides("secret", None, by_default=True)


def test_a_roles_own_rule_goes_before_everybodys() -> None:
    access = ToolAccess()
    access.change("*", ["a"], hide=True)
    access.change("clerk", ["a"], hide=False)
    assert not access.hides("a", "clerk", by_default=False)
    assert access.hides("a", "boss", by_default=False)


@given(changes, st.sampled_from([None, "a", "b"]), st.sampled_from(["a", "b"]), st.booleans())
def test_what_the_last_fitting_rule_says_holds(history: Any, role: str | None, tool: str, by_default: bool) -> None:
    """Against the meaning told by history: a rule for all roles speaks to each role that has rules of its own too."""
    access = ToolAccess()
    own: bool | None = None
    every: bool | None = None
    own_all: bool | None = None
    every_all: bool | None = None
    has_own = False
    me = role or "default"
    for who, tools, hidden in history:
        access.change(who, tools, hide=hidden)
        for changed in tools:
            if (who, changed) == ("*", "*"):
                own = own_all = every = None
                every_all, has_own = hidden, False
            elif who == "*":
                if changed == tool:
                    every = hidden
                    own = hidden if has_own else own
            elif who == me and changed == "*":
                own, own_all, has_own = None, hidden, True
            elif who == me:
                has_own = True
                own = hidden if changed == tool else own
    ruled = [own, None if by_default else own_all, every, None if by_default else every_all, by_default]
    assert access.hides(tool, role, by_default=by_default) is next(rule for rule in ruled if rule is not None)


@pytest.mark.anyio
async def test_tools_are_hidden_and_shown_per_role(tmp_path: Path) -> None:
    show = {**hide("clerk", "plumbing"), "id": "show", "action": "enable"}
    steps = [ENV, hide("*", "crash"), hide("clerk", "big"), show, {**AGENT, "role": "clerk"}, ASK, GRADE]
    async with staged(a_bundle(tmp_path / "b", *steps)) as start:
        episode = await start()
        turn = await episode.next_turn()
        names = {tool.name for tool in turn.list()}
        assert {"plumbing", "submit"} <= names
        assert not {"crash", "big"} & names
        refused = await turn.call("crash", {})
        assert refused.is_error
        assert "Unknown tool: crash" in refused.text
        await episode.abandon("enough")


@pytest.mark.anyio
async def test_what_is_hidden_between_two_turns_is_gone_in_the_second(tmp_path: Path) -> None:
    second = {**ASK, "id": "again", "prompt_id": "again"}
    steps = [ENV, AGENT, ASK, hide("default", "*"), second, GRADE]
    async with staged(a_bundle(tmp_path / "b", *steps)) as start:
        episode = await start()
        turn = await episode.next_turn()
        assert turn.list()
        await turn.end("")
        turn = await episode.next_turn()
        assert turn.list() == []
        await turn.end("")
        assert await episode.result() == {"grade": 0.0}


def test_tasks_that_hide_other_tools_have_other_toolsets(tmp_path: Path) -> None:
    def toolset(name: str, *steps: dict[str, Any]) -> str:
        bundle = a_bundle(tmp_path / name, ENV, *steps, AGENT, ASK, GRADE)
        return plan_task(bundle.tasks["t"], bundle).toolset

    assert toolset("plain") == "stub"
    assert toolset("hidden", hide("default", "b", "a")) == "stub|-stub:default:a,b"
    assert toolset("others", hide("clerk", "a")) == "stub"
    assert toolset("all", hide("*", "a")) == "stub|-stub:*:a"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"action": "hide"}, "step 'm': action: input should be 'enable' or 'disable'"),
        ({"role": ""}, "step 'm': role: string should have at least 1 character"),
        ({"tools": "*"}, "step 'm': tools: input should be a valid list"),
        ({"env_id": "none"}, "step 'm': env_id: no env 'none' in this bundle; there is 'stub'"),
    ],
)
def test_wrong_fields_are_named(tmp_path: Path, change: dict[str, Any], expected: str) -> None:
    (problem,) = problems_of(tmp_path / "b", ENV, {**hide("x", "a"), "id": "m", **change})
    assert problem.startswith(expected.split(";")[0])
