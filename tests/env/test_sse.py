from __future__ import annotations

import itertools
import time

from hypothesis import given
from hypothesis import strategies as st

from agent_env.env.sse import Event, EventStream

STREAM = (
    "\ufeff: ping - 2026-11-30\r\n\r\n"
    "id: 1\ndata: \n\n"
    'event: message\r\ndata: {"a":\r\ndata: "grüß dich"}\r\n\r\n'
    "data:no space\rdata:  two\r\r"
    "event: other\ndata: x\nretry: 5\n\n"
    "data: cut off"
).encode()
EVENTS = [
    Event("message", b""),
    Event("message", '{"a":\n"grüß dich"}'.encode()),
    Event("message", b"no space\n two"),
    Event("other", b"x"),
]


def events_of(parts: list[bytes]) -> list[Event]:
    stream = EventStream()
    return [event for part in parts for event in stream.feed(part)]


def test_every_line_ending_and_comments_and_several_data_lines_are_understood() -> None:
    assert events_of([STREAM]) == EVENTS


def test_byte_by_byte_gives_the_same() -> None:
    assert events_of([STREAM[at : at + 1] for at in range(len(STREAM))]) == EVENTS


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_wherever_the_stream_is_split_the_events_are_the_same(cuts: list[int]) -> None:
    at = [0, *sorted(cuts), len(STREAM)]
    assert events_of([STREAM[a:b] for a, b in itertools.pairwise(at)]) == EVENTS


def test_an_event_of_many_megabytes_in_small_pieces_takes_linear_time() -> None:
    data = b"data: " + b"x" * (8 << 20) + b"\r\n\r\n"
    started = time.process_time()
    [event] = events_of([data[at : at + 4096] for at in range(0, len(data), 4096)])
    assert len(event.data) == 8 << 20
    assert time.process_time() - started < 2
