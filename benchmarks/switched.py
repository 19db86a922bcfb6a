"""A server that notes and tells more or less of its sessions while it runs: what observing costs is the difference.

    python switched.py serve FOLDER ...             the resources server
    python switched.py agent-env serve BUNDLE ...   the OpenEnv server

Each signal of `SIGNALS` switches to its side, for the sessions that are begun from then on. No flag does this, since it
would be of no use to anybody who trains. Two processes of one program differ by more than what is looked for here, as
long as they live; so it is one process that is both sides.
"""

from __future__ import annotations

import signal
import sys
from typing import Any

from agent_env import cli
from agent_env.observe.history import History
from agent_env.observe.record import Observers
from agent_env.openenv import app, hub
from agent_env.training.nemo_gym import server, session
from agent_env.training.nemo_gym.serve import serve_command

SIGNALS = {"both": signal.SIGUSR1, "metrics": signal.SIGUSR2, "neither": signal.SIGHUP}
"""by what is on: metrics and, where the server was given one, its episode log; metrics alone; nothing"""


class Switched(Observers):
    """Observers that can be left out, and taken in again."""

    made: list[Switched] = []  # noqa: RUF012 - of the process

    def __init__(self, *observers: Any) -> None:
        super().__init__(*observers)
        self._every = observers
        self.made.append(self)

    def keep(self, side: str) -> None:
        kept = [observer for observer in self._every if side == "both" or (side == "metrics" and not observer.full)]
        Observers.__init__(self, *kept)


class Unnoted:
    """In place of a session's history."""

    def __init__(self, *given: Any) -> None:
        """Keeps nothing."""

    def now(self) -> float:
        return 0.0

    def nothing(self, *noted: Any, **more: Any) -> None:
        """Notes nothing."""

    placed = ready = failed = called = ended_turn = verifying = decided = graded = forget = nothing


def switch(side: str) -> None:
    for observers in Switched.made:
        observers.keep(side)
    session.History = hub.History = Unnoted if side == "neither" else History  # type: ignore[misc,attr-defined]


if __name__ == "__main__":
    server.Observers = app.Observers = Switched  # type: ignore[misc,attr-defined]
    for side, number in SIGNALS.items():
        signal.signal(number, lambda *_, side=side: switch(side))  # type: ignore[misc]
    which, *arguments = sys.argv[1:]
    if which == "serve":
        sys.exit(serve_command(arguments))
    sys.argv[1:] = arguments
    cli.main()
