"""Which OpenEnv servers there are: URLs of flags, and of a file that is read again while we run."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

from agent_env.errors import ConfigError

_SHOWN = 100
"""characters of a wrong line"""


def server_url(text: str) -> str:
    """An OpenEnv server's URL without its last slash. Raises ConfigError."""
    if "@" in text:
        raise ConfigError("a server's URL has no name and no password in it; a token goes to --openenv-token-file")
    try:
        parts = urlsplit(text)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        known = False
    if not known or any(not 32 < ord(character) < 127 for character in text):
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        raise ConfigError(f"{shown!r} is not a server's URL: it looks like http://127.0.0.1:8200")
    if parts.query or parts.fragment:
        raise ConfigError("a server's URL has no query in it; a token goes to --openenv-token-file")
    return text.rstrip("/")


def read_servers(path: Path) -> tuple[str, ...]:
    """The URLs in a file, one a line, without what follows a `#`, each once. A ConfigError names the file and line."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: can't read the list of OpenEnv servers: {error}") from None
    urls: dict[str, None] = {}
    for number, line in enumerate(lines, 1):
        if text := line.partition("#")[0].strip():
            try:
                urls[server_url(text)] = None
            except ConfigError as error:
                raise ConfigError(f"{path}:{number}: {error}") from None
    if not urls:
        raise ConfigError(f"{path}: it names no OpenEnv server; write one URL a line")
    return tuple(urls)
