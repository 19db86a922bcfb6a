from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.env.jsontext import MAX_DEPTH, dump, parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_sent_is_json_that_any_parser_takes(value: Any) -> None:
    assert json.loads(dump(value)) == value


def test_lone_surrogates_are_replaced_both_ways() -> None:
    assert json.loads(dump({"a\ud800": "x\udfff"})) == {"a\ufffd": "x\ufffd"}
    assert parse(rb'{"a": "x\ud800y", "b": "\ud83d\ude00"}') == {"a": "x\ufffdy", "b": "😀"}


def test_broken_utf8_is_replaced() -> None:
    assert parse(b'{"a": "\xff\xfe"}') == {"a": "\ufffd\ufffd"}


def test_non_finite_numbers_become_null_or_stay_floats_as_asked() -> None:
    text = b'{"a": NaN, "b": [Infinity, -Infinity]}'
    assert parse(text) == {"a": None, "b": [None, None]}
    kept = parse(text, keep_non_finite=True)
    assert math.isnan(kept["a"])
    assert kept["b"] == [math.inf, -math.inf]
    assert dump({"a": math.nan}) == b'{"a":null}'


def test_nesting_beyond_what_parsers_take_is_refused() -> None:
    deep: Any = 1
    for _ in range(10_000):
        deep = [deep]
    with pytest.raises(ValueError, match=str(MAX_DEPTH)):
        dump(deep)
    with pytest.raises(ValueError, match="deep"):
        parse(b"[" * 100_000 + b"]" * 100_000)
    assert dump({"a": [[1]]}) == b'{"a":[[1]]}'


@pytest.mark.parametrize("text", [b"", b"{", b"<html>", b"\x00", b"nul"])
def test_what_is_no_json_at_all_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        parse(text)
