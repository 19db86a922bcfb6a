"""A server that notes and tells more or less of its sessions while it runs: what observing costs is the difference.

    python switched.py serve FOLDER ...             the resources server
    python switched.py agent-env serve BUNDLE ...   the OpenEnv server

Each signal of `SIGNALS` switches to its side, for the sessions that are begun from then on. No flag does this, since it
would be of no use to anybody who trains. Two processes of one program differ by more than what is looked for here, as
long as they live; so it is one process that is both sides.

On the side `timed` the server also adds up the processor time that it spends on observing, with a clock around all that
the event loop does for it; with that of the log's thread it is in the file `spent(pid)` after the next switch.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_env import cli
from agent_env.observe.history import History
from agent_env.observe.lag import LoopLag
from agent_env.observe.record import Observers
from agent_env.openenv import app, hub
from agent_env.training.nemo_gym import server, session
from agent_env.training.nemo_gym.serve import serve_command

SIGNALS = {
    "both": signal.SIGUSR1,
    "metrics": signal.SIGUSR2,
    "neither": signal.SIGHUP,
    "timed": signal.SIGWINCH,
}
"""by what is on: metrics and, where the server was given one, its episode log; metrics alone; nothing; both, timed"""
NOTED = ("__init__", *("placed", "ready", "failed", "called", "ended_turn", "verifying", "decided", "graded", "forget"))
"""what a session tells its history; the rest is asked of it for a record"""
_LOG_THREAD = "episode log"
_NOTHINGS = 2000
"""how often nothing is timed, to know what the clock takes"""


class Switched(Observers):
    """Observers that can be left out, and taken in again."""

    made: list[Switched] = []  # noqa: RUF012 - of the process

    def __init__(self, *observers: Any) -> None:
        super().__init__(*observers)
        self._every = observers
        self.made.append(self)

    def keep(self, side: str) -> None:
        kept = [observer for observer in self._every if side != "neither" and (side != "metrics" or not observer.full)]
        Observers.__init__(self, *kept)
        if side == "timed":
            self.called, self.counted = spending.timed(self.called), spending.timed(self.counted)


class Unnoted:
    """In place of a session's history."""

    def __init__(self, *given: Any) -> None:
        """Keeps nothing."""

    def now(self) -> float:
        return 0.0

    def nothing(self, *noted: Any, **more: Any) -> None:
        """Notes nothing."""

    placed = ready = failed = called = ended_turn = verifying = decided = graded = forget = nothing


class Spending:
    """Nanoseconds of the event loop's thread inside of what is timed, less those of the clock itself; what is timed
    inside of what is timed counts once."""

    def __init__(self) -> None:
        self.loop = 0
        self.thread = 0
        self._times = 0
        self._inside = False

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **named: Any) -> Any:
            if self._inside:
                return function(*given, **named)
            self._inside = True
            began = time.thread_time_ns()
            try:
                return function(*given, **named)
            finally:
                self._inside = False
                self.loop += time.thread_time_ns() - began
                self._times += 1

        return run

    def begin(self) -> None:
        self.loop, self._times, self.thread = 0, 0, -_of_log_thread()

    def end(self) -> None:
        thread, loop, times = self.thread + _of_log_thread(), self.loop, self._times
        self.loop = self._times = 0
        for _ in range(_NOTHINGS):
            self.timed(_nothing)()
        told = {"loop_ns": loop - times * self.loop // _NOTHINGS, "thread_ns": thread}
        file = spent(os.getpid())
        (whole := file.with_suffix(".new")).write_text(json.dumps(told))
        whole.replace(file)


spending = Spending()


class Timed(History):
    """A history whose noting is timed."""


for name in NOTED:
    setattr(Timed, name, spending.timed(getattr(History, name)))


def spent(pid: int) -> Path:
    """Where a server tells what it spent."""
    return Path(tempfile.gettempdir()) / f"agent-env-bench-spent-{pid}.json"


def switch(side: str) -> None:
    if session.History is Timed:  # type: ignore[attr-defined,comparison-overlap]
        spending.end()
    for observers in Switched.made:
        observers.keep(side)
    history = {"neither": Unnoted, "timed": Timed}.get(side, History)
    session.History = hub.History = history  # type: ignore[misc,attr-defined]
    records = spending.timed if side == "timed" else _untouched
    session.Session.record, hub.Hub._record = records(_RECORD), records(_OF_HUB)  # type: ignore[method-assign]
    LoopLag._look = records(_LOOK)  # type: ignore[method-assign]
    if side == "timed":
        spending.begin()


_RECORD, _OF_HUB, _LOOK = session.Session.record, hub.Hub._record, LoopLag._look


def _untouched(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _nothing() -> None:
    """Is timed."""


def _of_log_thread() -> int:
    """Nanoseconds so far."""
    threads = [thread for thread in threading.enumerate() if thread.name == _LOG_THREAD and thread.ident]
    return sum(time.clock_gettime_ns(time.pthread_getcpuclockid(thread.ident or 0)) for thread in threads)


if __name__ == "__main__":
    server.Observers = app.Observers = Switched  # type: ignore[misc,attr-defined]
    for side, number in SIGNALS.items():
        signal.signal(number, lambda *_, side=side: switch(side))  # type: ignore[misc]
    which, *arguments = sys.argv[1:]
    if which == "serve":
        sys.exit(serve_command(arguments))
    sys.argv[1:] = arguments
    cli.main()
