"""Arguments made up from a tool's schema: the plainest that it seems to allow."""

from __future__ import annotations

from typing import Any

from agent_env.training.nemo_gym.schemas import normalise

Json = Any

_DEPTH = 8
_PLAIN: dict[str, Json] = {"string": "x", "boolean": False, "null": None, "integer": 1, "number": 1.0}


def sample(schema: Json) -> dict[str, Json]:
    """Values for the required properties; `{}` for a schema that is none."""
    plain = normalise(schema)
    definitions: dict[str, Json] = {key: plain[key] for key in ("$defs", "definitions") if key in plain}
    made = _value(plain, definitions, 0)
    return made if isinstance(made, dict) else {}


def _value(schema: Json, definitions: dict[str, Json], depth: int) -> Json:
    if not isinstance(schema, dict) or depth > _DEPTH:
        return "x"
    if "$ref" in schema:
        return _value(_target(schema["$ref"], definitions), definitions, depth + 1)
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if isinstance(schema.get(key), list) and schema[key]:
            return schema[key][0]
    for key in ("anyOf", "oneOf", "allOf"):
        branches = [branch for branch in schema.get(key) or () if _is_value(branch)]
        if branches and "properties" not in schema:
            return _value(branches[0], definitions, depth + 1)
    return _typed(schema, definitions, depth)


def _typed(schema: dict[str, Json], definitions: dict[str, Json], depth: int) -> Json:
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = next((name for name in kind if name != "null"), "null")
    if kind == "object" or (kind is None and "properties" in schema):
        properties, required = schema.get("properties"), schema.get("required")
        if not isinstance(properties, dict) or not isinstance(required, list):
            return {}
        return {name: _value(properties.get(name), definitions, depth + 1) for name in required if name in properties}
    if kind == "array":
        least = schema.get("minItems")
        count = min(least, 100) if isinstance(least, int) else 0
        return [_value(schema.get("items"), definitions, depth + 1) for _ in range(count)]
    if kind == "string" and isinstance(schema.get("minLength"), int):
        return "x" * max(1, min(schema["minLength"], 1000))
    if kind in ("integer", "number"):
        return _number(schema, _PLAIN[kind])
    return _PLAIN.get(str(kind), "x")


def _number(schema: dict[str, Json], plain: Json) -> Json:
    least, most = schema.get("minimum"), schema.get("maximum")
    if isinstance(least, int | float) and plain < least:
        return least
    return most if isinstance(most, int | float) and plain > most else plain


def _target(reference: Json, definitions: dict[str, Json]) -> Json:
    """Of a local `#/$defs/Name`."""
    place: Json = definitions
    for part in str(reference).removeprefix("#/").split("/"):
        place = place.get(part) if isinstance(place, dict) else None
    return place


def _is_value(branch: Json) -> bool:
    return isinstance(branch, dict) and branch.get("type") != "null"
