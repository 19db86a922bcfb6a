from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.bundle.readme import description


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("# Title\n\nText.\n", "Title"),
        ("\n\n  Text here  \nmore", "Text here"),
        ("---\ntitle: x\n---\n# After front matter\n", "After front matter"),
        ("---\n\nA rule is no front matter\n", "A rule is no front matter"),
        ("[![build](a)](b) [![pypi](c)](d)\n![logo](e)\n\nHello *world*.\n", "Hello *world*."),
        ("<!-- licence\nof many lines -->\n<p align=center>\n<img src=x>\n</p>\nHello\n", "Hello"),
        ("<h1>Big <b>title</b></h1>\n", "Big title"),
        ("Title\n=====\n", "Title"),
        ("```\ncode\n", "code"),
        ("[x]: http://example.org\ntext\n", "text"),
        ("| a | b |\n|---|---|\n", "| a | b |"),
        ("![badge](x) and text\n", "and text"),
        ("<!-- never closed\ntext", ""),
        ("# A\r\nb\r\n", "A"),
    ],
)
def test_the_description_is_the_first_line_of_text(text: str, expected: str) -> None:
    assert description(text) == expected


@given(st.text(alphabet="#-=<>![]()`|\n\r ax:", max_size=60))
def test_a_description_is_one_line_of_any_text(text: str) -> None:
    found = description(text)
    assert "\n" not in found
    assert found == found.strip()
