"""The end of what a container printed."""

from __future__ import annotations

from agent_env.sandbox.docker_daemon import Client

_ROTATED_FROM = 3 << 20
"""output of about this size may have lost its beginning to the daemon's own rotation"""


def read_logs(client: Client, container: str, limit: int) -> str:
    """The last `limit` bytes of stdout and stderr; a marker line comes first when something was cut."""
    kept = bytearray()
    total = lines = 0
    for chunk in client.logs(container, stdout=True, stderr=True, stream=True, follow=False):
        total += len(chunk)
        lines += chunk.count(b"\n")
        kept += chunk
        if len(kept) > 2 * limit + 65_536:
            del kept[: len(kept) - limit]
    del kept[: max(0, len(kept) - limit)]
    text = kept.decode(errors="replace")
    if total > len(kept):
        return f"[{total - len(kept)} earlier bytes left out]\n{text}"
    if total + 64 * lines > _ROTATED_FROM:
        return f"[earlier bytes may be left out]\n{text}"
    return text
