"""A JSON object's fields with their own text, so that a field can be echoed exactly as it came.

Token ids and log-probabilities travel in `response`: trainers compare what comes back with what they sent.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

Json = Any
_SPACE = re.compile(r"[ \t\n\r]*")


class NotJson(ValueError):
    """The text is no JSON object; the message says where and why."""


class _NotFinite(Exception):
    """NaN or Infinity among the numbers."""


def _no_constant(name: str) -> NoReturn:
    raise _NotFinite(name)


_STRICT = json.JSONDecoder(parse_constant=_no_constant)
_LENIENT = json.JSONDecoder()


def spans(body: bytes) -> dict[str, tuple[Json, str]]:
    """A JSON object's fields, each with its own text. Of a name given twice the last counts, as in every JSON reader.

    Token log-probabilities may come as NaN or Infinity, which is not JSON: such a field is written anew, with null.
    """
    try:
        text = body.decode()
        at = _punctuation(text, 0, "{")
        fields: dict[str, tuple[Json, str]] = {}
        if text[at : at + 1] == "}":
            return _ended(text, at, fields)
        while True:
            if text[at : at + 1] != '"':
                raise NotJson(f"not valid JSON: a field's name is expected at character {at}")
            name, at = _STRICT.raw_decode(text, at)
            at = _punctuation(text, at, ":")
            value, end, shown = _value(text, at)
            fields[name] = (value, shown)
            at = _SPACE.match(text, end).end()  # type: ignore[union-attr]
            if text[at : at + 1] == "}":
                return _ended(text, at, fields)
            at = _punctuation(text, at, ",")
    except UnicodeDecodeError as error:
        raise NotJson(f"not UTF-8: {error.reason} at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise NotJson(f"not valid JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise NotJson("nested too deeply") from None


def _value(text: str, at: int) -> tuple[Json, int, str]:
    try:
        value, end = _STRICT.raw_decode(text, at)
        return value, end, text[at:end]
    except _NotFinite:
        value, end = _LENIENT.raw_decode(text, at)
        return value, end, json.dumps(_with_nulls(value))


def _with_nulls(value: Json) -> Json:
    if isinstance(value, dict):
        return {key: _with_nulls(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_nulls(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _punctuation(text: str, at: int, mark: str) -> int:
    """The place after `mark`, blanks around it passed over."""
    at = _SPACE.match(text, at).end()  # type: ignore[union-attr]
    if text[at : at + 1] != mark:
        wanted = f"not valid JSON: {mark!r} is expected at character {at}"
        raise NotJson("must be a JSON object" if mark == "{" else wanted)
    return _SPACE.match(text, at + 1).end()  # type: ignore[union-attr]


def _ended(text: str, at: int, fields: dict[str, tuple[Json, str]]) -> dict[str, tuple[Json, str]]:
    if text[at + 1 :].strip(" \t\n\r"):
        raise NotJson(f"not valid JSON: more text after character {at}")
    return fields
