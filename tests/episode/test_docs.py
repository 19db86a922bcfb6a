"""The code of docs/episodes.md does what the page says."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from agent_env.episode import EpisodeFailure
from agent_env.examples.gridsim.bundle import write_bundle

PAGE = Path(__file__).parents[2] / "docs" / "episodes.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)

pytestmark = [pytest.mark.anyio, pytest.mark.integration]


async def run(block: str, names: dict[str, Any]) -> None:
    """As a notebook's cell: `await` works at its top level."""
    code = compile(block, "episodes.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, names)
    if inspect.isawaitable(result):
        await result


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    write_bundle(tmp_path / "bundles" / "gridsim-v1")
    monkeypatch.chdir(tmp_path)
    return {}


async def test_the_blocks_run_in_order_and_print_what_the_page_says(
    cells: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    ten, turns, recorded, failing, many = BLOCKS
    assert len([line for line in ten.splitlines() if line]) == 10
    await run(ten, cells)
    assert capsys.readouterr().out == "{'grade': 0.2}\n"
    await run(turns, cells)
    assert "battery" in capsys.readouterr().out
    assert cells["scores"] == {"grade": 0.0}
    await run(recorded, cells)
    await run(failing, cells)
    assert capsys.readouterr().out == "turn_expired step 'ask': the turn was not ended after 0.5 s\n"
    await run(many, cells)
    assert capsys.readouterr().out == f"{[{'grade': 0.0}] * 4}\n"
    assert cells["EpisodeFailure"] is EpisodeFailure
