"""A tool's result as the text that the model reads."""

from __future__ import annotations

from typing import Any

import orjson

from agent_env.cuts import cut as cut

Json = Any


def joined_text(result: Json) -> str:
    """The text blocks joined by line breaks, other blocks named in brackets. Without blocks: `data`, or the structured
    content as JSON. A tool that gave nothing gives the empty text."""
    if not isinstance(result, dict):
        return "" if result is None else _json(result)
    content = result.get("content")
    if isinstance(content, list) and content:
        return "\n".join(_block(block) for block in content)
    data = result.get("data")
    if data is None:
        data = result.get("structured_content")
    return "" if data is None else data if isinstance(data, str) else _json(data)


def _block(block: Json) -> str:
    if not isinstance(block, dict):
        return _json(block)
    kind = block.get("type")
    if kind == "text":
        return str(block.get("text", ""))
    if kind in ("image", "audio"):
        size = len(str(block.get("data", ""))) * 3 // 4
        return f"[{kind} {block.get('mimeType', 'of unknown type')}, about {size} bytes]"
    if kind == "resource" and isinstance(block.get("resource"), dict):
        resource = block["resource"]
        return str(resource["text"]) if "text" in resource else f"[resource {resource.get('uri', 'without uri')}]"
    if kind == "resource_link":
        return f"[resource {block.get('uri', 'without uri')}]"
    return _json(block)


def _json(value: Json) -> str:
    return orjson.dumps(value, default=str).decode()
