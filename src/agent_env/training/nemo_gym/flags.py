"""The command lines of this package: flags, their environment variables, errors and exit codes."""

from __future__ import annotations

import argparse
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from agent_env.errors import AgentEnvError, ConfigError

PROGRAM = "python -m agent_env.training.nemo_gym"
OK, FAILED, USAGE, INTERRUPTED = 0, 1, 2, 130


class Parser(argparse.ArgumentParser):
    """A flag left out takes `AGENT_ENV_<FLAG>` from the environment, then its default."""

    def __init__(self, command: str, description: str, examples: str, program: str = PROGRAM) -> None:
        super().__init__(
            prog=f"{program} {command}".rstrip(),
            description=description,
            epilog=f"examples:\n{examples}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        self._from_environment: dict[str, str] = {}

    def flag(self, name: str, **options: Any) -> None:
        """Adds the flag `--name`. A repeatable one (action `append`) takes one value from the environment."""
        variable = "AGENT_ENV_" + name.removeprefix("--").replace("-", "_").upper()
        action = self.add_argument(name, **options)
        self._from_environment[variable] = action.dest
        if action.help:
            shown = isinstance(action.default, int | float | str) and action.default is not False
            default = f"; default {action.default}" if shown else ""
            action.help = f"{action.help} [{variable}{default}]".replace("%", "%%")

    def parse(self, argv: Sequence[str]) -> argparse.Namespace:
        """The arguments; a usage error ends the process with 2."""
        return self.parse_args([*self._environment(argv), *argv])

    def _environment(self, argv: Sequence[str]) -> list[str]:
        given = {word.partition("=")[0] for word in argv}
        words: list[str] = []
        for action in self._actions:
            variable = next((name for name, dest in self._from_environment.items() if dest == action.dest), None)
            value = os.environ.get(variable) if variable else None
            if value is None or value == "" or given.intersection(action.option_strings):
                continue
            if action.nargs == 0:
                if value.lower() not in ("0", "false", "no", "off"):
                    words.append(action.option_strings[0])
            else:
                words.append(f"{action.option_strings[0]}={value}")
        return words

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"error: {message}\nsee: {self.prog} --help\n")
        raise SystemExit(USAGE)


def guarded(command: Callable[[], int], *, debug: bool) -> int:
    """Runs a command: an error of ours becomes one line, and 2 for what the user must put right, else 1; Ctrl-C is 130.
    `debug` shows the traceback too."""
    try:
        return command()
    except AgentEnvError as error:
        if debug:
            traceback.print_exc()
        say(f"error: {error}")
        return USAGE if isinstance(error, ConfigError) else FAILED
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED


def say(line: str) -> None:
    """A line for people, on stderr: stdout carries results only."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def positive(text: str) -> int:
    return int(_number(text, int, 1, "a whole number of 1 or more"))


def seconds(text: str) -> float:
    return _number(text, float, 0.001, "a number of seconds above 0")


def _number(text: str, kind: Callable[[str], float], least: float, what: str) -> float:
    try:
        value = kind(text)
    except ValueError:
        value = float("nan")
    if not least <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not {what}")
    return value
