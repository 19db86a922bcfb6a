"""`python -m agent_env.training.nemo_gym`: the writer, unless the first word is another command's name.

Commands are imported when they are asked for, so that `serve` starts quickly and `--help` answers at once.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from collections.abc import Sequence

from agent_env.tokens import read_token
from agent_env.training.nemo_gym.flags import OK, Parser, guarded, positive, say

_COMMANDS = {
    "serve": ("agent_env.training.nemo_gym.serve", "serve_command", "runs a written folder's resources server"),
    "play": ("agent_env.training.nemo_gym.play", "play_command", "plays rows over HTTP as verifiers does"),
    "bench": ("agent_env.training.nemo_gym.bench", "bench_command", "says what the box sustains, and what to set"),
}
_EXAMPLES = """\
  python -m agent_env.training.nemo_gym http://127.0.0.1:8200 gym-root
  python -m agent_env.training.nemo_gym http://127.0.0.1:8200 gym-root --name gridsim_a --rows 0:1000 --split train
  python -m agent_env.training.nemo_gym serve gym-root/resources_servers/gridsim_v1 --port 9100
  python -m agent_env.training.nemo_gym play http://127.0.0.1:9100 --rows rows.jsonl --policy greedy
  python -m agent_env.training.nemo_gym bench http://127.0.0.1:9100 --rows rows.jsonl
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 ok, 1 the work failed, 2 usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in _COMMANDS:
        module, function, _ = _COMMANDS[words[0]]
        code: int = getattr(importlib.import_module(module), function)(words[1:])
        return code
    return write_command(words)


def write_command(argv: Sequence[str]) -> int:
    """URL OUT: writes `OUT/resources_servers/<name>`."""
    arguments = _parser().parse(argv)
    return guarded(lambda: _write(arguments), debug=arguments.debug)


def _write(arguments: argparse.Namespace) -> int:
    from agent_env.training.nemo_gym.writer import WriterOptions, write

    options = WriterOptions(
        url=arguments.url,
        out=arguments.out,
        name=arguments.name,
        rows=arguments.rows,
        splits=tuple(name for names in arguments.split for name in names.split(",")),
        probe=arguments.probe,
        force=arguments.force,
        token=read_token(arguments.openenv_token_file, "--openenv-token-file"),
    )
    written = asyncio.run(write(options, say))
    print(f"wrote {written.path}")
    return OK


def _parser() -> Parser:
    others = "\n".join(f"  {name:<6} {what}; see {name} --help" for name, (_, _, what) in _COMMANDS.items())
    parser = Parser(
        "",
        "Writes the resources server's folder of a served bundle: config and one file of rows per split, under "
        f"OUT/resources_servers/.\n\nother commands, as first word:\n{others}",
        _EXAMPLES,
    )
    parser.add_argument("url", metavar="URL", help="the OpenEnv server that serves the bundle")
    parser.add_argument("out", metavar="OUT", help="folder to write into")
    parser.flag("--name", help="name of the server; the bundle's by default")
    parser.flag("--rows", metavar="A:B", type=_rows, default=(0, None), help="rows A to B (not included) of each split")
    parser.flag(
        "--split",
        metavar="S",
        action="append",
        default=[],
        help="write this split; repeatable, or S,S; every eval by default",
    )
    parser.flag(
        "--probe",
        metavar="N|all",
        type=_probe,
        default=1,
        help="how many tasks of each toolset to play for their tools",
    )
    parser.flag("--force", action="store_true", help="set a folder aside that is in the way, and write")
    parser.flag("--openenv-token-file", metavar="FILE", help="file with the OpenEnv server's token")
    parser.flag("--debug", action="store_true", help="show tracebacks")
    return parser


def _rows(text: str) -> tuple[int, int | None]:
    start, colon, stop = text.partition(":")
    try:
        first = int(start) if start.strip() else 0
        last = int(stop) if stop.strip() else None
    except ValueError:
        colon = ""
    if not colon or first < 0 or (last is not None and last <= first):
        raise argparse.ArgumentTypeError(f"{text!r} is not a range like 0:1000, 1000: or :50 with at least one row")
    return first, last


def _probe(text: str) -> int | None:
    return None if text == "all" else positive(text)
