"""The end of what a container printed."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

from agent_env.sandbox.docker_daemon import Client, streamed

_CHUNK = 1 << 16
_ROTATED_FROM = 3 << 20
"""output of about this size may have lost its beginning to the daemon's own rotation"""


def read_logs(client: Client, container: str, limit: int) -> str:
    """The last `limit` bytes of stdout and stderr; a marker line comes first when something was cut."""
    kept = bytearray()
    total = lines = 0
    with streamed(client, f"/containers/{container}/logs", stdout="1", stderr="1") as answer:
        for data in payloads(answer.iter_content(_CHUNK)):
            total += len(data)
            lines += data.count(b"\n")
            kept += data
            if len(kept) > 2 * limit + _CHUNK:
                del kept[: len(kept) - limit]
    del kept[: max(0, len(kept) - limit)]
    text = kept.decode(errors="replace")
    if total > len(kept):
        return f"[{total - len(kept)} earlier bytes left out]\n{text}"
    if total + 64 * lines > _ROTATED_FROM:
        return f"[earlier bytes may be left out]\n{text}"
    return text


def payloads(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """What is in the daemon's frames: a head of 8 bytes, the stream's number first and the length last, then data."""
    waiting = bytearray()
    for chunk in chunks:
        waiting += chunk
        while len(waiting) >= 8:
            end = 8 + int(struct.unpack(">I", waiting[4:8])[0])
            if len(waiting) < end:
                break
            yield bytes(waiting[8:end])
            del waiting[:end]
