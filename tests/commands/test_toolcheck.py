from __future__ import annotations

from typing import Any

import pytest

from agent_env.commands.toolcheck import check_tools, schema_problems
from agent_env.env.tools import Tool
from agent_env.findings import Level

PLAIN = {"type": "object", "properties": {"a": {"type": ["string", "null"]}}, "required": ["a"]}


def tools(*names: str, schema: Any = PLAIN) -> list[Tool]:
    return [Tool(name=name, description="", input_schema=schema) for name in names]


def test_plain_tools_are_fine() -> None:
    assert check_tools(tools("add", "a-b", "x" * 64), "envs/e") == []


@pytest.mark.parametrize(
    ("name", "alias"),
    [("a.b", "a_b"), ("naïve", "na_ve"), ("verify", "verify_tool"), ("a/b", "a_b"), ("x" * 65, "x" * 55 + "_")],
)
def test_a_name_that_clients_refuse_is_told_with_what_they_call_it(name: str, alias: str) -> None:
    (finding,) = check_tools(tools(name), "envs/e")
    assert finding.level is Level.WARNING
    assert finding.where == f"envs/e: tool {name!r}"
    assert alias in finding.problem


@pytest.mark.parametrize("names", [("a.b", "a_b"), ("a.b", "a/b"), ("",)])
def test_names_that_can_not_be_told_apart_are_an_error(names: tuple[str, ...]) -> None:
    assert [finding.level for finding in check_tools(tools(*names), "envs/e")] == [Level.ERROR]


@pytest.mark.parametrize(
    ("schema", "problems"),
    [
        (PLAIN, []),
        ({}, []),
        (True, ["is no object"]),
        (None, ["is no object"]),
        ({"type": "string"}, ["is of type 'string', not object"]),
        ({"type": "object", "required": None}, ["has required: null"]),
        ({"anyOf": [PLAIN]}, ["has anyOf at the top"]),
        ({"$ref": "#/$defs/A", "$defs": {"A": PLAIN}}, ["has $ref at the top"]),
        ({"type": "object", "properties": {"x": True}}, ["has true in place of the schema of 'x'"]),
        ({"type": "object", "properties": {"x": {"items": {"title": None}}}}, ["has title: null"]),
        ({"type": "object", "properties": {"x": {"default": None, "enum": [None]}}}, []),
        ({"type": "object", "additionalProperties": False}, []),
        (
            {"type": "object", "properties": {"x": {"anyOf": [{"type": "null"}, {"required": None}]}}},
            ["has required: null"],
        ),
    ],
)
def test_what_strict_clients_refuse_of_a_schema(schema: Any, problems: list[str]) -> None:
    assert schema_problems(schema) == problems


def test_a_schema_without_a_bottom_is_an_error() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"type": "object", "properties": {"x": schema}}
    (finding,) = check_tools(tools("deep", schema=schema), "envs/e")
    assert (finding.level, finding.problem) == (Level.ERROR, "its schema is nested too deeply")


def test_a_schema_as_long_as_a_book_is_told() -> None:
    schema = {"type": "object", "properties": {f"p{n}": {"description": "x" * 1000} for n in range(100)}}
    (finding,) = check_tools(tools("big", schema=schema), "envs/e")
    assert "bytes" in finding.problem
