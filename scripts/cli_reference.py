"""Writes docs/cli.md: every command and flag, read from the commands themselves. With --check it only compares."""

from __future__ import annotations

import argparse
import importlib
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from agent_env.cli import app
from agent_env.deploy import ray_servers
from agent_env.training.nemo_gym import cli as nemo_gym

DOC = Path(__file__).parent.parent / "docs" / "cli.md"

INTRO = """\
# Commands and flags

Written by `scripts/cli_reference.py` from the commands themselves: change them, then run it.

Every command has `--help` with examples. Exit codes: 0 ok, 1 the work failed, 2 a flag, file or row is wrong, 130
interrupted. Errors are one line that names the file, field or port and says what to do; `--debug` adds a traceback.
Ctrl-C (or SIGTERM) ends a command in order: it removes what it started. A flag wins over its environment variable, and
that over a file. Times are seconds.
"""

_HELP = re.compile(r"(?P<text>.*) \[(?P<variable>AGENT_ENV_\w+)(?:; default (?P<default>.*))?\]", re.DOTALL)


@dataclass(frozen=True)
class Flag:
    """One row of a command's table."""

    name: str
    default: str
    variable: str
    text: str


@dataclass(frozen=True)
class Command:
    name: str
    arguments: str
    text: str
    """its description, in Markdown paragraphs"""
    examples: str
    flags: tuple[Flag, ...]

    @property
    def summary(self) -> str:
        """The first sentence."""
        return re.split(r"(?<=[.])\s", " ".join(self.text.split()), maxsplit=1)[0].rstrip(".")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when the file is not what would be written")
    options = parser.parse_args()
    text = render()
    if not options.check:
        DOC.write_text(text)
        print(f"wrote {DOC}")
        return 0
    if DOC.read_text() != text:
        print(f"error: {DOC} is not what the commands say: run python scripts/cli_reference.py", file=sys.stderr)
        return 1
    return 0


def render() -> str:
    commands = [*_typer_commands("agent-env", typer.main.get_command(app)), *_argparse_commands()]
    table = [["Command", "What"], *([f"[`{c.name}`](#{_anchor(c.name)})", c.summary] for c in commands)]
    return "\n".join([INTRO, _table(table), "", *(_section(command) for command in commands)]).rstrip() + "\n"


def _section(command: Command) -> str:
    usage = " ".join(filter(None, [command.name, command.arguments, "[flags]"]))
    flags = [["Flag", "Default", "Environment", "Meaning"]]
    flags += [
        [f"`{flag.name}`", flag.default, f"`{flag.variable}`" if flag.variable else "-", flag.text]
        for flag in command.flags
    ]
    return "\n".join(
        [
            f"## `{command.name}`",
            "",
            f"```\n{usage}\n```",
            "",
            command.text,
            "",
            f"```\n{command.examples}\n```",
            "",
            _table(flags),
            "",
        ]
    )


def _typer_commands(name: str, command: Any) -> Iterator[Command]:
    if hasattr(command, "commands"):
        for sub, inner in command.commands.items():
            yield from _typer_commands(f"{name} {sub}", inner)
        return
    text, _, examples = (command.help or "").partition("Examples:")
    arguments = [p.metavar or p.name.upper() for p in command.params if p.param_type_name == "argument"]
    flags = [_typer_flag(p) for p in command.params if p.param_type_name == "option" and p.name != "help"]
    lines = [line.strip() for line in examples.splitlines() if line.strip()]
    yield Command(name, " ".join(arguments), _paragraphs(text), "\n".join(lines), tuple(flags))


def _typer_flag(option: Any) -> Flag:
    name = next(opt for opt in option.opts if opt.startswith("--"))
    if not option.is_flag:
        name = f"{name} {option.metavar or _kind(option)}"
    variable = option.envvar if isinstance(option.envvar, str) else ""
    shown = option.show_default if isinstance(option.show_default, str) else option.default
    return Flag(name, _default(shown, option.is_flag), variable, _sentence(option.help or ""))


def _kind(option: Any) -> str:
    """What a flag takes, by its default."""
    whole = isinstance(option.default, int) or isinstance(option.min, int)
    return "N" if whole else "S" if isinstance(option.default, float) or option.min is not None else "TEXT"


def _argparse_commands() -> Iterator[Command]:
    yield _argparse_command(nemo_gym._parser())
    for module, _, _ in nemo_gym._COMMANDS.values():
        yield _argparse_command(importlib.import_module(module)._parser())
    yield _argparse_command(ray_servers._parser())


def _argparse_command(parser: argparse.ArgumentParser) -> Command:
    actions = [action for action in parser._actions if action.dest != "help"]
    arguments = " ".join(str(a.metavar or a.dest) for a in actions if not a.option_strings)
    text = (parser.description or "").partition("\n\nother commands")[0]
    epilog = re.sub(r"^examples:\n", "", parser.epilog or "")
    examples = "\n".join(line.removeprefix("  ") for line in epilog.rstrip().splitlines())
    flags = tuple(_argparse_flag(action) for action in actions if action.option_strings)
    return Command(parser.prog, arguments, _paragraphs(text), examples, flags)


def _argparse_flag(action: argparse.Action) -> Flag:
    found = _HELP.fullmatch((action.help or "").replace("%%", "%"))
    text, variable, default = found.groups() if found else (action.help or "", "", None)
    takes = "" if action.nargs == 0 else str(action.metavar or "|".join(map(str, action.choices or ())) or "VALUE")
    name = f"{action.option_strings[0]} {takes}".strip()
    required = "required" if action.required else _default(default, action.nargs == 0)
    return Flag(name, required, variable or "", _sentence(text))


def _default(value: Any, is_flag: bool) -> str:
    if is_flag:
        return "off"
    if value is None or value == [] or value is ...:
        return "-"
    if isinstance(value, float):
        return f"{value:g}"
    return str(value)


def _sentence(text: str) -> str:
    line = " ".join(text.split()).rstrip(".")
    first = line.partition(" ")[0]
    listed = first[-1:] in (",", ":") or f"{first} or " in line  # of words that the flag takes
    return line if listed else line[:1].upper() + line[1:]


def _paragraphs(text: str) -> str:
    parts = [" ".join(part.split()) for part in text.strip().split("\n\n")]
    return "\n\n".join(part for part in parts if part)


def _table(rows: list[list[str]]) -> str:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in rows]
    head, *body = [f"| {' | '.join(row)} |" for row in cells]
    return "\n".join([head, "|" + "---|" * len(rows[0]), *body])


def _anchor(name: str) -> str:
    return re.sub(r"[^\w -]", "", name.lower()).replace(" ", "-")


if __name__ == "__main__":
    sys.exit(main())
