"""What all commands share: logging, usage errors, one-line failures."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NoReturn

import orjson

from agent_env.errors import AgentEnvError, BundleError, ConfigError, EpisodeFailure
from agent_env.tables import plain


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time (ISO 8601, UTC), level, logger, message."""

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(line).decode()
        except TypeError:  # half of a surrogate pair, in what a client or an env said
            return json.dumps(line)


class TextFormatter(logging.Formatter):
    """For terminals. Envs have their words in messages: those can't steer it."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        return plain(super().format(record))


def set_up_logging(level: str, form: str = "text") -> None:
    """Log to stderr. Raises ConfigError for a level or format that does not exist."""
    levels = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
    if level.lower() not in levels:
        raise ConfigError(f"--log-level {level}: choose one of {', '.join(levels)}")
    if form not in ("text", "json"):
        raise ConfigError(f"--log-format {form}: choose text or json")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonFormatter() if form == "json" else TextFormatter())
    logging.basicConfig(level=levels[level.lower()], handlers=[handler], force=True)
    for noisy in ("httpx", "httpcore", "docker", "urllib3", "websockets"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # At debug it logs the headers of websockets, tokens included.
    logging.getLogger("uvicorn.error").setLevel(max(logging.INFO, levels[level.lower()]))


def key_values(items: Iterable[str], flag: str) -> dict[str, str]:
    """`KEY=VALUE` words as a dict."""
    pairs = {}
    for item in items:
        key, mark, value = item.partition("=")
        if not mark or not key:
            raise ConfigError(f"{flag} {item}: write KEY=VALUE")
        pairs[key] = value
    return pairs


def fail(message: str, code: int = 2) -> NoReturn:
    """Print one clear line and exit: 1 the work failed, 2 usage."""
    print(f"error: {message}", file=sys.stderr)
    sys.exit(code)


def report(error: Exception) -> NoReturn:
    """End the command for an error of ours, or for a value that a flag can't have: lines, no traceback."""
    if isinstance(error, BundleError):
        for line in error.problems:
            print(f"error: {line}", file=sys.stderr)
        sys.exit(1)
    if isinstance(error, EpisodeFailure):
        fail(f"{error} ({error.kind.remedy})", 1)
    fail(str(error), 2 if isinstance(error, ConfigError) else 1)


def debug_wanted(arguments: list[str]) -> bool:
    """Whether `--debug` (tracebacks) was given; it is taken out of the arguments."""
    wanted = "--debug" in arguments or os.environ.get("AGENT_ENV_DEBUG", "") not in ("", "0")
    while "--debug" in arguments:
        arguments.remove("--debug")
    return wanted


ReportedErrors = (AgentEnvError, ValueError, OSError)
"""what ends a command with a line in place of a traceback"""
