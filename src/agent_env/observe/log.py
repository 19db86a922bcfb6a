"""The episode log: a line for each session that was counted, written by a thread of its own.

The event loop hands records over by reference and goes on. A disk that is full or slow costs lines, which are counted
and told, and never a rollout.
"""

from __future__ import annotations

import logging
import queue
import secrets
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from agent_env.errors import ConfigError
from agent_env.observe.files import FILES, MOST_BYTES, RotatingFile, Unwritten
from agent_env.observe.line import end_line, line_of, moment, run_line
from agent_env.observe.record import Record
from agent_env.observe.redact import Redactor, environment_secrets

Json = Any
log = logging.getLogger("agent_env.episodes")

MOST_WAITING = 128_000_000
"""Characters, about, that may wait for the disk; what comes then is lost."""
_RECORD = 1000
"""characters of a record without its calls, about"""
GATHER_S = 1.0
"""Records are gathered so long before they are written; a killed process loses them. To wake a thread for each costs
several times what its line does."""
GATHER = 64
"""Records that are written sooner: the event loop waits while their lines are made."""
_CLOSE_WITHIN = 10.0


class EpisodeLog:
    """An observer that keeps every record in full. `secrets` are values that no line may hold."""

    full = True
    called = None
    """Calls are kept with their session."""

    def __init__(
        self,
        path: Path,
        *,
        secrets: Iterable[str] = (),
        facts: dict[str, Json] | None = None,
        most_bytes: int = MOST_BYTES,
        files: int = FILES,
    ) -> None:
        """`facts` stand in the run's first line. Raises ConfigError when the file can't be written."""
        self.path = path
        self.run = new_run()
        self._redactor = Redactor([*secrets, *environment_secrets()])
        self._refused = False
        self._handed = 0
        self._written = 0
        self._overflow = 0
        self._unwritten = 0
        self._queue: queue.SimpleQueue[Record | bytes | None] = queue.SimpleQueue()
        self._closed = False
        self._enough = threading.Event()
        """to be written now"""
        try:
            self._file = RotatingFile(path, most_bytes, files)
            self._file.write([run_line(self.run, time.time(), **(facts or {}))])
        except BlockingIOError:
            raise ConfigError(f"--episode-log {path}: another server writes it: give each a file of its own") from None
        except OSError as error:
            raise ConfigError(f"--episode-log {path}: can't be written: {error.strerror}") from None
        except Unwritten as unwritten:
            raise ConfigError(f"--episode-log {path}: can't be written: {unwritten}") from None
        self._thread = threading.Thread(target=self._keep_writing, name="episode log", daemon=True)
        self._thread.start()

    @property
    def lost(self) -> int:
        """Records that are in no line."""
        return self._overflow + self._unwritten

    def counted(self, record: Record) -> None:
        if self._closed or self._handed - self._written > MOST_WAITING:
            if not self._overflow and not self._closed:
                log.error("the episode log %s lags: its disk is too slow; records are lost from now on", self.path)
            self._overflow += 1
            return
        self._handed += _RECORD + record.characters
        self._queue.put(record)
        if self._queue.qsize() >= GATHER and not self._enough.is_set():
            self._enough.set()

    def close(self, summary: str | None = None) -> None:
        """Writes what waits and the run's last line, which holds the `summary`. Blocks, seconds at most."""
        if self._closed:
            return
        self._closed = True
        self._queue.put(None)
        self._enough.set()
        self._thread.join(_CLOSE_WITHIN)
        if self._thread.is_alive():
            log.error("the episode log %s takes too long to write: its end is missing", self.path)
            return
        self._write([end_line(self.run, time.time(), summary, self.lost)], records=0)
        self._file.close()
        if self.lost:
            log.error("the episode log %s lacks %d records that could not be written", self.path, self.lost)

    def _keep_writing(self) -> None:
        ended = False
        while not ended:
            records = [self._queue.get()]
            self._enough.wait(GATHER_S)
            self._enough.clear()
            while not self._queue.empty():
                records.append(self._queue.get_nowait())
            ended = None in records
            kept = [record for record in records if isinstance(record, Record)]
            self._write([line for record in kept if (line := self._line(record))], records=len(kept))
            self._written += sum(_RECORD + record.characters for record in kept)

    def _line(self, record: Record) -> bytes | None:
        try:
            return line_of(record, self.run, self._redactor)
        except Exception:
            log.exception("session %s can't be written into the episode log", record.session)
            self._unwritten += 1
            return None

    def _write(self, lines: list[bytes], records: int) -> None:
        if not lines:
            return
        try:
            self._file.write(lines)
        except Unwritten as unwritten:
            self._unwritten += min(unwritten.lost, records)
            if not self._refused:
                log.error("the episode log %s can't be written: %s; rollouts go on without it", self.path, unwritten)
            self._refused = True
        else:
            if self._refused:
                log.warning("the episode log %s is written again; %d records are lost", self.path, self.lost)
            self._refused = False


def new_run() -> str:
    """An id that sorts by time: `20261130T203912-3f2a1b`."""
    return f"{moment(time.time())[:19].replace('-', '').replace(':', '')}-{secrets.token_hex(3)}"
