from __future__ import annotations

import json
import logging

import pytest

from agent_env.commands.console import JsonFormatter, TextFormatter


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("a", logging.WARNING, "f", 1, "env said: %s", (message,), None)


@pytest.mark.parametrize("said", ["\x1b]0;owned\x07", "\x1b[2Jgone", "\x9b31m", "\ud800", "\r12:00:00 INFO well"])
def test_what_an_env_said_steers_no_terminal_and_breaks_no_line(said: str) -> None:
    text = TextFormatter().format(record(said))
    assert text.isprintable()
    assert json.loads(JsonFormatter().format(record(said)))["message"] == f"env said: {said}"
