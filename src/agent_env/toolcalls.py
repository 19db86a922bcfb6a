"""What a model writes as a tool's arguments."""

from __future__ import annotations

import json
from typing import Any

Json = Any


class BadArguments(ValueError):
    """They are no JSON object. The message is what the model is told, in verifiers' words (0.4.0)."""


def read_arguments(raw: str) -> tuple[dict[str, Json], bytes]:
    """The arguments, and the same as compact JSON. No text at all means none. Raises `BadArguments`."""
    try:
        arguments = json.loads(raw) if raw.strip() else {}
        compact = json.dumps(arguments, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()
    except (ValueError, RecursionError) as error:
        raise BadArguments(
            f"error: invalid JSON in tool arguments ({error}); resend the call with valid JSON"
        ) from None
    if not isinstance(arguments, dict):
        kind = type(arguments).__name__
        raise BadArguments(f"error: tool arguments must be a JSON object, got {kind}; resend as an object")
    return arguments, compact
