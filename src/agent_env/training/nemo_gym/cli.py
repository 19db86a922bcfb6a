"""`python -m agent_env.training.nemo_gym`: the writer, unless the first word is another command's name.

Commands are imported when they are asked for, so that each starts as quickly as it can.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from agent_env.commands.console import ReportedErrors, debug_wanted, report
from agent_env.errors import ConfigError
from agent_env.training.nemo_gym.command_line import read_token, run, say

PROGRAM = "python -m agent_env.training.nemo_gym"
_COMMANDS = {
    "serve": ("agent_env.training.nemo_gym.serve", "serve_command"),
    "play": ("agent_env.training.nemo_gym.play", "play_command"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 ok, 1 the work failed, 2 usage, 130 Ctrl-C."""
    words = list(sys.argv[1:] if argv is None else argv)
    debug = debug_wanted(words[:])
    name = words.pop(0) if words and words[0] in _COMMANDS else ""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command()(_command(name))
    try:
        try:
            app(args=words, prog_name=f"{PROGRAM} {name}".rstrip())
        except ReportedErrors as error:
            if debug:
                raise
            report(error)
    except SystemExit as stop:
        return stop.code if isinstance(stop.code, int) else 0
    return 0


def _command(name: str) -> Callable[..., Any]:
    if not name:
        return write_command
    module, function = _COMMANDS[name]
    command: Callable[..., Any] = getattr(importlib.import_module(module), function)
    return command


def write_command(
    url: Annotated[str, typer.Argument(metavar="URL", help="The OpenEnv server that serves the bundle.")],
    out: Annotated[str, typer.Argument(metavar="OUT", help="Folder to write into.")],
    name: Annotated[
        str | None, typer.Option(envvar="AGENT_ENV_NAME", help="Name of the server.", show_default="the bundle's")
    ] = None,
    rows: Annotated[
        str, typer.Option(envvar="AGENT_ENV_ROWS", metavar="A:B", help="Rows A to B (not included) of each split.")
    ] = ":",
    split: Annotated[
        list[str] | None,
        typer.Option(
            envvar="AGENT_ENV_SPLIT", metavar="S", help="Write this split; repeatable.", show_default="every eval"
        ),
    ] = None,
    probe: Annotated[
        str,
        typer.Option(
            envvar="AGENT_ENV_PROBE", metavar="N|all", help="Tasks of each toolset to play, to learn their tools."
        ),
    ] = "1",
    force: Annotated[
        bool, typer.Option("--force", envvar="AGENT_ENV_FORCE", help="Set aside what is in the way.")
    ] = False,
    openenv_token_file: Annotated[
        Path | None,
        typer.Option(envvar="AGENT_ENV_OPENENV_TOKEN_FILE", help="A file with the OpenEnv server's bearer token."),
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Write the resources server's folder of a served bundle: OUT/resources_servers/NAME with config and rows.

    The other commands, as first word: serve (runs such a folder's server), play (plays its rows); see their --help.

    Examples:

      python -m agent_env.training.nemo_gym http://127.0.0.1:8200 gym-root

      python -m agent_env.training.nemo_gym http://127.0.0.1:8200 gym-root --name part_a --rows 0:1000 --split train

      python -m agent_env.training.nemo_gym serve gym-root/resources_servers/gridsim_v1 --port 9100

      python -m agent_env.training.nemo_gym play http://127.0.0.1:9100 --rows rows.jsonl --policy greedy
    """
    from agent_env.training.nemo_gym.writer import WriterOptions, write

    options = WriterOptions(
        url=url,
        out=out,
        name=name,
        rows=_rows(rows),
        splits=tuple(split or ()),
        probe=_probe(probe),
        force=force,
        token=read_token(openenv_token_file),
    )
    print(f"wrote {run(write(options, say)).path}")


def _rows(text: str) -> tuple[int, int | None]:
    start, colon, stop = text.partition(":")
    try:
        first = int(start) if start.strip() else 0
        last = int(stop) if stop.strip() else None
    except ValueError:
        colon = ""
    if not colon or first < 0 or (last is not None and last <= first):
        raise ConfigError(f"--rows {text}: must be a range like 0:1000, 1000: or :50 with at least one row")
    return first, last


def _probe(text: str) -> int | None:
    if text == "all":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise ConfigError(f"--probe {text}: must be all, or a number from 1 on")
    return int(text)
