from __future__ import annotations

import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.bundle.dockerignore import DockerIgnore

PATHS = ["a.txt", "b.md", "sub/a.txt", "sub/deep/a.txt", "README.md", "sub/README.md", "a-b", "temp1/x", "x]y"]


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("", PATHS),
        ("# a.txt\n\n   \n", PATHS),
        ("a.txt", ["b.md", "sub/a.txt", "sub/deep/a.txt", "README.md", "sub/README.md", "a-b", "temp1/x", "x]y"]),
        ("/a.txt", ["b.md", "sub/a.txt", "sub/deep/a.txt", "README.md", "sub/README.md", "a-b", "temp1/x", "x]y"]),
        ("**/a.txt", ["b.md", "README.md", "sub/README.md", "a-b", "temp1/x", "x]y"]),
        ("sub", ["a.txt", "b.md", "README.md", "a-b", "temp1/x", "x]y"]),
        ("sub/", ["a.txt", "b.md", "README.md", "a-b", "temp1/x", "x]y"]),
        ("sub/**", ["a.txt", "b.md", "README.md", "a-b", "temp1/x", "x]y"]),
        ("*/*.txt", ["a.txt", "b.md", "sub/deep/a.txt", "README.md", "sub/README.md", "a-b", "temp1/x", "x]y"]),
        ("*.md\n!README.md", [path for path in PATHS if path != "b.md"]),
        ("!README.md\n*.md", [path for path in PATHS if path not in {"b.md", "README.md"}]),
        ("**\n!sub/deep", ["sub/deep/a.txt"]),
        ("*\n!sub\nsub/deep", ["sub/a.txt", "sub/README.md"]),
        ("temp?", [path for path in PATHS if path != "temp1/x"]),
        ("[ab]?*", ["sub/a.txt", "sub/deep/a.txt", "README.md", "sub/README.md", "temp1/x", "x]y"]),
        ("[^a]*", ["a.txt", "a-b"]),
        ("x\\]y", [path for path in PATHS if path != "x]y"]),
        ("[a", PATHS),
        (".", PATHS),
        ("../a.txt", PATHS),
        ("./sub/../a.txt", [path for path in PATHS if path != "a.txt"]),
        ("  a.txt  \r", [path for path in PATHS if path != "a.txt"]),
    ],
)
def test_patterns_mean_what_docker_says(text: str, kept: list[str]) -> None:
    ignore = DockerIgnore(text)
    assert [path for path in PATHS if not ignore.excludes(path)] == kept


@given(st.text(alphabet="ab*?[]^-!\\/.& |~#", max_size=12), st.text(alphabet="ab/-.", min_size=1, max_size=8))
def test_no_pattern_breaks_the_reader(text: str, path: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DockerIgnore(text).excludes(path)
