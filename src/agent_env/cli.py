"""The `agent-env` command."""

from __future__ import annotations

import sys

import typer

from agent_env import __version__
from agent_env.commands.check import check
from agent_env.commands.console import ReportedErrors, debug_wanted, report
from agent_env.commands.episode_log import episodes
from agent_env.commands.example import example_gridsim
from agent_env.commands.gc import gc
from agent_env.commands.run import run
from agent_env.commands.serve import serve

app = typer.Typer(
    name="agent-env",
    help="Turn a bundle of environments, tasks and graders into an RL environment. Add --debug for tracebacks.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("run")(run)
app.command("serve")(serve)
app.command("check")(check)
app.command("episodes")(episodes)
app.command("gc")(gc)
examples = typer.Typer(help="Write an example bundle.", no_args_is_help=True, rich_markup_mode=None)
examples.command("gridsim")(example_gridsim)
app.add_typer(examples, name="example")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Print the version."),
) -> None: ...


def main() -> None:
    """Entry point: errors are one clear line; tracebacks only with `--debug`."""
    arguments = sys.argv[1:]
    debug = debug_wanted(arguments)
    try:
        app(args=arguments)
    except ReportedErrors as error:
        if debug:
            raise
        report(error)
    except KeyboardInterrupt:
        sys.exit(130)
