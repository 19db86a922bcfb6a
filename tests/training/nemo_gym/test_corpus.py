"""Odd inputs seen in the field, each with its expected answer: names, schemas, arguments, rewards, row files, task ids.

What concerns the life of a session (seeds twice, verify during a call, cookies, connections lost in each phase) is in
test_server_life.py and test_server_failures.py; daemons stopped, images removed, disks full, memory and processes used
up are in tests/docker.
"""

from __future__ import annotations

import json
import math
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from agent_env.errors import ConfigError
from agent_env.training.nemo_gym.names import tool_alias, tool_aliases
from agent_env.training.nemo_gym.openenv_replies import measured
from agent_env.training.nemo_gym.rows import read_rows
from agent_env.training.nemo_gym.schemas import normalise
from agent_env.training.nemo_gym.wire import WireError, parse_arguments, parse_seed


@pytest.mark.parametrize(
    ("name", "alias"),
    [
        ("a.b", "a_b"),
        ("a-b", "a-b"),
        ("verify", "verify_tool"),
        ("seed_session", "seed_session_tool"),
        ("mcp", "mcp_tool"),
        ("health", "health"),
        ("end_turn", "end_turn"),
        ("naïve", "na_ve"),
        ("a/b", "a_b"),
        ("..", "__"),
        ("__proto__", "__proto__"),
    ],
)
def test_a_tool_name_gets_an_alias_where_a_client_cannot_carry_it(name: str, alias: str) -> None:
    assert tool_alias(name) == alias


def test_a_tool_name_of_65_characters_is_cut_and_stays_its_own() -> None:
    alias = tool_alias("x" * 65)
    assert len(alias) == 64
    assert alias != tool_alias("x" * 66)


def test_an_empty_tool_name_is_refused() -> None:
    with pytest.raises(ConfigError, match="empty name"):
        tool_alias("")


@pytest.mark.parametrize("names", [["a.b", "a_b"], ["a.b", "a/b"]])
def test_two_names_equal_after_aliasing_are_refused_with_both(names: list[str]) -> None:
    with pytest.raises(ConfigError, match="would both be called 'a_b'") as caught:
        tool_aliases(names)
    assert all(repr(name) in str(caught.value) for name in names)


INTEGER = {"type": "integer"}
BIG = {"type": "object", "properties": {f"p{i}": {"type": "string", "description": "d" * 100} for i in range(2000)}}


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "object", "required": None}, {"type": "object", "properties": {}}),
        (
            {"$ref": "#/$defs/A", "$defs": {"A": {"type": "object", "properties": {"x": INTEGER}}}},
            {
                "type": "object",
                "properties": {"x": INTEGER},
                "$defs": {"A": {"type": "object", "properties": {"x": INTEGER}}},
            },
        ),
        (
            {"anyOf": [{"type": "object", "properties": {n: INTEGER}} for n in "xy"]},
            {"type": "object", "properties": {"x": INTEGER, "y": INTEGER}},
        ),
        ({"type": "object", "properties": {"x": INTEGER}}, {"type": "object", "properties": {"x": INTEGER}}),
        (True, {"type": "object", "properties": {}}),
        (
            {"type": "object", "properties": {"x": {"type": ["string", "null"]}}},
            {"type": "object", "properties": {"x": {"type": ["string", "null"]}}},
        ),
        (BIG, BIG),
    ],
    ids=["required-null", "ref", "anyOf-at-top", "no-additionalProperties", "true", "type-list", "300-kB"],
)
def test_a_schema_is_shown_in_a_form_that_strict_back_ends_take(schema: Any, shown: dict[str, Any]) -> None:
    assert normalise(schema) == shown


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"[]", "must be a JSON object, got a list"),
        (b"1", "must be a JSON object, got a number"),
        (b"null", "must be a JSON object, got nothing"),
        (b'"x"', "must be a JSON object, got a text"),
        (b'{"a": NaN}', "not valid JSON"),
        (b'{"a":' * 10_000 + b"1" + b"}" * 10_000, "depth limit exceeded"),
        (b'{"a":' + b"[" * 1000 + b"]" * 1000 + b"}", "nested more than 100 deep"),
        (b'{"a":"\\ud800"}', "no low surrogate"),
        (b"{", "unexpected end of data"),
        (b"\xff\xfe", "not valid UTF-8"),
    ],
    ids=["list", "number", "null", "text", "nan", "deep", "deep-but-valid", "surrogate", "cut", "bytes"],
)
def test_arguments_that_are_no_object_are_told_to_the_model(body: bytes, words: str) -> None:
    with pytest.raises(WireError, match=words) as caught:
        parse_arguments(body)
    assert caught.value.status == 422


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        (b"", "{}"),
        (b'{"a":1,"a":2}', '{"a":1,"a":2}'),
        (b'{"a":' + b"[" * 90 + b"]" * 90 + b"}", '{"a":' + "[" * 90 + "]" * 90 + "}"),
        (b'{"a":[' + b"[]," * 200 + b"[]]}", '{"a":[' + "[]," * 200 + "[]]}"),
        (b'{"a":"\\u0000"}', '{"a":"\\u0000"}'),
        ('{"a":"\u202e\u200f"}'.encode(), '{"a":"\u202e\u200f"}'),
    ],
    ids=["none", "duplicate-keys", "deep", "wide", "nul", "rtl"],
)
def test_odd_but_valid_arguments_reach_the_env_as_they_came(body: bytes, sent: str) -> None:
    assert parse_arguments(body) == sent


@pytest.mark.parametrize(
    ("reward", "worth"),
    [
        (math.nan, None),
        (math.inf, None),
        (-math.inf, None),
        (1e400, None),
        (None, None),
        ("1", None),
        (Decimal(1), None),
        (True, 1.0),
        (1, 1.0),
        (0.5, 0.5),
    ],
)
def test_a_reward_is_a_finite_number_or_no_measurement(reward: object, worth: float | None) -> None:
    assert measured(reward) == worth


ROW = b'{"responses_create_params":{"input":"x"},"split":"a","index":0,"task_id":"t"}'


@pytest.mark.parametrize(
    ("content", "rows"),
    [(b"\xef\xbb\xbf" + ROW + b"\n", 1), (ROW + b"\r\n" + ROW + b"\r\n", 2), (ROW + b"\n\n\n", 1), (ROW, 1)],
    ids=["bom", "crlf", "blank-tail", "no-final-newline"],
)
def test_row_files_of_any_editor_are_read(tmp_path: Path, content: bytes, rows: int) -> None:
    (tmp_path / "rows.jsonl").write_bytes(content)
    assert len(read_rows(tmp_path / "rows.jsonl")) == rows


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "the file holds no row"), (ROW + b"\n{oops\n", "line 2: not JSON"), (b"[]\n", "line 1: a row is a JSON")],
)
def test_a_wrong_row_file_names_the_line(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "rows.jsonl").write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_rows(tmp_path / "rows.jsonl")


@pytest.mark.parametrize("task_id", ["a/b", "../x", "übung", "x" * 300])
def test_any_text_may_be_a_task_id_since_it_is_only_compared(task_id: str) -> None:
    seed = {"responses_create_params": {"input": "x"}, "split": "a", "index": 0, "task_id": task_id}
    assert parse_seed(json.dumps(seed).encode()).task_id == task_id


def test_a_task_id_that_is_no_text_is_named() -> None:
    with pytest.raises(WireError, match="task_id: must be a text, got a number"):
        parse_seed(b'{"responses_create_params":{"input":"x"},"split":"a","index":0,"task_id":3}')
