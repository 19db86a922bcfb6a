"""What the env really offers, and whether the rows show the model the same."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import orjson

from agent_env.training.nemo_gym.rows import END_TURN, for_task, function_tools
from agent_env.training.nemo_gym.wire import Row, tools_digest

Json = Any
log = logging.getLogger("agent_env.serve")
_MOST = 1000


class Toolset:
    """The tools of an env as one session found them; sessions that found the same share it."""

    def __init__(self, tools: list[dict[str, Json]], aliases: Mapping[str, str], turns: int | None) -> None:
        shown = for_task(function_tools(tools, aliases), turns)
        self.shown = tuple(tool["name"] for tool in shown)
        self.digest = tools_digest(shown)
        self._names = frozenset(str(tool["name"]) for tool in tools) - {END_TURN}
        self._aliases = aliases

    def resolve(self, called: str) -> str | None:
        """The env's name of a tool that a client called, by its alias or its own name."""
        name = self._aliases.get(called, called)
        return name if name in self._names else None

    def changed_for(self, row: Row) -> bool:
        return row.tools is not None and row.tools != self.digest


class Toolsets:
    """Keeps each toolset once, and warns once of each difference to the rows and to the folder's bundle."""

    def __init__(self, aliases: Mapping[str, str], bundle_digest: str | None) -> None:
        self._aliases = aliases
        self._bundle_digest = bundle_digest
        self._known: dict[tuple[bytes, bool], Toolset] = {}
        self._warned: set[tuple[bytes, bytes]] = set()
        self._digests: set[str] = set()

    def of(self, row: Row, tools: list[dict[str, Json]], turns: int | None) -> Toolset:
        several = turns is None or turns > 1
        key = (orjson.dumps(tools), several)
        toolset = self._known.get(key)
        if toolset is None:
            if len(self._known) >= _MOST:
                self._known.clear()
            toolset = self._known[key] = Toolset(tools, self._aliases, turns)
        if row.tools is not None and toolset.changed_for(row) and (row.tools, toolset.digest) not in self._warned:
            if len(self._warned) < _MOST:
                self._warned.add((row.tools, toolset.digest))
            log.warning(
                "the row %s %d shows the model other tools or schemas than the env has (%s): write the rows again",
                row.split,
                row.index,
                ", ".join(toolset.shown),
            )
        return toolset

    def check_digest(self, served: str | None, url: str) -> None:
        """Once for each state of the bundle: is the served one that for which the rows were written?"""
        if served is None or served in self._digests:
            return
        self._digests.add(served)
        if self._bundle_digest is not None and served != self._bundle_digest:
            log.warning(
                "the OpenEnv server at %s serves another state of the bundle (%s) than the rows were written for (%s)",
                url,
                served[:16],
                self._bundle_digest[:16],
            )
