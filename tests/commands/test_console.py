from __future__ import annotations

import json
import logging

import pytest

from agent_env.commands.console import JsonFormatter, TextFormatter, report
from agent_env.errors import EpisodeFailure, FailureKind


def record(message: str) -> logging.LogRecord:
    return logging.LogRecord("a", logging.WARNING, "f", 1, "env said: %s", (message,), None)


@pytest.mark.parametrize("said", ["\x1b]0;owned\x07", "\x1b[2Jgone", "\x9b31m", "\ud800", "\r12:00:00 INFO well"])
def test_what_an_env_said_steers_no_terminal_and_breaks_no_line(said: str) -> None:
    text = TextFormatter().format(record(said))
    assert text.isprintable()
    assert json.loads(JsonFormatter().format(record(said)))["message"] == f"env said: {said}"


def test_a_failure_that_ends_a_command_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        report(EpisodeFailure(FailureKind.PROVIDER_UNAVAILABLE, "Docker does not answer"))
    assert ended.value.code == 1
    assert capsys.readouterr().err == (
        "error: provider_unavailable: Docker does not answer "
        "(the provider does not answer: is the Docker daemon up, is DOCKER_HOST right?)\n"
    )
