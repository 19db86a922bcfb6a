from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.errors import ConfigError
from agent_env.training.nemo_gym.names import (
    BUILT_IN_SERVERS,
    alias_of,
    check_split,
    folder_name,
    tool_alias,
    tool_aliases,
)

CARRIED = re.compile(r"[A-Za-z0-9_-]{1,64}")


@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("gridsim-v1", "gridsim_v1"),
        ("GridSim v1.2", "gridsim_v1_2"),
        ("a+b", "a_b"),
        ("naïve", "na_ve"),
        ("7days", "7days"),
    ],
)
def test_a_folder_name_is_lower_case_letters_digits_and_underscores(name: str, folder: str) -> None:
    assert folder_name(name) == folder


@pytest.mark.parametrize("name", ["", "...", "日本", "-"])
def test_a_name_without_letter_or_digit_needs_another(name: str) -> None:
    with pytest.raises(ConfigError, match="give one with --name"):
        folder_name(name)


@pytest.mark.parametrize("name", ["openenv", "Calendar", "GPQA-Diamond"])
def test_a_built_in_servers_name_is_refused_with_a_proposal(name: str) -> None:
    with pytest.raises(ConfigError, match=r"one of NeMo Gym's own servers, which it would hide: give --name \w+_env"):
        folder_name(name)


def test_the_built_in_names_follow_the_name_rule() -> None:
    assert len(BUILT_IN_SERVERS) == 145
    assert all(re.fullmatch(r"[a-z0-9_]+", name) for name in BUILT_IN_SERVERS)


@pytest.mark.parametrize("split", ["train", "eval", "v1.2", "days-2025", "train_metrics_2"])
def test_splits_that_can_be_files(split: str) -> None:
    check_split(split)


@pytest.mark.parametrize(
    "split",
    ["all", "example", "train_metrics", "train_prepare", "", "a/b", "..", "a..b", ".hidden", "a b", "é", "a" * 101],
)
def test_splits_that_can_not_be_files(split: str) -> None:
    with pytest.raises(ConfigError):
        check_split(split)


@pytest.mark.parametrize("tool", ["a-b", "a_b", "health", "end_turn", "__proto__", "A" * 64, "status", "capacity"])
def test_a_name_that_clients_can_carry_stays(tool: str) -> None:
    assert tool_alias(tool) == tool
    assert tool_aliases([tool]) == {}


@pytest.mark.parametrize(
    ("tool", "alias"),
    [
        ("a.b", "a_b"),
        ("a/b", "a_b"),
        ("..", "__"),
        ("naïve", "na_ve"),
        ("a b?x=1#y", "a_b_x_1_y"),
        ("verify", "verify_tool"),
        ("seed_session", "seed_session_tool"),
        ("close_session", "close_session_tool"),
        ("aggregate_metrics", "aggregate_metrics_tool"),
        ("reverify_mode", "reverify_mode_tool"),
        ("mcp", "mcp_tool"),
    ],
)
def test_other_names_get_an_alias_that_leads_back(tool: str, alias: str) -> None:
    assert tool_aliases([tool, "other"]) == {alias: tool}
    assert alias_of({alias: tool}, tool) == alias
    assert alias_of({alias: tool}, "other") == "other"


def test_a_name_of_65_characters_is_cut_and_told_apart_by_a_digest() -> None:
    aliases = tool_aliases(["x" * 65, "x" * 66])
    assert len(aliases) == 2
    assert all(CARRIED.fullmatch(alias) for alias in aliases)


@pytest.mark.parametrize("tools", [["a.b", "a/b"], ["a.b", "a_b"], ["verify", "verify_tool"]])
def test_two_tools_that_would_be_called_alike_are_an_error(tools: list[str]) -> None:
    with pytest.raises(ConfigError, match="would both be called"):
        tool_aliases(tools)


def test_an_empty_tool_name_is_an_error() -> None:
    with pytest.raises(ConfigError, match="empty name"):
        tool_alias("")


@given(st.text(st.characters(), min_size=1, max_size=80))
def test_every_alias_can_be_carried_and_is_stable(tool: str) -> None:
    alias = tool_alias(tool)
    assert CARRIED.fullmatch(alias)
    assert tool_alias(alias) == alias
