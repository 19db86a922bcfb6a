"""The calls that a model made by what it said, so that only those run in its turn."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from agent_env.errors import EpisodeError

Json = Any

EXCERPT = 4000
"""characters of one text that are kept for a judge"""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A call as the model asks for it. `arguments` is None where the model wrote no JSON: any will do."""

    name: str
    arguments: Mapping[str, Json] | None


class ModelCalls:
    """What was recorded in one turn. Nothing is checked before the first message is."""

    def __init__(self) -> None:
        self.said = ""
        """the text of the last message"""
        self._recorded = False
        self._open: list[Wanted] = []
        self.log: list[dict[str, Json]] = []
        """model and usage of each message"""

    def record(
        self,
        message: str | Mapping[str, Json],
        *,
        known: Callable[[str], bool],
        model: str | None = None,
        usage: Mapping[str, Json] | None = None,
    ) -> None:
        """Calls of tools that are not `known` are passed over. Raises `EpisodeError`."""
        self.check_done()
        self._recorded = True
        self.said = "" if isinstance(message, Mapping) else message
        self._open = []
        if isinstance(message, Mapping):
            self.said = _text(message.get("content"))
            self._open = [call for call in _calls(message) if known(call.name)]
        self.log.append({"model": model, "usage": dict(usage or {})})

    def take(self, name: str, arguments: Mapping[str, Json]) -> None:
        """Count a call as run. Raises `EpisodeError` when the last message makes no such call."""
        if not self._recorded:
            return
        for place, call in enumerate(self._open):
            if call.name == name and call.arguments in (None, arguments):
                del self._open[place]
                return
        raise EpisodeError(f"the last recorded model call makes no such call of {name!r}")

    def check_done(self) -> None:
        """Raises `EpisodeError` while calls of the last message have not run."""
        if self._open:
            names = ", ".join(call.name for call in self._open)
            raise EpisodeError(f"calls of the last recorded model call have not run: {names}")


def excerpt(value: Json) -> Json:
    """The value itself, or the beginning of a long one as text."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return value if len(text) <= EXCERPT else f"{text[:EXCERPT]}... ({len(text)} characters)"


def _calls(message: Mapping[str, Json]) -> Iterator[Wanted]:
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {}
        yield Wanted(str(function.get("name")), _arguments(function.get("arguments")))
    content = message.get("content")
    for block in content if isinstance(content, list) else ():
        if isinstance(block, Mapping) and block.get("type") == "tool_use":
            yield Wanted(str(block.get("name")), _arguments(block.get("input")))


def _arguments(raw: Json) -> Mapping[str, Json] | None:
    if isinstance(raw, str):
        try:
            raw = json.loads(raw or "{}")
        except ValueError:
            return None
    if raw is None:
        return {}
    return raw if isinstance(raw, Mapping) else None


def _text(content: Json) -> str:
    if isinstance(content, list):
        parts = (part.get("text") for part in content if isinstance(part, Mapping))
        return "".join(part for part in parts if isinstance(part, str))
    return content if isinstance(content, str) else ""
