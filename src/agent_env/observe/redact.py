"""Keeps secrets out of the episode log: by their value anywhere, by their key in a call's arguments."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

Json = Any

REDACTED = "[redacted]"
LEAST = 4
"""Characters of a secret that is looked for: shorter ones are found everywhere."""
_LEAST_OF_ENVIRONMENT = 8

_WORDS = "password|passwd|passphrase|secret|credentials?|authorization"
_SECRET_KEY = re.compile(
    rf"(?:{_WORDS}|api_?keys?|(?:access|private|signing|encryption)_?keys?)(?:_|$)|(?:^|_)(?:token|auth|pwd|cookie)$"
)
_PLACES = re.compile(r"(?:OLD)?PWD|.*_(?:FILE|PATH|DIR)")
_IN_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^/@:\s]*:([^/@\s]+)@")
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SUSPECT = ("\\u", "\n", "\r", "pass", "pwd", "secret", "credential", "auth", "key", "token", "cookie")
"""What text of arguments must hold to need a closer look; without it the text is kept as it came."""
_CUT = b"[output cut: "
"""how `cuts.cut` marks a cut text"""
_HEADER = re.compile(rb"(?i)(authorization\\*[\"']?\s*[:=]\s*\\*[\"']?(?:[a-z]+\s+)?|\bbearer\s+)[a-z0-9._~+/=-]{6,}")


def secret_key(key: str) -> bool:
    """Whether what stands under that key is likely a secret: `password`, `apiKey`, `x-auth-token`; not `max_tokens`."""
    return _SECRET_KEY.search(_CAMEL.sub("_", key).replace("-", "_").lower()) is not None


def environment_secrets(environ: Mapping[str, str] = os.environ) -> list[str]:
    """Values of this process's variables whose name says that they are secret, and passwords in URLs: tools may show
    them. `PWD` is where the process was started, and what ends in `_FILE` or so is a place as well."""
    named = [
        value
        for name, value in environ.items()
        if (secret_key(name) or name.endswith("_PASS")) and not _PLACES.fullmatch(name)
    ]
    in_urls = [found[1] for value in environ.values() if (found := _IN_URL.match(value))]
    return [value for value in (*named, *in_urls) if len(value) >= _LEAST_OF_ENVIRONMENT]


class Redactor:
    """`secrets` are values that no line may hold, in whatever field."""

    def __init__(self, secrets: Iterable[str] = ()) -> None:
        values = {secret.encode("utf-8", "replace").decode() for secret in secrets if len(secret) >= LEAST}
        self._values = sorted(values, key=len, reverse=True)
        self._secrets = [form for value in self._values for form in _forms(value)]

    def arguments(self, text: str) -> Json:
        """A call's arguments, for orjson. Raises ValueError when they are not JSON."""
        lower = text.lower()
        if not any(map(lower.__contains__, _SUSPECT)):
            return orjson.Fragment(text)
        arguments = orjson.loads(text)
        try:
            return without_secrets(arguments)
        except RecursionError:  # hundreds of lists in each other: nobody needs what is in there
            return REDACTED

    def text(self, text: str) -> str:
        """A reason or the like, as `line` would have it."""
        text = text.encode("utf-8", "replace").decode()
        for value in self._values:
            text = text.replace(value, REDACTED)
        return self.line(text.encode()).decode()

    def line(self, line: bytes) -> bytes:
        """A finished line without the values, and without what follows `Authorization:` and `Bearer`."""
        for secret in self._secrets:
            if secret in line:
                line = line.replace(secret, REDACTED.encode())
        if _CUT in line:
            *cut, rest = line.split(_CUT)
            line = _CUT.join([*map(self._beheaded, cut), rest])
        if b"uthorization" in line or b"UTHORIZATION" in line or b"earer " in line:
            line = _HEADER.sub(rb"\1" + REDACTED.encode(), line)
        return line

    def _beheaded(self, text: bytes) -> bytes:
        """Text that was cut, without the beginning of a secret at its end."""
        end = next((end for end in (b"\\n", b" ") if text.endswith(end)), b"")
        kept = text.removesuffix(end)
        for secret in self._secrets:
            start = kept.find(secret[:LEAST], max(len(kept) - len(secret), 0))
            while start >= 0:
                if secret.startswith(kept[start:]):
                    return kept[:start] + REDACTED.encode() + end
                start = kept.find(secret[:LEAST], start + 1)
        return text


def without_secrets(value: Json) -> Json:
    """JSON with the values of secret keys replaced, at any depth."""
    if isinstance(value, dict):
        return {
            key: REDACTED if inner is not None and secret_key(key) else without_secrets(inner)
            for key, inner in value.items()
        }
    if isinstance(value, list):
        return [without_secrets(inner) for inner in value]
    return value


def _forms(secret: str) -> list[bytes]:
    """How a value can stand in a line: as JSON text, and as text of JSON inside a text."""
    once = orjson.dumps(secret)[1:-1]
    twice = orjson.dumps(once.decode())[1:-1]
    return list(dict.fromkeys((twice, once)))
