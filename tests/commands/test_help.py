from __future__ import annotations

import re
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from agent_env.cli import app


@pytest.mark.parametrize("command", ["run", "serve", "check", "gc", "example gridsim"])
def test_every_command_has_help_with_examples(command: str) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "120", "NO_COLOR": "1"})
    assert shown.exit_code == 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", shown.output)
    assert len(re.findall(rf"^ +(?:\S+=\S+ )?agent-env {command}", text.partition("Examples:")[2], re.MULTILINE)) >= 2


def test_the_command_itself_imports_little() -> None:
    code = (
        "import sys, agent_env.cli; print([m for m in ('httpx', 'openenv', 'docker', 'fastapi') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.strip() == "[]"


def test_an_unknown_command_is_a_usage_error() -> None:
    assert CliRunner().invoke(app, ["runn"]).exit_code == 2
