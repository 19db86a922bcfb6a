# ruff: noqa: E501 - problem lines are shown as they are
"""Malformed bundles: faults of evals and aliases, and the exact lines they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def eval_toml(text: str) -> dict[str, Any]:
    return {"evals/e.toml": text}


def aliases(text: str) -> dict[str, Any]:
    return {"aliases.toml": text}


ROWS = [
    pytest.param(eval_toml(""), ["evals/e.toml: needs tasks = [...], a list with at least one task's name"], id="none"),
    pytest.param(
        eval_toml("tasks = []"),
        ["evals/e.toml: needs tasks = [...], a list with at least one task's name"],
        id="empty",
    ),
    pytest.param(
        eval_toml('tasks = "refund"'),
        ["evals/e.toml: needs tasks = [...], a list with at least one task's name"],
        id="str",
    ),
    pytest.param(
        eval_toml('tasks = ["refnd"]'),
        ["evals/e.toml: tasks[0]: no task 'refnd' in this bundle; did you mean 'refund'?"],
        id="unknown",
    ),
    pytest.param(
        eval_toml('tasks = ["Refund"]'),
        ["evals/e.toml: tasks[0]: 'Refund' isn't in this bundle, but 'refund' is; names are case-sensitive"],
        id="case",
    ),
    pytest.param(
        eval_toml('tasks = ["refund", "refund"]'),
        ["evals/e.toml: tasks[1]: 'refund' is also tasks[0]; an eval lists a task once"],
        id="dup",
    ),
    pytest.param(eval_toml("tasks = [1]"), ["evals/e.toml: tasks[0]: must be the name of a task, not 1"], id="int"),
    pytest.param(
        eval_toml('tasks = [{task = "x", version = 3}]'),
        ["evals/e.toml: tasks[0]: 'x' is in a store, and there is none here; name a task of this bundle"],
        id="store",
    ),
    pytest.param(
        eval_toml('tasks = ["refund.json"]'), ["evals/e.toml: tasks[0]: write 'refund', without .json"], id="ext"
    ),
    pytest.param(
        eval_toml('tasks = ["refund"]\ntype = "zz"'), ["evals/e.toml: type must be 'eval', not 'zz'"], id="type"
    ),
    pytest.param(
        eval_toml('tasks = ["refund"]\ntask = 1'),
        ["evals/e.toml: unknown key 'task'; did you mean 'tasks'? (an eval takes id, tasks and type)"],
        id="key",
    ),
    pytest.param(
        eval_toml('tasks = ["refund"]\nid = "q"'), ["evals/e.toml: id 'q' must begin with '@local/'"], id="id"
    ),
    pytest.param(
        {"evals/all.toml": 'tasks = ["refund"]'},
        ["evals/all.toml: the split `all` holds every task, so no eval can be called all; rename it"],
        id="all",
    ),
    pytest.param(eval_toml("tasks = ["), ["evals/e.toml: not valid TOML: ..."], id="syntax"),
    pytest.param(
        {"evals/e.toml": 'tasks = ["refund"]\nid = "@local/x"', "evals/f.toml": 'tasks = ["refund"]\nid = "@local/x"'},
        ["evals/f: id '@local/x' is already the id of evals/e"],
        id="ids",
    ),
    pytest.param(
        aliases('[tasks]\nt = ["x"]'),
        ["aliases.toml: unknown table [tasks] (it takes [agents] and [envs])"],
        id="table",
    ),
    pytest.param(
        aliases('[envs]\nshp = ["x"]'),
        ["aliases.toml: envs.shp: there is no envs/shp in this bundle; did you mean 'shop'?"],
        id="folder",
    ),
    pytest.param(
        aliases('[envs]\nshop = "x"'), ["aliases.toml: envs.shop must be a list of aliases, not 'x'"], id="str"
    ),
    pytest.param(
        aliases('[envs]\nshop = ["A b"]'),
        [
            "aliases.toml: envs.shop: 'A b' is no alias: lower-case letters, digits and '-', at most 64, with a letter or digit at both ends"
        ],
        id="char",
    ),
    pytest.param(
        aliases('[envs]\nshop = ["s", "s"]'),
        ["aliases.toml: envs.shop: 's' is already the alias of envs/shop"],
        id="dup",
    ),
    pytest.param(
        aliases("envs = 1"),
        ["aliases.toml: [envs] must be a table of folder names to lists of aliases"],
        id="notable",
    ),
    pytest.param(aliases("["), ["aliases.toml: not valid TOML: ..."], id="syntax"),
]


@pytest.mark.parametrize(("files", "lines"), ROWS)
def test_each_fault_gives_its_exact_lines(
    files: dict[str, Any], lines: list[str], problems: Callable[[dict[str, Any]], list[str]]
) -> None:
    assert problems(files) == lines
