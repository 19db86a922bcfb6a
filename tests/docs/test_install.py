"""A clone is installed by the very lines of the quickstart, and then has the commands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from stubs.pages import DOCS, REPOSITORY, blocks, pages


def clone(folder: Path) -> Path:
    """What git would hand out, with what is not committed yet."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        source = REPOSITORY / name
        if source.is_file():
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    return folder


@pytest.mark.integration
@pytest.mark.timeout(900)
def test_the_quickstarts_lines_install_a_clone(tmp_path: Path) -> None:
    (block,) = [block for block in blocks(DOCS / "quickstart.md") if "pip install" in block.text]
    script = block.text.replace("python3 ", f"{sys.executable} ")
    pip = "uv pip" if shutil.which("uv") else "pip"  # the same, in a tenth of the time
    script = script.replace("pip install", f"{pip} install --quiet --constraint {REPOSITORY / 'constraints.txt'}")
    ask = "agent-env --version && python -c 'from agent_env.openenv.app import _openenv; print(_openenv().__name__)'"
    environment = {name: value for name, value in os.environ.items() if name not in ("VIRTUAL_ENV", "PYTHONPATH")}
    done = subprocess.run(
        ["bash", "-euc", f"{script}\n{ask}"],
        cwd=clone(tmp_path / "agent-env"),
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=880,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.strip().endswith("openenv.core.env_server.http_server")


def test_every_extra_that_is_installed_anywhere_exists() -> None:
    extras = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    named = {
        extra
        for page in pages()
        for group in re.findall(r"pip install '[^']*(?:\.|agent-env)\[([a-z,-]+)\]'", page.read_text("utf-8"))
        for extra in group.split(",")
    }
    assert {"openenv", "nemo-gym"} <= named <= set(extras)
