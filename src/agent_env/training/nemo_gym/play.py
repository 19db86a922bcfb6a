"""`play URL --rows FILE`: plays rows with policies in place of a model, over HTTP as verifiers does."""

from __future__ import annotations

import asyncio
import importlib
import inspect
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Annotated, Any

import orjson
import typer

from agent_env.commands.console import key_values
from agent_env.errors import ConfigError
from agent_env.training.nemo_gym.client import Policy, RolloutClient, RolloutResult
from agent_env.training.nemo_gym.command_line import read_token, run, say
from agent_env.training.nemo_gym.progress import Advance, progress
from agent_env.training.nemo_gym.report import faults, rewards_of, summary_of, table
from agent_env.training.nemo_gym.rows import Row, read_rows

Json = Any

_GRIDSIM = "agent_env.examples.gridsim.policies"
_KNOWN = ("idle", "greedy", "optimal", "random", "broken")


@dataclass(slots=True)
class Played:
    """The rollouts of each policy, and how many seconds each policy took in all."""

    results: dict[str, list[RolloutResult]] = field(default_factory=dict)
    walls: dict[str, float] = field(default_factory=dict)

    @property
    def clean(self) -> bool:
        return all(result.measured for played in self.results.values() for result in played)

    def summary(self) -> dict[str, dict[str, Json]]:
        return {name: summary_of(results, self.walls[name]) for name, results in self.results.items()}

    def recorder(self, policy: str, log: IO[bytes] | None, advance: Advance) -> Advance:
        """Takes the results of a policy that begins now."""
        results = self.results[policy] = []
        self.walls[policy] = 0.0
        started = time.perf_counter()

        def ended(result: RolloutResult) -> None:
            results.append(result)
            self.walls[policy] = time.perf_counter() - started
            if log:
                log.write(orjson.dumps(_rounded(result), option=orjson.OPT_APPEND_NEWLINE))
                log.flush()
            advance(result)

        return ended


def play_command(
    url: Annotated[str, typer.Argument(metavar="URL", help="The resources server.")],
    rows: Annotated[Path, typer.Option(envvar="AGENT_ENV_ROWS", metavar="FILE", help="JSON Lines file of rows.")],
    policy: Annotated[
        list[str],
        typer.Option(
            envvar="AGENT_ENV_POLICY",
            metavar="NAME[,NAME]",
            help="idle, greedy, optimal, random, broken (GridSim's), or module:function; repeatable.",
        ),
    ],
    limit: Annotated[
        int | None,
        typer.Option(envvar="AGENT_ENV_LIMIT", min=1, help="The first so many rows.", show_default="all"),
    ] = None,
    repeats: Annotated[int, typer.Option(envvar="AGENT_ENV_REPEATS", min=1, help="Rollouts of each row.")] = 1,
    concurrency: Annotated[int, typer.Option(envvar="AGENT_ENV_CONCURRENCY", min=1, help="Rollouts at once.")] = 8,
    seed: Annotated[int, typer.Option(envvar="AGENT_ENV_SEED", help="Seeds every rollout's own random numbers.")] = 0,
    max_turns: Annotated[
        int | None,
        typer.Option(envvar="AGENT_ENV_MAX_TURNS", min=1, help="Cap on model turns.", show_default="none"),
    ] = None,
    request_timeout: Annotated[
        float, typer.Option(envvar="AGENT_ENV_REQUEST_TIMEOUT", min=0.001, help="Seconds to wait for the next byte.")
    ] = 600.0,
    out: Annotated[
        Path | None, typer.Option(envvar="AGENT_ENV_OUT", help="Write each result there, as JSON Lines.")
    ] = None,
    summary: Annotated[
        Path | None, typer.Option(envvar="AGENT_ENV_SUMMARY", help="Write the means there, as JSON.")
    ] = None,
    note: Annotated[
        list[str] | None,
        typer.Option(envvar="AGENT_ENV_NOTE", metavar="KEY=VALUE", help="Put this in the summary; repeatable."),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(envvar="AGENT_ENV_PLOT", metavar="DIR", help="Write pictures there.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(envvar="AGENT_ENV_TOKEN_FILE", help="A file with the server's bearer token.")
    ] = None,
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Play rows against a resources server as verifiers does, with policies in place of a model.

    Exits with 1 when a rollout failed or was masked.

    Examples:

      python -m agent_env.training.nemo_gym play http://127.0.0.1:9100 --rows eval.jsonl --policy idle,greedy,optimal

      python -m agent_env.training.nemo_gym play http://127.0.0.1:9100 --rows train.jsonl --policy mine:clever --limit 8
    """
    bearer = read_token(token_file)
    client = RolloutClient(
        url,
        request_timeout=request_timeout,
        headers={"Authorization": f"Bearer {bearer}"} if bearer else None,
        seed=seed,
        max_turns=max_turns,
    )
    names = list(dict.fromkeys(name for given in policy for part in given.split(",") if (name := part.strip())))
    notes = key_values(note or [], "--note")
    played = run(
        play_policies(client, read_rows(rows, limit), names, repeats=repeats, concurrency=concurrency, out=out)
    )
    if summary:
        _write(summary, {**notes, "policies": played.summary()})
    if plot:
        from agent_env.training.nemo_gym.plots import plot_rewards

        rewards = {name: rewards_of(results) for name, results in played.results.items()}
        say(f"wrote {plot_rewards(plot / 'rewards.png', rewards)}")
    if not played.clean:
        raise typer.Exit(1)


async def play_policies(
    client: RolloutClient,
    rows: Sequence[Row],
    policies: Sequence[str],
    *,
    repeats: int = 1,
    concurrency: int = 8,
    out: Path | None = None,
) -> Played:
    """Plays the rows with one policy after the other, and prints the table, also of what a cancelled play got done."""
    functions = {name: find_policy(name) for name in policies}
    await client.check()
    played = Played()
    try:
        with _log(out) as log:
            for name, function in functions.items():
                with progress(name, len(rows) * repeats) as advance:
                    ended = played.recorder(name, log, advance)
                    await play_rows(client, rows, name, function, repeats=repeats, concurrency=concurrency, ended=ended)
    finally:
        await client.aclose()
        if any(played.results.values()):
            print(table(played.results, played.walls))
        for line in faults(played.results):
            say(line)
    return played


async def play_rows(
    client: RolloutClient,
    rows: Sequence[Row],
    name: str,
    policy: Policy,
    *,
    repeats: int,
    concurrency: int,
    ended: Advance,
) -> None:
    """Plays each row `repeats` times, `concurrency` at once; `ended` gets every result as it comes."""
    jobs = iter([(row, repeat) for row in rows for repeat in range(repeats)])

    async def worker() -> None:
        for row, repeat in jobs:
            ended(await client.play(row, policy, name=name, repeat=repeat))

    try:
        async with asyncio.TaskGroup() as group:
            for _ in range(min(concurrency, len(rows) * repeats)):
                group.create_task(worker())
    except* OSError as errors:  # `ended` could not write
        raise errors.exceptions[0] from None


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


def _rounded(result: RolloutResult) -> dict[str, object]:
    return asdict(result) | {"seconds": {phase: round(value, 6) for phase, value in result.seconds.items()}}


@contextmanager
def _log(path: Path | None) -> Iterator[IO[bytes] | None]:
    if path is None:
        yield None
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("wb")
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
