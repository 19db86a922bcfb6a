# ruff: noqa: E501 - problem lines are shown as they are
"""Malformed bundles: faults of artifacts, and the exact lines they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def artifact(toml: str, **files: str) -> dict[str, Any]:
    return {"artifacts/a/artifact.toml": toml, **{f"artifacts/a/{path}": text for path, text in files.items()}}


ROWS = [
    pytest.param(
        artifact('type = "file"', x="", y=""),
        ["artifacts/a: a file artifact holds one file, not 2 ('x' and 'y')"],
        id="two",
    ),
    pytest.param(artifact('type = "file"'), ["artifacts/a: has no files"], id="empty"),
    pytest.param(
        artifact(""),
        ["artifacts/a: has no files; an artifact without a declared type needs at least one"],
        id="only-toml",
    ),
    pytest.param(
        artifact('type = "zip"', x=""),
        [
            "artifacts/a/artifact.toml: 'zip' is no artifact type (known: file, file_artifact_universe, docker_image, environment, environment_universe and cli)"
        ],
        id="type",
    ),
    pytest.param(artifact("type = 1", x=""), ["artifacts/a/artifact.toml: type must be a string, not 1"], id="typeint"),
    pytest.param(
        artifact('type = "skill"', x=""),
        ["artifacts/a/artifact.toml: type 'skill' isn't declared: skills live in skills/<name>/ with a SKILL.md"],
        id="skill",
    ),
    pytest.param(
        artifact('descripton = "x"', x=""),
        [
            "artifacts/a/artifact.toml: unknown key 'descripton'; did you mean 'description'? (an artifact of type file takes description, id and type)"
        ],
        id="key",
    ),
    pytest.param(
        artifact("description = 1", x=""),
        ["artifacts/a/artifact.toml: description must be a non-empty string, not 1"],
        id="desc",
    ),
    pytest.param(
        artifact('type = "environment"', x=""),
        ["artifacts/a/artifact.toml: environment_name is required: the env whose data this is"],
        id="env",
    ),
    pytest.param(
        artifact('type = "environment"\nenvironment_name = "shop"', x="", y=""),
        [
            "artifacts/a: an environment artifact holds one file, not 2 ('x' and 'y'); or name a file artifact with `file`"
        ],
        id="env2",
    ),
    pytest.param(
        artifact('type = "service"\nenvironment_name = "shop"'),
        ["artifacts/a: an environment artifact holds one file, and has none; or name a file artifact with `file`"],
        id="env0",
    ),
    pytest.param(
        artifact('type = "environment"\nenvironment_name = "shop"\nfile = "chck"'),
        ["artifacts/a/artifact.toml: file: no artifact 'chck' in this bundle; did you mean 'check'?"],
        id="envfile",
    ),
    pytest.param(
        artifact('type = "environment"\nenvironment_name = "shop"\nfile = "check"', x=""),
        ["artifacts/a: names its file with `file`, so the folder holds artifact.toml only, not 'x'"],
        id="envboth",
    ),
    pytest.param(
        {
            **artifact('type = "environment"\nenvironment_name = "shop"\nfile = "u"'),
            "artifacts/u/x": "",
            "artifacts/u/y": "",
        },
        ["artifacts/a/artifact.toml: file: 'u' is a file_artifact_universe artifact, and this takes type file"],
        id="envkind",
    ),
    pytest.param(
        artifact('type = "environment_universe"'),
        ["artifacts/a: needs an environment: environment_artifacts, or a folder <environment_name>/ with its file"],
        id="univ0",
    ),
    pytest.param(
        artifact('type = "environment_universe"\nenvironment_artifacts = ["q"]'),
        ["artifacts/a/artifact.toml: environment_artifacts[0]: no artifact 'q' in this bundle"],
        id="univref",
    ),
    pytest.param(
        {
            **artifact('type = "environment_universe"\nenvironment_artifacts = ["d", "d"]'),
            "artifacts/d/artifact.toml": 'type = "environment"\nenvironment_name = "shop"',
            "artifacts/d/x": "",
        },
        ["artifacts/a/artifact.toml: environment_artifacts lists 'd' twice"],
        id="univdup",
    ),
    pytest.param(
        artifact('type = "environment_universe"', x=""),
        ["artifacts/a: 'x' belongs in a folder <environment_name>/ of this universe"],
        id="univfile",
    ),
    pytest.param(
        artifact('type = "environment_universe"', **{"shop/x": "", "shop/y": ""}),
        ["artifacts/a: the folder 'shop' must hold one file, not 2"],
        id="univ2",
    ),
    pytest.param(
        artifact('type = "docker_image"', x=""),
        ['artifacts/a: needs a Dockerfile, or ref = "<registry image>" in artifact.toml'],
        id="img",
    ),
    pytest.param(
        artifact('type = "docker_image"\nref = "ghcr.io/a:1"', Dockerfile=""),
        ["artifacts/a: has a Dockerfile and names a registry image with ref; remove one"],
        id="imgboth",
    ),
    pytest.param(
        artifact('type = "cli"', x=""),
        [
            "artifacts/a/artifact.toml: command_name is required: the name the command is installed under",
            "artifacts/a/artifact.toml: entrypoint is required: the file that is run",
        ],
        id="cli",
    ),
    pytest.param(
        artifact('type = "cli"\ncommand_name = "a b"\nentrypoint = "z"', x=""),
        [
            "artifacts/a/artifact.toml: command_name 'a b' isn't a plain name of letters, digits and . _ -",
            "artifacts/a: entrypoint 'z' is none of its files",
        ],
        id="clicmd",
    ),
    pytest.param(artifact('id = "x"', x=""), ["artifacts/a/artifact.toml: id 'x' must begin with '@local/'"], id="id"),
]


@pytest.mark.parametrize(("files", "lines"), ROWS)
def test_each_fault_gives_its_exact_lines(
    files: dict[str, Any], lines: list[str], problems: Callable[[dict[str, Any]], list[str]]
) -> None:
    assert problems(files) == lines
