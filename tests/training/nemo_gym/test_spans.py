from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.training.nemo_gym.spans import NotJson, spans

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.text(), values, max_size=5), st.sampled_from([None, 1, "\t"]), st.booleans())
def test_each_field_has_its_value_and_its_own_text(
    data: dict[str, object], indent: int | str | None, ascii: bool
) -> None:
    body = json.dumps(data, indent=indent, ensure_ascii=ascii)
    fields = spans(body.encode("utf-8", "surrogatepass") if ascii else body.encode("utf-8"))
    assert {name: value for name, (value, _) in fields.items()} == json.loads(body)
    for value, text in fields.values():
        assert json.loads(text) == value
        assert text in body


def test_of_a_field_given_twice_the_last_counts() -> None:
    assert spans(b'{"a":1,"a" : 2 }') == {"a": (2, "2")}


def test_numbers_that_are_none_are_written_as_null() -> None:
    body = b'{"a":{"x":[NaN,1.50,{"y":-Infinity}]},"b":1.50,"big":[1e400,123456789012345678901234567890]}'
    fields = spans(body)
    assert fields["a"][1] == '{"x": [null, 1.5, {"y": null}]}'
    assert fields["b"][1] == "1.50"


@pytest.mark.parametrize(
    "body",
    [b"", b" ", b"[]", b"null", b"{", b"{]", b'{"a"}', b'{"a":}', b'{"a":1', b'{"a":1,}', b'{"a":1}{', b"{a:1}",
     b"{'a':1}", b'{"a":1 "b":2}', b'{"a":01}', b'{"\xff":1}', b"\xef\xbb\xbf{}", b'{"a":' + b"[" * 100_000],
)  # fmt: skip
def test_what_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(NotJson):
        spans(body)
