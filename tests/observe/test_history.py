from __future__ import annotations

import json
import time
from typing import Any

import pytest

from agent_env.observe.history import History
from agent_env.observe.record import Observers, Record


class Keeper:
    full = True

    def called(self, tool: str, seconds: float, error: str | None) -> None: ...

    def counted(self, record: Record) -> None: ...


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


@pytest.mark.parametrize("arguments", [{"a": 10**400}, {"a": "\ud800"}, nested(300), nested(5000)])
def test_arguments_of_any_shape_can_be_noted(arguments: dict[str, Any]) -> None:
    history = History(Observers(Keeper()), time.monotonic)
    history.called(1, "look", arguments, "out", 0.0, None)
    (call,) = history.calls
    assert call.arguments.startswith("(nested too deeply") or json.loads(call.arguments) == arguments
