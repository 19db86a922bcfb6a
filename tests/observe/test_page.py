from __future__ import annotations

import logging
import time
from html.parser import HTMLParser
from typing import Any

import pytest

from agent_env.errors import FailureKind
from agent_env.observe.health import Health, State
from agent_env.observe.page import Page, Table, Tile, duration, render, wanted
from agent_env.observe.record import Fate, Of, Record
from agent_env.observe.times import Times
from agent_env.observe.watcher import Watcher

EVIL = "<script>alert('x')</script>\"&\ud800"
_VOID = {"meta", "rect"}


class Checked(HTMLParser):
    """Every element is closed where it should be."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def rendered(watcher: Watcher, state: State = State.HEALTHY, name: str = "gridsim") -> str:
    page = Page(
        name=name,
        what="server",
        up_s=3.0,
        health=Health(state, ("because", name)),
        now=[Tile("places", "3 of 4", "taken", 0.75)],
        ended=[Tile("seeded", "1")],
        sums="1 = 1",
        tables=[Table("Servers", ("server",), [(name,)])],
    )
    return render(page, watcher).decode()


def a_watcher() -> Watcher:
    return Watcher(Times("wait", "start"), logging.getLogger("test.page"))


@pytest.mark.parametrize("state", State)
def test_the_state_is_a_word_as_well_as_a_colour(state: State) -> None:
    text = rendered(a_watcher(), state)
    assert f"class='health {state.word}'" in text
    assert f"<title>{state.word}: gridsim</title>" in text
    Checked(text)


def test_nothing_that_others_wrote_becomes_markup() -> None:
    watcher = a_watcher()
    watcher.called(EVIL, 0.1, None)
    for _ in range(6):
        failed = Record(Of.SESSION, 1, Fate.MASKED, time.time(), task=EVIL, kind=FailureKind.TOOL_TIMEOUT)
        failed.reason, failed.failed_tool = EVIL, EVIL
        watcher.counted(failed)
    text = rendered(watcher, name=EVIL)
    assert "script" not in Checked(text).seen
    assert "Tasks that fail again and again" in text
    assert "Last 6 failures" in text
    assert "raise --tool-timeout" in text


def test_a_long_reason_is_cut() -> None:
    watcher = a_watcher()
    failed = Record(Of.SESSION, 1, Fate.MASKED, time.time(), kind=FailureKind.NO_SCORE, reason="x" * 10_000)
    watcher.counted(failed)
    assert len(rendered(watcher)) < 12_000


@pytest.mark.parametrize(
    ("accept", "query", "page"),
    [
        ("text/html,application/xhtml+xml,*/*;q=0.8", "", True),
        ("*/*", "", False),
        ("", "", False),
        ("application/json", "", False),
        ("text/html", "format=json", False),
        ("*/*", "format=html", True),
    ],
)
def test_browsers_get_the_page_and_all_others_json(accept: str, query: str, page: bool) -> None:
    assert wanted(accept, query) is page


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (None, "-"),
        (0.00042, "0.42 ms"),
        (0.25, "250 ms"),
        (2.5, "2.5 s"),
        (119.0, "119 s"),
        (600.0, "10 min"),
        (36_000.0, "10 h"),
        (864_000.0, "10 days"),
    ],
)
def test_durations_read_well(seconds: float | None, text: str) -> None:
    assert duration(seconds) == text
