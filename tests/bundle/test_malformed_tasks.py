# ruff: noqa: E501 - problem lines are shown as they are
"""Malformed bundles: faults of task files, and the exact lines they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def raw(text: str | bytes) -> dict[str, Any]:
    return {"tasks/t.json": text}


def task(*steps: Any) -> dict[str, Any]:
    return {"tasks/t.json": list(steps)}


ROWS = [
    pytest.param(raw("{}"), ["tasks/t.json: a task is a JSON array of step objects, not an object"], id="object"),
    pytest.param(
        raw("[1]"), ["tasks/t.json: a task is a JSON array of step objects, not one that holds 1"], id="scalar"
    ),
    pytest.param(raw('"x"'), ["tasks/t.json: a task is a JSON array of step objects, not a string"], id="string"),
    pytest.param(raw("null"), ["tasks/t.json: a task is a JSON array of step objects, not null"], id="null"),
    pytest.param(raw("1"), ["tasks/t.json: a task is a JSON array of step objects, not a number"], id="number"),
    pytest.param(raw("true"), ["tasks/t.json: a task is a JSON array of step objects, not a boolean"], id="true"),
    pytest.param(raw("[]"), ["tasks/t.json: has no steps"], id="empty"),
    pytest.param(raw('[{"id":'), ["tasks/t.json: not valid JSON: ..."], id="syntax"),
    pytest.param(raw(""), ["tasks/t.json: not valid JSON: ..."], id="blank"),
    pytest.param(
        raw('[{"id": "a", "id": "a"}]'),
        ["tasks/t.json: not valid JSON: the key 'id' appears twice in one object"],
        id="dup",
    ),
    pytest.param(
        raw('[{"id": "a", "type": "t", "x": NaN}]'), ["tasks/t.json: not valid JSON: NaN is not JSON"], id="nan"
    ),
    pytest.param(
        raw('[{"id": "a", "type": "t", "x": -Infinity}]'),
        ["tasks/t.json: not valid JSON: -Infinity is not JSON"],
        id="inf",
    ),
    pytest.param(
        raw('[{"id": "a", "type": "t", "x": 1e400}]'),
        ["tasks/t.json: not valid JSON: the number '1e400' is out of range"],
        id="1e400",
    ),
    pytest.param(
        raw('[{"id": "a", "type": "t", "x": 18446744073709551616}]'),
        ["tasks/t.json: not valid JSON: the number '18446744073709551616' is out of range"],
        id="bigint",
    ),
    pytest.param(
        raw(f'[{{"id": "a", "type": "t", "x": 1{"0" * 5000}}}]'),
        [
            "tasks/t.json: not valid JSON: the number '10000000000000000000000000000000000000000000000000000000... is out of range"
        ],
        id="hugeint",
    ),
    pytest.param(
        raw('[{"id": "a", "type": "t", "x": "\\ud800"}]'),
        ["tasks/t.json: not valid JSON: the string '\\ud800' has half of a surrogate pair"],
        id="surr",
    ),
    pytest.param(raw("[" * 100000), ["tasks/t.json: not valid JSON: nested too deeply"], id="deep"),
    pytest.param(raw(b'[{"id": "\xe9"}]'), ["tasks/t.json: not UTF-8: byte 0xe9 at offset 9"], id="latin"),
    pytest.param(raw("[]".encode("utf-16")), ["tasks/t.json: not UTF-8: byte 0xff at offset 0"], id="utf16"),
    pytest.param(raw("[]]"), ["tasks/t.json: not valid JSON: ..."], id="trail"),
    pytest.param(raw('[{"id": "a\nb"}]'), ["tasks/t.json: not valid JSON: ..."], id="ctrl"),
    pytest.param(
        {"tasks/t.json": "[]", "tasks/u.json": "{}"},
        ["tasks/t.json: has no steps", "tasks/u.json: a task is a JSON array of step objects, not an object"],
        id="two-files",
    ),
    pytest.param(
        task({"id": "a"}, {"id": "b", "depends_on": "a"}),
        [
            "tasks/t.json: step 'a': type must be a non-empty string",
            "tasks/t.json: step 'b': depends_on must be a list of step ids, not 'a'",
            "tasks/t.json: step 'b': type must be a non-empty string",
        ],
        id="two-steps",
    ),
]


@pytest.mark.parametrize(("files", "lines"), ROWS)
def test_each_fault_gives_its_exact_lines(
    files: dict[str, Any], lines: list[str], problems: Callable[[dict[str, Any]], list[str]]
) -> None:
    assert problems(files) == lines
