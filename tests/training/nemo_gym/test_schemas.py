from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agent_env.training.nemo_gym.schemas import normalise

EMPTY = {"type": "object", "properties": {}}


@pytest.mark.parametrize("schema", [None, True, False, [], "object", 3, {}, {"type": "object"}, {"type": None}])
def test_what_is_no_schema_takes_no_arguments(schema: Any) -> None:
    assert normalise(schema) == EMPTY


def test_a_plain_schema_stays_as_it_is() -> None:
    schema = {
        "type": "object",
        "properties": {
            "hour": {"type": "integer", "minimum": 0, "description": "from 0 on"},
            "note": {"type": ["string", "null"], "default": None},
        },
        "required": ["hour"],
        "additionalProperties": False,
    }
    assert normalise(copy.deepcopy(schema)) == schema


@pytest.mark.parametrize(
    ("schema", "shown"),
    [
        ({"type": "object", "properties": {}, "required": None}, EMPTY),
        ({"properties": {"a": {"type": "string", "description": None}}}, {"a": {"type": "string"}}),
        ({"properties": {"a": {"enum": [None, 1], "default": None}}}, {"a": {"enum": [None, 1], "default": None}}),
        ({"properties": {"a": {"const": None}}}, {"a": {"type": "null", "const": None}}),
        ({"properties": {"a": True, "b": False}}, {"a": {}, "b": {"not": {}}}),
        ({"properties": {"a": {"items": True}}}, {"a": {"type": "array", "items": {}}}),
        ({"properties": {"a": {"properties": {"b": {}}}}}, {"a": {"type": "object", "properties": {"b": {}}}}),
        ({"properties": {"a": {"enum": ["x", "y"]}}}, {"a": {"type": "string", "enum": ["x", "y"]}}),
        ({"properties": {"a": {"enum": ["x", 1]}}}, {"a": {"enum": ["x", 1]}}),
        ({"properties": {"a": {"anyOf": [True, None]}}}, {"a": {"anyOf": [{}, {}]}}),
        ({"properties": {"a": {"required": "b", "type": "object"}}}, {"a": {"type": "object"}}),
        ({"properties": {"required": {"type": "string"}, "type": None}}, {"required": {"type": "string"}, "type": {}}),
        ({"properties": None}, {}),
        ({"properties": []}, {}),
    ],
)
def test_keywords_that_back_ends_refuse_are_put_right(schema: Any, shown: Any) -> None:
    expected = shown if shown == EMPTY else {"type": "object", "properties": shown}
    assert normalise(schema) == expected


def test_additional_properties_keep_their_boolean() -> None:
    schema = {"type": "object", "properties": {}, "additionalProperties": True}
    assert normalise(schema) == schema
    nested = {"properties": {"a": {"additionalProperties": False}}}
    assert normalise(nested)["properties"]["a"] == {"type": "object", "additionalProperties": False}


def test_references_below_the_top_and_their_definitions_stay() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/A"}, "more": {"type": "array", "items": {"$ref": "#/$defs/A"}}},
        "$defs": {"A": {"type": "string"}},
    }
    assert normalise(copy.deepcopy(schema)) == schema


@pytest.mark.parametrize("combinator", ["anyOf", "oneOf"])
def test_alternatives_at_the_top_are_offered_together(combinator: str) -> None:
    schema = {
        "description": "one or the other",
        combinator: [
            {"type": "object", "properties": {"id": {"type": "integer"}, "x": {}}, "required": ["id", "x"]},
            {"type": "object", "properties": {"name": {"type": "string"}, "x": {}}, "required": ["name", "x"]},
        ],
    }
    assert normalise(schema) == {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "x": {}, "name": {"type": "string"}},
        "description": "one or the other",
        "required": ["x"],
    }


def test_all_of_at_the_top_requires_what_each_part_requires() -> None:
    schema = {
        "properties": {"own": {"type": "string"}},
        "required": ["own"],
        "allOf": [{"$ref": "#/$defs/A"}, {"properties": {"b": {"type": "boolean"}}, "required": ["b"]}],
        "$defs": {"A": {"properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    }
    shown = normalise(schema)
    assert list(shown["properties"]) == ["own", "a", "b"]
    assert shown["required"] == ["own", "a", "b"]
    assert "allOf" not in shown
    assert "$defs" in shown


@pytest.mark.parametrize("reference", ["#/$defs/a~1b", "#/definitions/T"])
def test_a_reference_at_the_top_is_put_in_its_place(reference: str) -> None:
    target = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    schema = {"$ref": reference, "$defs": {"a/b": target}, "definitions": {"T": target}}
    shown = normalise(schema)
    assert "$ref" not in shown
    assert (shown["properties"], shown["required"]) == ({"a": {"type": "integer"}}, ["a"])


@pytest.mark.parametrize("reference", ["#/$defs/missing", "#", "https://example.org/schema", "#/$defs/Self"])
def test_a_reference_that_leads_nowhere_takes_no_arguments(reference: str) -> None:
    shown = normalise({"$ref": reference, "$defs": {"Self": {"$ref": "#/$defs/Self"}}})
    assert (shown["type"], shown["properties"]) == ("object", {})


@pytest.mark.parametrize("kind", ["string", ["string", "null"], ["object", "null"], "array"])
def test_the_top_is_an_object_whatever_it_said(kind: Any) -> None:
    assert normalise({"type": kind, "items": {}})["type"] == "object"


def test_the_dialect_is_left_out() -> None:
    assert normalise({"$schema": "https://json-schema.org/draft/2020-12/schema"}) == EMPTY


def test_a_deep_schema_does_not_end_the_writer() -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    for _ in range(900):
        schema = {"type": "object", "properties": {"next": schema}}
    assert normalise(schema)["type"] == "object"


def test_a_schema_of_300_kb_goes_through() -> None:
    properties = {f"field_{number}": {"type": "string", "description": "x" * 60} for number in range(3000)}
    assert normalise({"properties": properties})["properties"] == properties


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "properties",
                    "required",
                    "items",
                    "anyOf",
                    "allOf",
                    "oneOf",
                    "$ref",
                    "$defs",
                    "enum",
                    "const",
                    "a",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@example({"$ref": "", "properties": "0"})
@example({"$ref": "", "properties": True})
@example({"anyOf": [{"properties": {"a": {}}, "required": [[], {}]}], "required": [{}]})
@given(values)
def test_any_json_at_all_gives_an_object_schema_and_normalising_again_changes_nothing(schema: Any) -> None:
    before = copy.deepcopy(schema)
    shown = normalise(schema)
    assert schema == before
    assert shown["type"] == "object"
    assert isinstance(shown["properties"], dict)
    assert not {"anyOf", "allOf", "oneOf", "$ref", "enum", "not"} & set(shown)
    assert normalise(shown) == shown
