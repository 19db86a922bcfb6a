from __future__ import annotations

from typing import Any

import pytest

from agent_env.training.nemo_gym.output import cut, joined_text


def result(*content: Any, **fields: Any) -> dict[str, Any]:
    return {"content": list(content), "structured_content": None, "data": "", **fields}


def text(value: str) -> dict[str, str]:
    return {"type": "text", "text": value}


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        (result(text("one")), "one"),
        (result(text("one"), text("two")), "one\ntwo"),
        (result(text('{"a": 1}')), '{"a": 1}'),
        (result(text("\x1b[31mred\x1b[0m")), "\x1b[31mred\x1b[0m"),
        (result(), ""),
        (result(data=None), ""),
        (result(data="said"), "said"),
        (result(data={"a": [1, None]}), '{"a":[1,null]}'),
        (result(data=None, structured_content={"a": 1}), '{"a":1}'),
        (None, ""),
        ([1, 2], "[1,2]"),
        (result({"type": "image", "mimeType": "image/png", "data": "A" * 400}), "[image image/png, about 300 bytes]"),
        (result({"type": "audio", "data": ""}), "[audio of unknown type, about 0 bytes]"),
        (result({"type": "resource", "resource": {"uri": "file:///a", "text": "inside"}}), "inside"),
        (result({"type": "resource", "resource": {"uri": "file:///a", "blob": "AA"}}), "[resource file:///a]"),
        (result({"type": "resource_link", "uri": "file:///b"}), "[resource file:///b]"),
        (result({"type": "new", "x": 1}), '{"type":"new","x":1}'),
        (result("odd"), '"odd"'),
    ],
)
def test_a_result_is_shown_as_text(given: Any, shown: str) -> None:
    assert joined_text(given) == shown


@pytest.mark.parametrize("letter", ["a", "é", "語", "🙂"])
def test_a_cut_never_splits_a_letter_and_counts_bytes(letter: str) -> None:
    size = len(letter.encode())
    shown = cut(letter * 100, 50)
    assert shown == letter * (50 // size) + f"\n[output cut: {50 // size * size} of {100 * size} bytes are shown]"


def test_what_fits_is_not_touched() -> None:
    for whole in ("", "é" * 50, "a" * 100):
        assert cut(whole, 100) == whole
