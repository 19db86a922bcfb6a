from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_env.errors import ConfigError
from agent_env.training.nemo_gym.rows import (
    TaskEntry,
    build_row,
    for_task,
    function_tools,
    read_entry,
    read_rows,
    write_rows,
)

END = {"name": "end_turn", "description": None, "input_schema": {"type": "object"}}


def entry(**fields: Any) -> TaskEntry:
    listed = {
        "id": "tasks/a",
        "name": "a",
        "index": 2,
        "prompt": "P",
        "system_prompt": None,
        "toolset": "t",
        "turns": 1,
    }
    return read_entry("train", 2, listed | fields)


def test_an_entry_takes_the_tasks_name_and_else_the_last_segment_of_its_id() -> None:
    assert entry().name == "a"
    assert entry(name=None).name == "a"
    assert entry(name="", id="x/y/day 7").name == "day 7"


@pytest.mark.parametrize("name", ["ünï/code", "..", "x" * 300, "a\nb"])
def test_a_task_may_have_any_name(name: str, tmp_path: Path) -> None:
    row = build_row(entry(name=name), [], "agent")
    write_rows(tmp_path / "rows.jsonl", [row])
    assert read_rows(tmp_path / "rows.jsonl")[0].data["task_id"] == name


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (None, "lists NoneType, not an object"),
        ({"name": "a", "prompt": "P", "index": 7}, "lists index 7 there"),
        ({"prompt": "P"}, "neither name nor id"),
        ({"name": 3, "prompt": "P"}, "neither name nor id"),
        ({"name": "a", "prompt": None}, "has no prompt"),
    ],
)
def test_an_entry_that_can_not_be_played_names_itself(row: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=f"task 2 of split 'train'.*{said}"):
        read_entry("train", 2, row)


@pytest.mark.parametrize("turns", [None, "2", True])
def test_turns_that_are_no_number_are_not_told(turns: Any) -> None:
    assert entry(turns=turns).turns is None


def test_function_tools_have_all_four_keys_and_a_text_as_description() -> None:
    tools = function_tools([{"name": "a.b", "input_schema": None}, END], {"a_b": "a.b"})
    assert [set(tool) for tool in tools] == [{"type", "name", "description", "parameters", "strict"}] * 2
    assert [tool["name"] for tool in tools] == ["a_b", "end_turn"]
    assert [tool["description"] for tool in tools] == ["", ""]


@pytest.mark.parametrize(("turns", "offered"), [(0, False), (1, False), (2, True), (None, True)])
def test_end_turn_is_offered_for_several_turns(turns: int | None, offered: bool) -> None:
    assert bool(for_task(function_tools([END], {}), turns)) is offered


def test_rows_are_utf8_lines_without_a_mark(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    assert write_rows(path, [build_row(entry(prompt="Ändere\r\n\u2028 das"), [], "agent")] * 2) == 2
    content = path.read_bytes()
    assert content.count(b"\n") == 2
    assert content.endswith(b"}\n")
    assert not content.startswith(b"\xef\xbb\xbf")
    assert "Ändere".encode() in content
    assert json.loads(content.split(b"\n")[0])["task_id"] == "a"


def test_reading_stops_at_the_limit_before_a_bad_line(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    write_rows(path, [build_row(entry(), [], "agent")])
    path.write_bytes(path.read_bytes() + b"oops\n")
    assert len(read_rows(path, 1)) == 1
    with pytest.raises(ConfigError, match="line 2: not JSON"):
        read_rows(path)


def test_a_row_offers_its_function_tools_alone(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    tools = [{"type": "function", "name": "a"}, {"name": "no type"}, {"type": "web_search"}, "odd"]
    path.write_text(json.dumps({"responses_create_params": {"input": "Go.", "tools": tools}}))
    row = read_rows(path)[0]
    assert [tool["name"] for tool in row.tools] == ["a"]
    assert (row.prompt, row.id) == ("Go.", "0")
