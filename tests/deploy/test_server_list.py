"""The list that the Ray script keeps, without Ray."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent_env.deploy.ray_servers import Fleet, Settings
from agent_env.errors import ConfigError


def fleet(file: Path, *urls: str) -> Any:
    made = Fleet(None, Settings("bundle", file))
    made._posts = {url: SimpleNamespace(url=url) for url in urls}  # type: ignore[misc]
    return made


def test_a_list_that_cannot_be_written_is_told_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--openenv-file .*/nowhere/servers: can't be written: No such file"):
        fleet(tmp_path / "nowhere" / "servers").look()
    fleet(tmp_path / "nowhere" / "servers").stop()


def test_a_list_that_cannot_be_written_for_a_while_is_told_once_and_tried_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = fleet(tmp_path / "servers", "http://a:1")
    servers._write()
    blocked = tmp_path / ".servers.new"
    blocked.mkdir()
    servers._posts["b"] = SimpleNamespace(url="http://b:1")
    servers._write()
    servers._write()
    assert capsys.readouterr().err.count("it is tried again, and the servers go on") == 1
    assert (tmp_path / "servers").read_text().splitlines()[1:] == ["http://a:1"]
    blocked.rmdir()
    servers._write()
    assert (tmp_path / "servers").read_text().splitlines()[1:] == ["http://a:1", "http://b:1"]
