"""Hooks of mkdocs: the page of commands is made from the parsers themselves, so that it can't be out of date."""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator
from typing import Any

import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from agent_env.cli import app
from agent_env.training.nemo_gym import cli as nemo_gym

COMMANDS = "reference/commands.md"
NEMO_GYM = "python -m agent_env.training.nemo_gym"

_HEAD = """\
# Every command and flag

This page is made from the commands themselves when the documentation is built.

A flag wins over its environment variable, a variable over the written folder's config, that over the default. Times are
seconds, sizes bytes. `--debug` shows tracebacks. Exit codes: 0 done, 1 the work failed, 2 a flag, file or row is
wrong, 130 interrupted.
"""
_VARIABLE = re.compile(r" \[(AGENT_ENV_[A-Z_]+)(?:; default (.*))?\]$", re.DOTALL)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, COMMANDS, content=commands_page()))
    return files


def commands_page() -> str:
    return "\n".join([_HEAD, *_typer_commands(), *_argparse_commands()])


def argparse_parsers() -> dict[str, argparse.ArgumentParser]:
    """The parsers of `python -m agent_env.training.nemo_gym`, by first word; the writer has none."""
    parsers: dict[str, argparse.ArgumentParser] = {"": nemo_gym._parser()}
    for word, (module, _, _) in nemo_gym._COMMANDS.items():
        parsers[word] = importlib.import_module(module)._parser()
    return parsers


def typer_commands(group: Any = None, prefix: str = "agent-env") -> Iterator[tuple[str, Any]]:
    """Every command of `agent-env` under its full name."""
    for name, command in (group or typer.main.get_command(app)).commands.items():
        if getattr(command, "commands", None):
            yield from typer_commands(command, f"{prefix} {name}")
        else:
            yield f"{prefix} {name}", command


def _typer_commands() -> Iterator[str]:
    for name, command in typer_commands():
        yield f"## {name}\n"
        yield _prose(command.help)
        yield _HEADER
        for parameter in command.params:
            argument = not parameter.opts[0].startswith("-")
            word = (parameter.metavar or parameter.name.upper()) if argument else parameter.opts[0]
            shown = parameter.show_default
            default = shown if isinstance(shown, str) else _default(parameter.default, parameter.required)
            yield _row(word, default, parameter.envvar, parameter.help or "")
        yield ""


def _argparse_commands() -> Iterator[str]:
    for word, parser in argparse_parsers().items():
        yield f"## {NEMO_GYM} {word}".rstrip() + "\n"
        yield _prose(parser.description)
        yield _HEADER
        for action in parser._actions:
            if isinstance(action, argparse._HelpAction):
                continue
            told = (action.help or "").replace("%%", "%")
            found = _VARIABLE.search(told)
            name = action.option_strings[0] if action.option_strings else str(action.metavar or action.dest)
            default = (found[2] if found else None) or _default(None, action.required)
            default = default.removesuffix(".0")
            yield _row(name, default, found[1] if found else None, _VARIABLE.sub("", told))
        yield f"\n```bash\n{_examples(parser.epilog)}\n```\n"


_NEEDED, _OFF = "needed", "off"
_HEADER = "| Flag | Default | Variable | Meaning |\n|---|---|---|---|"


def _row(word: str, default: str, variable: str | None, meaning: str) -> str:
    shown = default if not default or " " in default or default in (_NEEDED, _OFF) else f"`{default}`"
    cells = (f"`{word}`", shown, f"`{variable}`" if variable else "", meaning)
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _default(value: object, required: bool) -> str:
    if required:
        return _NEEDED
    if value is False:
        return _OFF
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None or value == () else str(value)


def _prose(text: str | None) -> str:
    """A help text as Markdown: its examples, which stand indented or alone, become a block."""
    lead, mark, examples = (text or "").partition("Examples:")
    commands = "\n".join(line.strip() for line in examples.splitlines() if line.strip())
    lead = re.sub(r"\n\s*other commands, as first word:.*", "", lead, flags=re.DOTALL).replace("<", "&lt;").strip()
    return f"{lead}\n\n```bash\n{commands}\n```\n" if mark else f"{lead}\n"


def _examples(epilog: str | None) -> str:
    return "\n".join(line.removeprefix("  ") for line in (epilog or "").splitlines()[1:] if line.strip())
