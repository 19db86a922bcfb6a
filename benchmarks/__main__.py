"""python -m benchmarks [NAME...]: measures, adds to results.json, prints the table, draws the chart."""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_env.errors import AgentEnvError
from benchmarks import crowds, killed, matrix, observed, starts, throughput, versus_native, versus_original
from benchmarks.context import Context
from benchmarks.processes import Failed
from benchmarks.results import Metric, chart, markdown, save, table

HERE = Path(__file__).parent


@dataclass(frozen=True, slots=True)
class Suite:
    measure: Callable[[Context], list[Metric]]
    what: str
    minutes: float
    """of a full run on two quiet cores"""


SUITES = {
    "card": Suite(starts.measure_card, "an env's start to its card, beside docker run alone", 3),
    "original": Suite(versus_original.measure, "one episode at a time, beside the original", 8),
    "throughput": Suite(throughput.measure, "eight episodes at once, beside the original and bare containers", 45),
    "native": Suite(versus_native.measure, "serve alone, beside NeMo Gym's native server", 5),
    "observed": Suite(observed.measure, "what metrics and the episode logs cost", 25),
    "serve": Suite(starts.measure_serve, "serve's start", 1),
    "idle": Suite(crowds.measure_idle, "memory of 1,000 idle sessions", 1),
    "crowd": Suite(crowds.measure_crowd, "700 rollouts at once against 96 places", 3),
    "killed": Suite(killed.measure, "what SIGKILL leaves", 2),
    "matrix": Suite(matrix.measure, "docker/process x container/fork x cold/warm x 1, 8, 32 at once", 12),
}


def main(argv: Sequence[str] | None = None) -> int:
    given = _parser().parse_args(argv)
    if given.markdown:
        print(markdown(json.loads(given.out.read_text())))
        return 0
    names = given.names or list(SUITES)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    faults = []
    for name in names:
        suite = SUITES[name]
        print(f"{name}: {suite.what} (about {suite.minutes:g} min in full)", file=sys.stderr, flush=True)
        began = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="agent-env-bench-") as work:
            os.environ["AGENT_ENV_STATE"] = f"{work}/state"
            try:
                metrics = suite.measure(Context(Path(work), given.out.parent, given.pairs, given.quick))
            except* (Failed, AgentEnvError) as failures:
                faults.append(name)
                print(f"  not measured: {_first(failures)}", file=sys.stderr, flush=True)
                metrics = []
        save(given.out, metrics)
        print(f"  {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    if given.out.exists():
        held = json.loads(given.out.read_text())
        print(table(held))
        print(f"wrote {given.out} and {chart(given.out.with_suffix('.png'), held)}")
    return 1 if faults else 0


def _first(failures: BaseExceptionGroup[BaseException]) -> BaseException:
    """Players that play at once fail as a group; its first tells what went wrong."""
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _parser() -> argparse.ArgumentParser:
    listed = "\n".join(f"  {name:<11} {suite.what}" for name, suite in SUITES.items())
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"{__doc__}\n\nwhat there is to measure:\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", metavar="NAME", nargs="*", choices=[*SUITES, []], help="all by default")
    parser.add_argument("--pairs", type=int, default=30, help="interleaved repetitions; default 30")
    parser.add_argument("--quick", action="store_true", help="short runs that only show that it works")
    parser.add_argument(
        "--markdown", action="store_true", help="measure nothing; print the table of docs/performance.md"
    )
    parser.add_argument("--out", type=Path, default=HERE / "results.json", help="default benchmarks/results.json")
    return parser


if __name__ == "__main__":
    sys.exit(main())
