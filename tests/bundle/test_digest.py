from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_env.bundle import load_bundle
from agent_env.bundle.digest import context_files

WriteBundle = Callable[..., Path]


def digests(folder: Path) -> tuple[str, str]:
    bundle = load_bundle(folder)
    return bundle.digest, bundle.envs["shop"].digest


def test_digests_do_not_depend_on_where_the_bundle_lies_or_when_it_was_written(write_bundle: WriteBundle) -> None:
    folder = write_bundle()
    copy = folder.parent / "deep/er/other-name"
    shutil.copytree(folder, copy)
    for path in copy.rglob("*"):
        os.utime(path, (1, 1))
    assert digests(copy) == digests(folder)


@pytest.mark.parametrize(
    ("path", "bundle_changes", "env_changes"),
    [
        ("tasks/refund.json", True, False),
        ("evals/quick.toml", True, False),
        ("artifacts/check/verify.py", True, False),
        ("README.md", True, False),
        ("aliases.toml", True, False),
        ("envs/shop/server.py", True, True),
        ("envs/shop/new.txt", True, True),
        ("envs/shop/.hidden", True, True),
        ("envs/shop/env.toml", True, True),
        ("envs/shop/.dockerignore", True, True),
        ("envs/shop/agent-env.toml", True, True),
        ("envs/shop/__pycache__/server.pyc", False, False),
        ("envs/shop/.DS_Store", False, False),
        ("notes.txt", False, False),
        ("tasks/notes.txt", False, False),
        (".git/HEAD", False, False),
    ],
)
def test_a_digest_changes_with_every_file_that_is_part_of_it(
    write_bundle: WriteBundle, path: str, bundle_changes: bool, env_changes: bool
) -> None:
    folder = write_bundle()
    before = digests(folder)
    file = folder / path
    file.parent.mkdir(exist_ok=True)
    with file.open("a") as stream:
        stream.write("\n")
    after = digests(folder)
    assert (after[0] != before[0], after[1] != before[1]) == (bundle_changes, env_changes)


def test_a_file_that_dockerignore_names_is_part_of_the_bundle_and_not_of_the_context(
    write_bundle: WriteBundle,
) -> None:
    folder = write_bundle({"envs/shop/.dockerignore": "agent-env.toml\n", "envs/shop/agent-env.toml": "pids = 10\n"})
    before = digests(folder)
    (folder / "envs/shop/agent-env.toml").write_text("pids = 20\n")
    after = digests(folder)
    assert after[0] != before[0]
    assert after[1] == before[1]


def test_build_arguments_are_part_of_what_is_built(write_bundle: WriteBundle) -> None:
    settings = '[build_args]\nBASE_IMAGE = "{}"\n'
    folder = write_bundle({"envs/shop/.dockerignore": "agent-env.toml\n", "envs/shop/agent-env.toml": settings})
    before = digests(folder)
    (folder / "envs/shop/agent-env.toml").write_text(settings.format("python:3.11"))
    assert digests(folder)[1] != before[1]


@pytest.mark.parametrize(("mode", "changes"), [(0o755, True), (0o600, True), (0o664, False)])
def test_who_may_read_and_run_a_file_counts_and_the_umask_does_not(
    write_bundle: WriteBundle, mode: int, changes: bool
) -> None:
    folder = write_bundle()
    (folder / "envs/shop/server.py").chmod(0o644)
    before = digests(folder)
    (folder / "envs/shop/server.py").chmod(mode)
    after = digests(folder)
    assert (after[0] != before[0], after[1] != before[1]) == (changes, changes)


def test_names_and_contents_can_not_be_mistaken_for_each_other(write_bundle: WriteBundle) -> None:
    one = load_bundle(write_bundle({"envs/shop/ab": "c"}, name="one")).envs["shop"].digest
    two = load_bundle(write_bundle({"envs/shop/a": "bc"}, name="two")).envs["shop"].digest
    assert one != two


def test_a_link_counts_as_what_it_leads_to(write_bundle: WriteBundle) -> None:
    plain = write_bundle({"envs/shop/common.py": "x = 1\n"}, name="plain")
    linked = write_bundle({"shared/common.py": "x = 1\n"}, name="linked")
    (linked / "envs/shop/common.py").symlink_to("../../shared/common.py")
    assert digests(linked) == digests(plain)


def test_context_files_are_those_the_digest_covers(write_bundle: WriteBundle) -> None:
    folder = write_bundle(
        {
            "envs/shop/.dockerignore": "*.log\nagent-env.toml\nDockerfile\n.venv\n",
            "envs/shop/agent-env.toml": "",
            "envs/shop/x.log": "",
            "envs/shop/.venv/lib/x.py": "",
            "envs/shop/data/y.csv": "",
            "envs/shop/__pycache__/z.pyc": "",
        }
    )
    files = context_files(load_bundle(folder).envs["shop"].path)
    assert list(files) == [".dockerignore", "Dockerfile", "data/y.csv", "server.py"]
    assert files["data/y.csv"].read_text() == ""
