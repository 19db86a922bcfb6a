"""`play URL --rows FILE`: plays rows with policies in place of a model, over HTTP as verifiers does."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO

import orjson

from agent_env.errors import ConfigError
from agent_env.training.nemo_gym.client import Policy, RolloutClient, RolloutResult
from agent_env.training.nemo_gym.flags import FAILED, OK, Parser, guarded, positive, say, seconds, token
from agent_env.training.nemo_gym.progress import Advance, progress
from agent_env.training.nemo_gym.report import faults, rewards_of, summary_of, table
from agent_env.training.nemo_gym.rows import Row, read_rows

_GRIDSIM = "agent_env.examples.gridsim.policies"
_KNOWN = ("idle", "greedy", "optimal", "random", "broken")
_EXAMPLES = """\
  python -m agent_env.training.nemo_gym play http://127.0.0.1:9100 --rows eval.jsonl --policy idle,greedy,optimal
  python -m agent_env.training.nemo_gym play http://127.0.0.1:9100 --rows train.jsonl --policy mine:clever \\
    --limit 64 --repeats 8 --concurrency 32 --out rollouts.jsonl
"""


@dataclass(slots=True)
class Played:
    """The rollouts of each policy, and how long each took in all."""

    results: dict[str, list[RolloutResult]] = field(default_factory=dict)
    walls: dict[str, float] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        return all(result.measured for played in self.results.values() for result in played)


def play_command(argv: Sequence[str]) -> int:
    """0 when every rollout was measured, 1 when one failed or was masked."""
    arguments = _parser().parse(argv)
    return guarded(lambda: asyncio.run(_play(arguments)), debug=arguments.debug)


def find_policy(name: str) -> Policy:
    """The policy that GridSim knows by that name, or `module:function`. Raises ConfigError."""
    module, colon, function = name.partition(":")
    if not colon:
        if name not in _KNOWN:
            raise ConfigError(f"no policy {name!r}: known are {', '.join(_KNOWN)}, and module:function")
        module, function = _GRIDSIM, name
    try:
        policy = getattr(importlib.import_module(module), function)
    except ImportError as error:
        raise ConfigError(f"policy {name!r}: can't import {module}: {error}") from error
    except AttributeError:
        raise ConfigError(f"policy {name!r}: {module} has no {function!r}") from None
    if not inspect.iscoroutinefunction(policy):
        raise ConfigError(f"policy {name!r} is not an `async def policy(play)`")
    found: Policy = policy
    return found


async def play_rows(
    client: RolloutClient, rows: Sequence[Row], policy: str, *, repeats: int, concurrency: int, ended: Advance
) -> None:
    """Plays each row `repeats` times, `concurrency` at once; `ended` gets every result as it comes."""
    function = find_policy(policy)
    jobs = iter([(row, repeat) for row in rows for repeat in range(repeats)])

    async def worker() -> None:
        for row, repeat in jobs:
            ended(await client.play(row, function, name=policy, repeat=repeat))

    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(rows) * repeats)):
            group.create_task(worker())


async def _play(arguments: argparse.Namespace) -> int:
    policies = list(dict.fromkeys(name.strip() for given in arguments.policy for name in given.split(",")))
    for name in policies:
        find_policy(name)
    rows = read_rows(Path(arguments.rows), arguments.limit)
    bearer = token(arguments.token_file)
    client = RolloutClient(
        arguments.url,
        request_timeout=arguments.request_timeout,
        headers={"Authorization": f"Bearer {bearer}"} if bearer else None,
        seed=arguments.seed,
        max_turns=arguments.max_turns,
    )
    await client.check()
    played = Played()
    try:
        with _log(arguments.out) as log:
            for name in policies:
                await _play_policy(client, rows, name, arguments, played, log)
    finally:
        await client.aclose()
        if any(played.results.values()):
            print(table(played.results, played.walls))
            for line in faults(played.results):
                say(line)
    if arguments.summary:
        _write(Path(arguments.summary), _summary(played, dict(arguments.note)))
    if arguments.plot:
        from agent_env.training.nemo_gym.plots import plot_rewards

        rewards = {name: rewards_of(results) for name, results in played.results.items()}
        say(f"wrote {plot_rewards(Path(arguments.plot) / 'rewards.png', rewards)}")
    return OK if played.clean else FAILED


async def _play_policy(
    client: RolloutClient,
    rows: Sequence[Row],
    name: str,
    arguments: argparse.Namespace,
    played: Played,
    log: IO[bytes] | None,
) -> None:
    results = played.results[name] = []
    played.walls[name] = 0.0
    started = time.perf_counter()
    with progress(name, len(rows) * arguments.repeats) as advance:

        def ended(result: RolloutResult) -> None:
            results.append(result)
            if log:
                log.write(orjson.dumps(_rounded(result), option=orjson.OPT_APPEND_NEWLINE))
                log.flush()
            played.walls[name] = time.perf_counter() - started
            advance(result)

        await play_rows(client, rows, name, repeats=arguments.repeats, concurrency=arguments.concurrency, ended=ended)


def _rounded(result: RolloutResult) -> dict[str, object]:
    return asdict(result) | {"seconds": {phase: round(value, 6) for phase, value in result.seconds.items()}}


def _summary(played: Played, notes: Mapping[str, str]) -> dict[str, object]:
    entries = {name: summary_of(results, played.walls[name]) for name, results in played.results.items()}
    return {**notes, "policies": entries}


@contextmanager
def _log(path: str | None) -> Iterator[IO[bytes] | None]:
    if path is None:
        yield None
        return
    target = Path(path)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        file = target.open("wb")
    except OSError as error:
        raise ConfigError(f"{path}: can't write the rollouts: {error.strerror or error}") from None
    with file:
        yield file


def _write(path: Path, content: object) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    except OSError as error:
        raise ConfigError(f"{path}: can't write the summary: {error.strerror or error}") from None


def _parser() -> Parser:
    parser = Parser("play", "Plays rows against a resources server with policies in place of a model.", _EXAMPLES)
    parser.add_argument("url", metavar="URL", help="the resources server")
    parser.flag("--rows", metavar="FILE", required=True, help="JSON Lines file of rows")
    parser.flag(
        "--policy",
        metavar="NAME[,NAME]",
        action="append",
        required=True,
        help=f"{', '.join(_KNOWN)} (GridSim), or module:function; repeatable",
    )
    parser.flag("--limit", metavar="N", type=positive, help="the first N rows; all by default")
    parser.flag("--repeats", metavar="R", type=positive, default=1, help="rollouts of each row")
    parser.flag("--concurrency", metavar="C", type=positive, default=8, help="rollouts at once")
    parser.flag("--seed", metavar="S", type=int, default=0, help="seeds every rollout's own random numbers")
    parser.flag("--max-turns", metavar="N", type=positive, help="cap on model turns; none by default")
    parser.flag("--request-timeout", metavar="S", type=seconds, default=600.0, help="seconds without a byte")
    parser.flag("--out", metavar="FILE", help="write each result, as JSON Lines")
    parser.flag("--summary", metavar="FILE", help="write the means, as JSON")
    parser.flag("--note", metavar="KEY=VALUE", type=_note, action="append", default=[], help="put this in the summary")
    parser.flag("--plot", metavar="DIR", help="write pictures there")
    parser.flag("--token-file", metavar="FILE", help="file with the server's token")
    parser.flag("--debug", action="store_true", help="show tracebacks")
    return parser


def _note(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key or key == "policies":
        raise argparse.ArgumentTypeError(f"{text!r} is not KEY=VALUE")
    return key, value
