"""Server-sent events, cut into events as the bytes come."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    """One event: its name (`message` unless given) and its data lines, joined by newlines."""

    name: str
    data: bytes


class EventStream:
    """A parser: lines end in CR, LF or CRLF, and may be split anywhere, even inside a character."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._searched = 0
        self._name = ""
        self._data: list[bytes] = []
        self._skip_newline = False
        self._at_start = True

    def feed(self, data: bytes) -> Iterator[Event]:
        """The events that these bytes complete."""
        self._buffer += data
        for line in self._lines():
            event = self._take(line)
            if event is not None:
                yield event

    def _lines(self) -> Iterator[bytes]:
        while True:
            if self._skip_newline and self._buffer:
                # The line before ended in CR, its LF came later.
                if self._buffer.startswith(b"\n"):
                    del self._buffer[:1]
                self._skip_newline = False
            ends = [at for end in b"\r\n" if (at := self._buffer.find(end, self._searched)) >= 0]
            if not ends:
                self._searched = len(self._buffer)
                return
            at = min(ends)
            line = bytes(self._buffer[:at])
            self._skip_newline = self._buffer[at] == 0x0D
            del self._buffer[: at + 1]
            self._searched = 0
            yield line

    def _take(self, line: bytes) -> Event | None:
        if self._at_start:
            line = line.removeprefix(b"\xef\xbb\xbf")
            self._at_start = False
        if not line:
            name, data = self._name or "message", self._data
            self._name, self._data = "", []
            return Event(name, b"\n".join(data)) if data else None
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            self._data.append(value)
        elif field == b"event":
            self._name = value.decode(errors="replace")
        return None
