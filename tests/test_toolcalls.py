from __future__ import annotations

import pytest

from agent_env.toolcalls import BadArguments, read_arguments


@pytest.mark.parametrize(
    ("raw", "arguments"),
    [("{}", {}), ("", {}), (" \n", {}), ('{"a": 1}', {"a": 1}), ('{"a": 1, "a": 2}', {"a": 2})],
)
def test_an_object_or_nothing_is_read(raw: str, arguments: dict[str, object]) -> None:
    assert read_arguments(raw)[0] == arguments


def test_the_same_comes_as_compact_json() -> None:
    assert read_arguments('{ "ä": [1, 2] }')[1] == '{"ä":[1,2]}'.encode()


@pytest.mark.parametrize(("raw", "kind"), [("[]", "list"), ("1", "int"), ("null", "NoneType"), ('"x"', "str")])
def test_another_value_is_told_by_its_kind(raw: str, kind: str) -> None:
    with pytest.raises(BadArguments, match=f"error: tool arguments must be a JSON object, got {kind}; resend"):
        read_arguments(raw)


@pytest.mark.parametrize("raw", ["{", "{'a': 1}", '{"a": NaN}', '{"a": 1e400}', "[" * 10_000, '{"a": "\\ud800"}'])
def test_what_is_no_json_is_told(raw: str) -> None:
    with pytest.raises(BadArguments, match="error: invalid JSON in tool arguments"):
        read_arguments(raw)
