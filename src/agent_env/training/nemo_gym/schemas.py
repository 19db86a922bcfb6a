"""Tool schemas in a form that strict model back ends take.

Servers of the field refuse a whole request for one `"required": null` or a top-level `anyOf`. What is changed here only
concerns what the model is shown: the env checks arguments against its own schema.
"""

from __future__ import annotations

from typing import Any

Json = Any

_MAX_DEPTH = 100
_DATA = frozenset({"const", "default", "enum", "example", "examples"})
"""Keywords whose value is data: null and booleans in it mean themselves."""
_MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions", "dependentSchemas"})
_LISTS = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
_SINGLE = frozenset(
    {"items", "not", "if", "then", "else", "contains", "propertyNames", "additionalItems", "unevaluatedItems"}
)
_OPEN = frozenset({"additionalProperties", "unevaluatedProperties"})
"""Here `true` and `false` are understood everywhere and stay."""
_SHAPES: dict[str, type] = dict.fromkeys(_MAPS, dict) | dict.fromkeys(_LISTS, list)
_COMBINATORS = ("allOf", "anyOf", "oneOf")


def normalise(schema: Json) -> dict[str, Json]:
    """The tool's parameters as an object schema: no null keywords, no boolean schemas, a type wherever it is plain,
    no combinator or reference at the top. `$ref` below the top and its definitions stay."""
    if not isinstance(schema, dict):
        return {"type": "object", "properties": {}}
    top = _top(_clean(schema, 0))
    top.pop("$schema", None)
    kind = top.get("type")
    rest = {key: value for key, value in top.items() if key not in ("type", "properties")}
    properties = top.get("properties")
    if kind not in ("object", None) and not (isinstance(kind, list) and "object" in kind):
        rest.pop("items", None)
    return {"type": "object", "properties": properties if isinstance(properties, dict) else {}, **rest}


def _clean(schema: Json, depth: int) -> dict[str, Json]:
    if isinstance(schema, bool) or schema is None:
        return {"not": {}} if schema is False else {}
    if not isinstance(schema, dict):
        return {}
    if depth > _MAX_DEPTH:
        return dict(schema)
    clean: dict[str, Json] = {}
    for key, value in schema.items():
        if key in _DATA:
            clean[key] = value
        elif key == "required":
            clean |= {key: [name for name in value if isinstance(name, str)]} if isinstance(value, list) else {}
        elif isinstance(value, _SHAPES.get(key, object)) and value is not None:
            clean[key] = _keyword(key, value, depth + 1)
    if "type" not in clean and (kind := _plain_type(clean)):
        clean = {"type": kind, **clean}
    return clean


def _keyword(key: str, value: Json, depth: int) -> Json:
    if key in _MAPS:
        return {name: _clean(sub, depth) for name, sub in value.items()}
    if key in _LISTS or (key == "items" and isinstance(value, list)):
        return [_clean(sub, depth) for sub in value]
    if key in _SINGLE or (key in _OPEN and not isinstance(value, bool)):
        return _clean(value, depth)
    return value


def _plain_type(schema: dict[str, Json]) -> str | None:
    if "$ref" in schema or any(key in schema for key in _COMBINATORS):
        return None
    if "properties" in schema or "additionalProperties" in schema:
        return "object"
    if "items" in schema or "prefixItems" in schema:
        return "array"
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    if isinstance(values, list) and values:
        kinds = {_json_type(value) for value in values}
        return kinds.pop() if len(kinds) == 1 else None
    return None


def _json_type(value: Json) -> str | None:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    names = {str: "string", int: "integer", float: "number", list: "array", dict: "object"}
    return names.get(type(value))


def _top(schema: dict[str, Json]) -> dict[str, Json]:
    """The top without `$ref` and combinators: the branches' properties are offered together, and required is what every
    branch of `anyOf`/`oneOf`, or any of `allOf`, requires."""
    definitions: dict[str, Json] = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    merged = _resolved(schema, definitions, frozenset())
    for key in ("enum", "const", "not", "if", "then", "else"):
        merged.pop(key, None)
    return {**merged, **definitions}


def _resolved(schema: dict[str, Json], definitions: dict[str, Json], seen: frozenset[str]) -> dict[str, Json]:
    base = {key: value for key, value in schema.items() if key not in (*_COMBINATORS, "$ref", *definitions)}
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in seen:
        target = _lookup(reference, definitions)
        base = _merge(base, [_resolved(target, definitions, seen | {reference})], every=False)
    for key in _COMBINATORS:
        branches = schema.get(key)
        if isinstance(branches, list) and branches:
            parts = [_resolved(branch, definitions, seen) for branch in branches if isinstance(branch, dict)]
            base = _merge(base, parts, every=key != "allOf")
    return base


def _merge(base: dict[str, Json], parts: list[dict[str, Json]], *, every: bool) -> dict[str, Json]:
    """`base` with the parts' keywords and properties. `every`: only what all parts require is required."""
    merged = dict(base)
    properties = dict(base.get("properties") or {})
    for part in parts:
        merged = {**part, **merged}
        properties = {**properties, **{k: v for k, v in (part.get("properties") or {}).items() if k not in properties}}
    demands = [part.get("required", []) for part in parts]
    demanded = [name for demand in demands for name in demand if not every or all(name in other for other in demands)]
    required = list(dict.fromkeys([*base.get("required", []), *demanded]))
    if properties:
        merged["properties"] = properties
    merged.pop("required", None)
    if required:
        merged["required"] = required
    return merged


def _lookup(reference: str, definitions: dict[str, Json]) -> dict[str, Json]:
    """The target of a local `#/$defs/Name` (JSON pointer escapes undone), `{}` when there is none."""
    place: Json = definitions
    if not reference.startswith("#/"):
        return {}
    for part in reference[2:].split("/"):
        place = place.get(part.replace("~1", "/").replace("~0", "~")) if isinstance(place, dict) else None
    return place if isinstance(place, dict) else {}
