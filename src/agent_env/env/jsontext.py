"""JSON as envs write it: Python's own dialect included."""

from __future__ import annotations

import json
import math
from typing import Any

import orjson

Json = Any

MAX_DEPTH = 100
"""of what we send; parsers in wide use stop at 200"""


def dump(value: Json) -> bytes:
    """One JSON text. Integers may have any size; what UTF-8 can't carry is replaced, what JSON can't becomes null.

    Raises:
        ValueError: it is nested deeper than parsers take, or no JSON value at all.
    """
    if deeper_than(value, MAX_DEPTH):
        raise ValueError(f"nested more than {MAX_DEPTH} deep")
    try:
        return orjson.dumps(value)
    except TypeError:
        pass
    try:
        return json.dumps(_clean(value, finite=True), separators=(",", ":"), ensure_ascii=False).encode()
    except TypeError as error:
        raise ValueError(str(error)) from error


def parse(data: bytes, *, keep_non_finite: bool = False) -> Json:
    """A JSON text, leniently: bare NaN and Infinity, lone surrogates and broken UTF-8 are taken for what they mean.

    Args:
        keep_non_finite: give NaN and the infinities as floats; else they become None, as in most JSON writers.

    Raises:
        ValueError: it is no JSON even so.
    """
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError:
        pass
    try:
        text = data.decode("utf-8", errors="replace")
        value = json.loads(text, parse_constant=float if keep_non_finite else lambda _: None)
        return _clean(value, finite=False) if "\\ud" in text or "\\uD" in text else value
    except RecursionError as error:
        raise ValueError("nested too deep") from error


def deeper_than(value: Json, depth: int) -> bool:
    """Whether lists and objects are nested more than `depth` levels deep in it."""
    level = [value]
    while level and depth >= 0:
        inner: list[Json] = []
        for item in level:
            if isinstance(item, dict):
                inner += item.values()
            elif isinstance(item, list | tuple):
                inner += item
        level = inner
        depth -= 1
    return bool(level)


def _clean(value: Json, *, finite: bool) -> Json:
    """Lone surrogates replaced, since no UTF-8 can carry them; if `finite`, None for numbers that are not."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list | tuple):
        return [_clean(item, finite=finite) for item in value]
    if isinstance(value, dict):
        return {_clean(key, finite=finite): _clean(item, finite=finite) for key, item in value.items()}
    if finite and isinstance(value, float) and not math.isfinite(value):
        return None
    return value
