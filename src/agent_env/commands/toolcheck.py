"""Tool names and schemas that clients refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from agent_env.env.tools import Tool
from agent_env.errors import ConfigError
from agent_env.findings import Finding, error, warning
from agent_env.training.nemo_gym.names import tool_aliases

Json = Any

LONG = 65_536
"""bytes of one schema"""
_COMBINATORS = ("anyOf", "oneOf", "allOf", "$ref", "enum", "not")
_DATA = frozenset({"const", "default", "enum", "example", "examples"})
_OPEN = frozenset({"additionalProperties", "unevaluatedProperties"})


def check_tools(tools: Sequence[Tool], where: str) -> list[Finding]:
    """Names first: two that clients can't tell apart end the check of names."""
    found: list[Finding] = []
    try:
        for alias, name in tool_aliases(tool.name for tool in tools).items():
            found.append(
                warning(
                    f"{where}: tool {name!r}",
                    f"clients can't call it by that name: rows call it {alias!r}",
                    "rename it: letters, digits, _ and -, at most 64, and none of the server's own paths",
                )
            )
    except ConfigError as wrong:
        found.append(error(where, str(wrong), "clients take letters, digits, _ and - only, at most 64"))
    for tool in tools:
        for problem in schema_problems(tool.input_schema):
            found.append(
                warning(
                    f"{where}: tool {tool.name!r}",
                    f"its schema {problem}, which strict clients refuse: rows show a plainer one",
                    "write it plainly",
                )
            )
        try:
            size = len(json.dumps(tool.input_schema))
        except RecursionError:
            found.append(error(f"{where}: tool {tool.name!r}", "its schema is nested too deeply", "write it plainly"))
            continue
        if size > LONG:
            found.append(
                warning(f"{where}: tool {tool.name!r}", f"its schema has {size:,} bytes", "it is part of every prompt")
            )
    return found


def schema_problems(schema: Json) -> list[str]:
    """What strict back ends refuse in a tool's schema."""
    if not isinstance(schema, dict):
        return ["is no object"]
    found = []
    if schema.get("type") not in ("object", None):
        found.append(f"is of type {schema['type']!r}, not object")
    found += [f"has {key} at the top" for key in _COMBINATORS if key in schema]
    return [*found, *dict.fromkeys(_inner(schema, 0))]


def _inner(schema: Json, depth: int) -> Iterator[str]:
    if depth > 100 or not isinstance(schema, dict):
        return
    for key, value in schema.items():
        if key in _DATA:
            continue
        if value is None:
            yield f"has {key}: null"
        elif key in ("properties", "patternProperties", "$defs", "definitions") and isinstance(value, dict):
            for name, sub in value.items():
                if isinstance(sub, bool):
                    yield f"has {str(sub).lower()} in place of the schema of {name!r}"
                yield from _inner(sub, depth + 1)
        elif isinstance(value, list):
            for sub in value:
                yield from _inner(sub, depth + 1)
        elif key not in _OPEN or not isinstance(value, bool):
            yield from _inner(value, depth + 1)
