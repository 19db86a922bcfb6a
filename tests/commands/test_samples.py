from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.commands.samples import sample


def asked(schema: Any) -> Any:
    """The value made for a required property of that schema."""
    return sample({"type": "object", "properties": {"x": schema}, "required": ["x"]})["x"]


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, "x"),
        ({"type": "string", "minLength": 3}, "xxx"),
        ({"type": "integer"}, 1),
        ({"type": "integer", "minimum": 5}, 5),
        ({"type": "number", "maximum": 0.5}, 0.5),
        ({"type": "boolean"}, False),
        ({"type": "null"}, None),
        ({"type": ["null", "integer"]}, 1),
        ({"type": "array", "items": {"type": "integer"}}, []),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2}, [1, 1]),
        ({"enum": ["b", "a"]}, "b"),
        ({"const": 7}, 7),
        ({"type": "integer", "default": 9}, 9),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, 1),
        ({"type": "object", "properties": {"y": {"type": "string"}, "z": {}}, "required": ["y"]}, {"y": "x"}),
        ({}, "x"),
        (True, "x"),
        ({"$ref": "#/$defs/Nowhere"}, "x"),
    ],
)
def test_the_plainest_value_is_made(schema: Any, value: Any) -> None:
    assert asked(schema) == value


def test_definitions_are_followed() -> None:
    schema = {
        "$defs": {"Point": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
        "type": "object",
        "properties": {"p": {"$ref": "#/$defs/Point"}, "left_out": {}},
        "required": ["p"],
    }
    assert sample(schema) == {"p": {"a": 1}}


def test_a_schema_that_refers_to_itself_comes_to_an_end() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/N"}}, "required": ["next"]}
    assert "next" in sample({"$defs": {"N": node}, **node})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "properties", "required", "items", "anyOf", "enum", "$ref", "minItems", "minimum"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(JSON)
def test_whatever_the_schema_arguments_are_an_object(schema: Any) -> None:
    assert isinstance(sample(schema), dict)
