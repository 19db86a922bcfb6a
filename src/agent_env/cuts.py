"""Long texts cut to a limit, with a marker that says so."""

from __future__ import annotations


def cut(text: str, limit: int) -> str:
    """At most `limit` bytes of `text`; a cut text says how much is missing."""
    if len(text) * 4 <= limit:
        return text
    content = text.encode("utf-8", "replace")
    if len(content) <= limit:
        return text
    kept = content[:limit].decode("utf-8", "ignore")
    return f"{kept}\n[output cut: {len(kept.encode())} of {len(content)} bytes are shown]"
