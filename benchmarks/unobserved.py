"""A server, but nobody is told of its sessions and nothing is noted of them: what observing costs is the difference.

    python unobserved.py serve FOLDER ...             the resources server
    python unobserved.py agent-env serve BUNDLE ...   the OpenEnv server

No flag does this, since it would be of no use to anybody who trains.
"""

from __future__ import annotations

import sys
from typing import Any

from agent_env import cli
from agent_env.observe.record import Observers
from agent_env.openenv import app, hub
from agent_env.training.nemo_gym import server, session
from agent_env.training.nemo_gym.serve import serve_command


class Nobody(Observers):
    def __init__(self, *observers: Any) -> None:
        super().__init__()


class Unnoted:
    """In place of a session's history."""

    def __init__(self, *given: Any) -> None:
        """Keeps nothing."""

    def now(self) -> float:
        return 0.0

    def nothing(self, *noted: Any, **more: Any) -> None:
        """Notes nothing."""

    placed = ready = failed = called = ended_turn = verifying = decided = graded = forget = nothing


if __name__ == "__main__":
    server.Observers = app.Observers = Nobody  # type: ignore[attr-defined]
    session.History = hub.History = Unnoted  # type: ignore[assignment,attr-defined]
    which, *arguments = sys.argv[1:]
    if which == "serve":
        sys.exit(serve_command(arguments))
    sys.argv[1:] = arguments
    cli.main()
