"""`play URL --rows FILE`: plays rows with policies in place of a model, over HTTP as verifiers does."""

from __future__ import annotations

import argparse
import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any

import orjson

from agent_env.errors import ConfigError
from agent_env.figures import new_figure
from agent_env.policies import KNOWN as KNOWN_POLICIES
from agent_env.policies import Policy, find_policy
from agent_env.tokens import read_token
from agent_env.training.nemo_gym.client import RolloutClient, RolloutResult
from agent_env.training.nemo_gym.flags import FAILED, OK, Parser, guarded, positive, say, seconds
from agent_env.training.nemo_gym.progress import Advance, progress
from agent_env.training.nemo_gym.report import faults, rewards_of, summary_of, table
from agent_env.training.nemo_gym.rows import Row, read_rows

Json = Any

_EXAMPLES = """\
  python -m agent_env.training.nemo_gym play http://127.0.0.1:9100 --rows eval.jsonl --policy idle,greedy,optimal
  python -m agent_env.training.nemo_gym play http://127.0.0.1:9100 --rows train.jsonl --policy mine:clever \\
    --limit 64 --repeats 8 --concurrency 32 --out rollouts.jsonl
"""


@dataclass(slots=True)
class Played:
    """The rollouts of each policy, without what was said and called but for the first row's."""

    results: dict[str, list[RolloutResult]] = field(default_factory=dict)
    walls: dict[str, float] = field(default_factory=dict)
    """seconds that each policy took in all"""

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
            first = (result.number, result.repeat) == (0, 0)
            results.append(result if first else replace(result, output=()))
            self.walls[policy] = time.perf_counter() - started
            if log:
                log.write(orjson.dumps(_rounded(result), option=orjson.OPT_APPEND_NEWLINE))
                log.flush()
            advance(result)

        return ended


def play_command(argv: Sequence[str]) -> int:
    """0 when every rollout was measured, 1 when one failed or was masked."""
    given = _parser().parse(argv)
    return guarded(lambda: _command(given), debug=given.debug)


def _command(given: argparse.Namespace) -> int:
    if given.plot:
        new_figure(1, 1)  # says now, not after the play, that matplotlib is missing
    bearer = read_token(given.token_file)
    client = RolloutClient(
        given.url,
        request_timeout=given.request_timeout,
        headers={"Authorization": f"Bearer {bearer}"} if bearer else None,
        seed=given.seed,
        max_turns=given.max_turns,
    )
    names = [name for words in given.policy for part in words.split(",") if (name := part.strip())]
    rows = read_rows(Path(given.rows), given.limit)
    out = Path(given.out) if given.out else None
    played = asyncio.run(
        play_policies(client, rows, names, repeats=given.repeats, concurrency=given.concurrency, out=out)
    )
    if given.summary:
        _write(Path(given.summary), {**dict(given.note), "policies": played.summary()})
    if given.plot:
        _draw(Path(given.plot), played)
    return OK if played.clean else FAILED


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


def _draw(folder: Path, played: Played) -> None:
    """The rewards, and the first row's day of each policy that played GridSim."""
    from agent_env.examples.gridsim.transcript import plot_transcript
    from agent_env.training.nemo_gym.plots import plot_rewards

    pictures = [
        plot_rewards(folder / "rewards.png", {name: rewards_of(results) for name, results in played.results.items()})
    ]
    for name, results in played.results.items():
        first = next((result.output for result in results if result.output), ())
        if picture := plot_transcript(folder / f"day-{re.sub(r'[^A-Za-z0-9._-]', '-', name)}.png", first):
            pictures.append(picture)
    for picture in pictures:
        say(f"wrote {picture}")


def _rounded(result: RolloutResult) -> dict[str, object]:
    """For the JSON Lines: without the items, which are as long as the tools' texts."""
    fields = asdict(replace(result, output=()))
    del fields["output"]
    return fields | {"seconds": {phase: round(value, 6) for phase, value in result.seconds.items()}}


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


def _parser() -> Parser:
    parser = Parser(
        "play",
        "Plays rows against a resources server as verifiers does, with policies in place of a model.\n"
        "Exits with 1 when a rollout failed or was masked.",
        _EXAMPLES,
    )
    parser.add_argument("url", metavar="URL", help="the resources server")
    parser.flag("--rows", metavar="FILE", required=True, help="JSON Lines file of rows")
    parser.flag(
        "--policy",
        metavar="NAME[,NAME]",
        action="append",
        required=True,
        help=f"{', '.join(KNOWN_POLICIES)} (GridSim), or module:function; repeatable",
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
