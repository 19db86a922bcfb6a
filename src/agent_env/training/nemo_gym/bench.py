"""`bench URL --rows FILE`: null rollouts at rising concurrency, what the box sustains, and which settings go with it.

A null rollout does what every rollout costs and nothing else: it seeds, waits until its env has started and its tools
are listed, and verifies, so that the grader runs. Nothing is called, so its score says nothing. Levels tell the rate;
then as many rollouts as that rate would carry are kept open at once, which tells whether the box holds them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orjson

from agent_env.errors import ConfigError
from agent_env.tables import align
from agent_env.tokens import read_token
from agent_env.training.nemo_gym.advice import Level, Settings, goes_on, settings, to_hold
from agent_env.training.nemo_gym.client import Rollout, RolloutClient, RolloutResult
from agent_env.training.nemo_gym.flags import FAILED, OK, Parser, guarded, positive, say, seconds
from agent_env.training.nemo_gym.report import faults, quantiles
from agent_env.training.nemo_gym.rows import Row, read_rows
from agent_env.training.nemo_gym.transport import Http, TransportError

Json = Any

PHASES = {"seed": "seed", "first_call": "ready", "verify": "verify", "total": "total"}
"""a result's phase -> the table's head"""
TIMINGS = ("wait_s", "deploy_s", "load_s", "verify_s")
_MOST = 1024
_LONGEST_HOLD = 120.0
"""seconds; places that somebody else holds are not waited for"""
_EXAMPLES = """\
  python -m agent_env.training.nemo_gym bench http://127.0.0.1:9100 --rows gym-root/.../data/train.jsonl
  python -m agent_env.training.nemo_gym bench http://127.0.0.1:9100 --rows train.jsonl --levels 8,64,256 \\
    --seconds 30 --model-seconds 45 --out bench.json
"""


async def null(play: Rollout) -> None:
    """The policy of a null rollout."""
    await play.ready()


def bench_command(argv: Sequence[str]) -> int:
    """0 when the box sustains something, 1 when every level had rollouts that failed or were masked."""
    given = _parser().parse(argv)
    return guarded(lambda: asyncio.run(_command(given)), debug=given.debug)


async def _command(given: argparse.Namespace) -> int:
    rows = read_rows(Path(given.rows), given.limit)
    bearer = read_token(given.token_file)
    headers = {"Authorization": f"Bearer {bearer}"} if bearer else None
    client = RolloutClient(given.url, request_timeout=given.request_timeout, headers=headers)
    await client.check()
    places = await places_of(given.url, headers)
    say(f"{places} places" if places is not None else "the servers don't tell how many places they have")
    first = await client.play(rows[0], null, name="first")
    if not first.measured:
        say(f"error: the first rollout failed: {first.error or f'{first.kind}: {first.reason}'}")
        return FAILED
    levels: list[Level] = []
    for concurrency in given.levels or _doubling():
        level = await run_level(client, rows, concurrency, given.seconds)
        levels.append(level)
        say(f"{concurrency} at once: {level.rate:.2f} rollouts/s")
        if not given.levels and not goes_on(levels):
            break
    held = None
    if count := to_hold(levels, given.model_seconds, given.group_size, places):
        say(f"keeping {count} open at once")
        held = await hold(client, rows, count)
    shown = [*levels, *([held] if held else [])]
    print(table(shown))
    for line in faults({f"{level.concurrency} {_what(level)}": level.results for level in shown}):
        say(line)
    advised = settings(levels, held, given.model_seconds, given.group_size, places)
    print(told(advised, given.model_seconds))
    if given.out:
        _write(Path(given.out), shown, advised)
    return OK if advised else FAILED


async def run_level(client: RolloutClient, rows: Sequence[Row], concurrency: int, seconds: float) -> Level:
    """Each of so many players begins rollouts until the time is over, two at least, and ends the last one."""
    begun = time.perf_counter()
    until = begun + seconds
    jobs = itertools.cycle(rows)
    results: list[RolloutResult] = []

    async def player() -> None:
        played = 0
        while played < 2 or time.perf_counter() < until:
            results.append(await client.play(next(jobs), null, name=str(concurrency)))
            played += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(player())
    return Level(concurrency, tuple(results), time.perf_counter() - begun)


async def hold(client: RolloutClient, rows: Sequence[Row], count: int) -> Level:
    """So many rollouts, each kept until the last one is ready, as a model keeps them while it thinks."""
    begun = time.perf_counter()
    all_here = asyncio.Event()
    missing = count

    def arrive() -> None:
        nonlocal missing
        missing -= 1
        if not missing:
            all_here.set()

    async def one(row: Row) -> RolloutResult:
        here = False

        async def policy(play: Rollout) -> None:
            nonlocal here
            await play.ready()
            here = True
            arrive()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(all_here.wait(), _LONGEST_HOLD)

        result = await client.play(row, policy, name="held")
        if not here:
            arrive()
        return result

    results = await asyncio.gather(*(one(row) for row in itertools.islice(itertools.cycle(rows), count)))
    return Level(count, tuple(results), time.perf_counter() - begun, held=True)


async def places_of(url: str, headers: dict[str, str] | None) -> int | None:
    """Places of all OpenEnv servers behind the resources server; None when it does not tell."""
    http = Http(url, headers=headers)
    try:
        answer = orjson.loads((await http.get("/capacity")).body)
        return sum(int(server["places"]) for server in answer["openenv"])
    except (TransportError, orjson.JSONDecodeError, KeyError, TypeError, ValueError):
        return None


def table(levels: Sequence[Level]) -> str:
    """A line per level: seconds as the client saw them, median/90th percentile, then medians of the server's own."""
    heads = ["at once", "rollouts", "per s", *(f"{head} s" for head in PHASES.values()), "masked", "errors"]
    rows = [[*heads, *TIMINGS]]
    for level in levels:
        rows.append(
            [
                str(level.concurrency),
                str(len(level.results)),
                "held" if level.held else f"{level.rate:.2f}",
                *(quantiles(level.seconds(phase)) for phase in PHASES),
                str(sum(result.masked for result in level.results)),
                str(sum(result.error is not None for result in level.results)),
                *(f"{level.timing(name):.3f}" for name in TIMINGS),
            ]
        )
    return align(rows, left=())


def told(advised: Settings | None, model_seconds: float) -> str:
    if advised is None:
        return "No level was without faults: nothing can be advised."
    lines = [
        f"This box sustains {advised.rate:.2f} rollouts/s, from {advised.concurrency} at once on.",
        f"With {model_seconds:g} s of model time a rollout (--model-seconds):",
        *(f"  {line}" for line in align(_settings_rows(advised), left=(0, 2)).splitlines()),
        *(f"Note: {note}." for note in advised.notes),
    ]
    return "\n".join(lines)


def _settings_rows(advised: Settings) -> list[list[str]]:
    return [
        ["max_inflight", str(advised.max_inflight), "trainer: rollouts in flight; more only wait"],
        ["--max-concurrent-envs", str(advised.places), "OpenEnv server: also cancelled rollouts hold a place a while"],
        ["--warm", str(advised.warm or "auto"), "OpenEnv server: a group's start, and what comes while spares start"],
        [
            "request_timeout",
            f"{advised.request_timeout:g}",
            "trainer: seconds, four times the slowest answer, 60 or more",
        ],
    ]


def _what(level: Level) -> str:
    return "held" if level.held else "at once"


def _doubling() -> Iterator[int]:
    concurrency = 1
    while concurrency <= _MOST:
        yield concurrency
        concurrency *= 2


def _write(path: Path, levels: Sequence[Level], advised: Settings | None) -> None:
    content = {
        "levels": [
            {
                "concurrency": level.concurrency,
                "held": level.held,
                "rollouts": len(level.results),
                "rollouts_per_s": round(level.rate, 3),
                "clean": level.clean,
                "seconds": {head: _spread(level.seconds(phase)) for phase, head in PHASES.items()},
                "timings": {name: round(level.timing(name), 4) for name in TIMINGS},
            }
            for level in levels
        ],
        "settings": advised.report() if advised else None,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps(content, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    except OSError as error:
        raise ConfigError(f"{path}: can't write the figures: {error.strerror or error}") from None


def _spread(ordered: Sequence[float]) -> dict[str, float]:
    if not ordered:
        return {}
    at = {"median": 0.5, "p90": 0.9, "p99": 0.99}
    return {name: round(ordered[min(len(ordered) - 1, int(share * len(ordered)))], 4) for name, share in at.items()}


def _levels(text: str) -> list[int]:
    return [positive(word) for word in text.split(",")]


def _parser() -> Parser:
    parser = Parser(
        "bench",
        "Plays null rollouts (seed, wait until the env is ready, verify) at rising concurrency, and says what the box\n"
        "sustains and which settings go with it. By default concurrency doubles until the rate stops rising; then as\n"
        "many rollouts as that rate carries are kept open at once.",
        _EXAMPLES,
    )
    parser.add_argument("url", metavar="URL", help="the resources server")
    parser.flag("--rows", metavar="FILE", required=True, help="JSON Lines file of rows")
    parser.flag("--limit", metavar="N", type=positive, help="the first N rows; all by default")
    parser.flag("--levels", metavar="C,C", type=_levels, help="rollouts at once; 1, 2, 4, ... by default")
    parser.flag("--seconds", metavar="S", type=seconds, default=10.0, help="how long a level begins rollouts")
    parser.flag("--model-seconds", metavar="S", type=seconds, default=30.0, help="what the model takes over a rollout")
    parser.flag("--group-size", metavar="G", type=positive, default=8, help="rollouts that the trainer starts together")
    parser.flag("--request-timeout", metavar="S", type=seconds, default=600.0, help="seconds without a byte")
    parser.flag("--out", metavar="FILE", help="write the figures, as JSON")
    parser.flag("--token-file", metavar="FILE", help="file with the server's token")
    parser.flag("--debug", action="store_true", help="show tracebacks")
    return parser
