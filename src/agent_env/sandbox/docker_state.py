"""What became of a container: asked from the daemon, and read while the container is still there."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from typing import Any

from agent_env.sandbox.base import SandboxState
from agent_env.sandbox.docker_daemon import Client, is_gone, streamed

_LATE = timedelta(seconds=1)
_KILLED = {137: "SIGKILL", 143: "SIGTERM"}

_UNBORN = "the container was made and never started"
GONE = SandboxState(running=False, lost=True, detail="the container was removed from outside")


def read_state(client: Client, container: str, *, stopped_by_us: bool = False) -> SandboxState:
    """The container's state now. Raises what the SDK raises."""
    try:
        told: dict[str, Any] = client.inspect_container(container)["State"]
    except Exception as error:
        if is_gone(error):
            return GONE
        raise
    if told["Running"]:
        return SandboxState(running=True, detail="paused from outside" if told.get("Paused") else "")
    if told.get("Status") == "created":
        return SandboxState(running=False, stopped_by_us=stopped_by_us, lost=not stopped_by_us, detail=_UNBORN)
    code = int(told["ExitCode"])
    if stopped_by_us:
        return SandboxState(False, code, oom_killed=bool(told.get("OOMKilled")), stopped_by_us=True)
    actions = _history(client, container, told)
    oom = bool(told.get("OOMKilled")) or "oom" in actions
    detail = "" if oom else _seen_from_outside(code, actions)
    if told.get("Error"):
        detail = detail or str(told["Error"])
    return SandboxState(False, code, oom_killed=oom, lost=bool(detail) and not told.get("Error"), detail=detail)


def _seen_from_outside(code: int, actions: dict[str, str]) -> str:
    """How somebody else ended it, as far as the daemon knows; empty when its process ended by itself."""
    if signal := actions.get("kill"):
        return f"ended from outside through the daemon (signal {signal})"
    if "die" not in actions:
        return "the daemon has no record of its end: was the daemon restarted?"
    if code in _KILLED:
        return f"ended from outside by {_KILLED[code]}"
    return ""


def _history(client: Client, container: str, told: dict[str, Any]) -> dict[str, str]:
    """What happened to the container, by event; the daemon keeps its last few hundred events for such questions."""
    began = told["StartedAt"]
    now = datetime.fromisoformat(client.info()["SystemTime"])
    seen = _events(client, container, began, now)
    if told["ExitCode"] == 137 and not told["OOMKilled"] and not seen.keys() & {"kill", "oom"}:
        # Killed, and nobody says by whom: the word that memory ran out can come after the word that it ended.
        seen = _events(client, container, began, now + _LATE)
    return seen


def _events(client: Client, container: str, began: str, until: datetime) -> dict[str, str]:
    """Read to the end of the answer, which comes at once for a time that has passed."""
    asked = {"container": [container], "event": ["kill", "oom", "die"]}
    since = (datetime.fromisoformat(began) - _LATE).timestamp()
    seen: dict[str, str] = {}
    with streamed(
        client, "/events", since=f"{since:.6f}", until=f"{until.timestamp():.6f}", filters=json.dumps(asked)
    ) as answer:
        for line in answer.iter_lines():
            event = json.loads(line)
            seen[event["Action"]] = str(event["Actor"]["Attributes"].get("signal", ""))
    return seen
