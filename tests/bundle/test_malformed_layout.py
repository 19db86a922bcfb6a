# ruff: noqa: E501 - problem lines are shown as they are
"""Malformed bundles: faults of the folder itself, and the exact lines they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

CARD = '@environment_card(name="shop")\nclass Shop: ...\n'
STEPS = [{"id": "env", "type": "deploy_env", "env_id": "shop"}]

ROWS = [
    pytest.param(
        {"bundle.toml": ""},
        ["bundle.toml: is reserved: a bundle is named by its folder and described by its README.md"],
        id="bundle-toml",
    ),
    pytest.param(
        {"BUNDLE.toml": ""},
        ["BUNDLE.toml: is reserved: a bundle is named by its folder and described by its README.md"],
        id="Bundle-toml",
    ),
    pytest.param({"Tasks/x.json": "[]"}, ["Tasks: spell it tasks; names are case-sensitive"], id="kind-case"),
    pytest.param(
        {"tasks/refund.json": None, "evals/quick.toml": None, "TASKS/x.json": "[]"},
        ["TASKS: spell it tasks; names are case-sensitive"],
        id="kind-case-alone",
    ),
    pytest.param(
        {"Aliases.toml": ""}, ["Aliases.toml: spell it aliases.toml; names are case-sensitive"], id="aliases-case"
    ),
    pytest.param({"aliases.toml/x": ""}, ["aliases.toml: must be a file"], id="aliases-folder"),
    pytest.param({"skills": "x"}, ["skills: must be a folder"], id="kind-is-file"),
    pytest.param(
        {"tasks/x.JSON": "[]"}, ["tasks/x.JSON: rename it to x.json; names are case-sensitive"], id="task-suffix"
    ),
    pytest.param({"tasks/x/y.json": "[]"}, ["tasks/x: is a folder; write tasks/<name>.json"], id="task-folder"),
    pytest.param({"evals/x/y": ""}, ["evals/x: is a folder; write evals/<name>.toml"], id="eval-folder"),
    pytest.param(
        {"evals/x.Toml": ""}, ["evals/x.Toml: rename it to x.toml; names are case-sensitive"], id="eval-suffix"
    ),
    pytest.param({"envs/e/x.py": ""}, ["envs/e: needs a Dockerfile or an env.toml"], id="env-no-marker"),
    pytest.param(
        {"envs/e/DOCKERFILE": ""},
        ["envs/e/DOCKERFILE: rename it to Dockerfile; names are case-sensitive"],
        id="docker-case",
    ),
    pytest.param(
        {"envs/shop/Env.toml": ""},
        ["envs/shop/Env.toml: rename it to env.toml; names are case-sensitive"],
        id="envtoml-case",
    ),
    pytest.param(
        {"envs/shop/Agent-Env.toml": ""},
        ["envs/shop/Agent-Env.toml: rename it to agent-env.toml; names are case-sensitive"],
        id="settings-case",
    ),
    pytest.param({"agents/g/x": ""}, ["agents/g: needs a Dockerfile or an agent.toml"], id="agent-no-marker"),
    pytest.param(
        {"agents/g/Agent.toml": ""},
        ["agents/g/Agent.toml: rename it to agent.toml; names are case-sensitive"],
        id="agenttoml-case",
    ),
    pytest.param(
        {"skills/s/skill.md": ""},
        ["skills/s/skill.md: rename it to SKILL.md; names are case-sensitive"],
        id="skill-case",
    ),
    pytest.param({"skills/s/x": ""}, ["skills/s: a skill needs a SKILL.md"], id="skill-none"),
    pytest.param(
        {"artifacts/a/Artifact.toml": ""},
        ["artifacts/a/Artifact.toml: rename it to artifact.toml; names are case-sensitive"],
        id="art-case",
    ),
    pytest.param(
        {"artifacts/a/SKILL.md": ""},
        ["artifacts/a: holds a SKILL.md: skills live in skills/<name>/, not in artifacts/"],
        id="art-skill",
    ),
    pytest.param(
        {"skills/check/SKILL.md": ""},
        ["skills/check: has the name of artifacts/check; artifacts and skills share one name space"],
        id="art-skill-shared",
    ),
    pytest.param(
        {"tasks/Refund.json": STEPS},
        ["tasks/refund.json: differs from tasks/Refund.json only in case or Unicode form; rename one"],
        id="task-case-pair",
    ),
    pytest.param(
        {"envs/Shop/Dockerfile": "", "envs/Shop/server.py": CARD},
        ["envs/shop: differs from envs/Shop only in case or Unicode form; rename one"],
        id="env-case-pair",
    ),
    pytest.param(
        {"tasks/café.json": STEPS, "tasks/café.json": STEPS},
        ["tasks/café.json: differs from tasks/café.json only in case or Unicode form; rename one"],
        id="unicode-pair",
    ),
    pytest.param(
        {"tasks/a:b.json": STEPS},
        [
            "tasks/a:b.json: rename it: the name contains ':'; allowed are letters, digits, spaces and . _ - ~ / @ ( ) + , &"
        ],
        id="name-colon",
    ),
    pytest.param(
        {"tasks/😀.json": STEPS},
        [
            "tasks/😀.json: rename it: the name contains '😀'; allowed are letters, digits, spaces and . _ - ~ / @ ( ) + , &"
        ],
        id="name-emoji",
    ),
    pytest.param(
        {"tasks/a\tb.json": STEPS},
        [
            "tasks/a\\tb.json: rename it: the name contains '\\t'; allowed are letters, digits, spaces and . _ - ~ / @ ( ) + , &"
        ],
        id="name-tab",
    ),
    pytest.param(
        {"tasks/ a.json": STEPS}, ["tasks/ a.json: rename it: the name begins or ends with a space"], id="name-space"
    ),
    pytest.param(
        {"envs/a\\b/Dockerfile": ""},
        [
            "envs/a\\b: rename it: the name contains '\\\\'; allowed are letters, digits, spaces and . _ - ~ / @ ( ) + , &"
        ],
        id="name-backslash",
    ),
    pytest.param(
        {"artifacts/a__b/x": ""},
        ["artifacts/a__b: '__' is reserved in names of artifacts and skills; rename it"],
        id="name-dunder-art",
    ),
    pytest.param(
        {"skills/a__b/SKILL.md": ""},
        ["skills/a__b: '__' is reserved in names of artifacts and skills; rename it"],
        id="name-dunder-skill",
    ),
]


@pytest.mark.parametrize(("files", "lines"), ROWS)
def test_each_fault_gives_its_exact_lines(
    files: dict[str, Any], lines: list[str], problems: Callable[[dict[str, Any]], list[str]]
) -> None:
    assert problems(files) == lines
