from __future__ import annotations

import re
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from agent_env.commands.example import example_gridsim
from agent_env.errors import ConfigError


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer()
    app.command("gridsim")(example_gridsim)
    return app


def export(folder: Path, dates: int) -> Path:
    path = folder / "dam.csv"
    rows = [
        f"04/{day:02}/2024,{hour:02}:00,{hub},{20 + 60 * (hour > 12)},N"
        for day in range(1, dates + 1)
        for hour in range(1, 25)
        for hub in ("HB_NORTH", "LZ_WEST")
    ]
    path.write_text("\n".join(["DeliveryDate,HourEnding,SettlementPoint,SettlementPointPrice,DSTFlag", *rows, "x,,,,"]))
    return path


def test_it_writes_the_synthetic_bundle_and_says_so(tmp_path: Path, app: typer.Typer) -> None:
    result = CliRunner().invoke(app, [str(tmp_path / "gridsim-v1")])
    assert result.exit_code == 0, result.output
    line = result.output.strip()
    assert line == f"wrote {tmp_path / 'gridsim-v1'}: 2,000 train and 200 eval days, synthetic prices"
    assert (tmp_path / "gridsim-v1" / "tasks" / "train-1999.json").exists()


def test_it_imports_real_prices_and_states_the_counts(tmp_path: Path, app: typer.Typer) -> None:
    file = export(tmp_path, 12)
    result = CliRunner().invoke(app, [str(tmp_path / "b"), "--prices", str(file), "--hub", "LZ_WEST"])
    assert result.exit_code == 0, result.output
    counts, wrote = result.output.strip().splitlines()
    assert counts == "dam.csv: 12 usable days, 12 taken; left out: 1 rows that could not be read"
    assert wrote == f"wrote {tmp_path / 'b'}: 11 train and 1 eval days, real prices"
    assert "LZ_WEST" in (tmp_path / "b" / "tasks" / "train-0000.json").read_text()


def test_a_hub_without_a_price_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--prices"):
        example_gridsim(tmp_path / "b", None, ["HB_NORTH"])
    assert not (tmp_path / "b").exists()


def test_the_help_shows_examples(app: typer.Typer) -> None:
    result = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "120", "NO_COLOR": "1"})
    text = re.sub(r"\x1b\[[0-9;]*m", "", result.output)
    assert "agent-env example gridsim bundles/gridsim-v1" in text
    assert "--prices" in text
    assert "--hub" in text
