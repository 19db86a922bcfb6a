"""Writes the GridSim bundle folder. The same days give the same bytes."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Iterator, Sequence
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path

from agent_env.errors import ConfigError
from agent_env.examples.gridsim.battery import ENERGY, HOURS, POWER
from agent_env.examples.gridsim.prices import Day, synthetic_days

SPLITS = ("train", "eval")
SYNTHETIC = (
    "The prices are **synthetic**: made by a seeded generator in the shape of the ERCOT day-ahead market, because "
    "real ones can't be shipped. `agent-env example gridsim DIR --prices FILE.csv` builds the same bundle from a real "
    "ERCOT export."
)

SYSTEM_PROMPT = f"""\
You run a grid battery for one day in a day-ahead electricity market.

The battery holds {ENERGY} MWh, moves at most {POWER} MWh in an hour and starts the day empty. Your schedule is a list \
of {HOURS} integers, one for each hour of the day from midnight on, each from -{POWER} to {POWER}:
- a positive number charges that many MWh in that hour and pays the hour's price for each;
- a negative number draws that many MWh from the battery: 90 % of them are sold at the hour's price, the rest is lost;
- 0 idles.
After every hour the battery must hold between 0 and {ENERGY} MWh. What is left in it at the end of the day is worth \
nothing. Prices are in $/MWh and can be negative: then charging earns money and selling costs.

Tools: get_prices returns the day's {HOURS} prices. submit_schedule takes your schedule; it answers with the profit, \
or refuses an invalid schedule and says why. You may submit again: the last valid schedule counts.

Your score is 0 without a valid schedule, 0.2 for a profit of zero and 1 for the highest profit that any schedule \
could earn on this day; in between it rises in proportion to the profit, and a loss costs."""

_README = """\
GridSim: run one grid battery for one day of hourly day-ahead prices, scored against the day's exact optimum.

{source}

| | |
|---|---|
| Tasks | {tasks}; no date is in both |
| Env | `envs/gridsim`: an MCP server with the tools `get_prices` and `submit_schedule` |
| Grader | `artifacts/verify`: recomputes profit and optimum from the prices and the schedule |
| Score | 0 without a valid schedule; else 0.2 + 0.8 x profit / optimum, clipped to [0, 1] |

The battery holds {energy} MWh, moves {power} MWh an hour and starts empty; 90 % of what is drawn is sold; what is left
at the end is worth nothing. Days on which even the optimum earns less than $100 are left out.

Written by `agent-env example gridsim`. Writing again replaces the whole folder.
"""
_MARK = "GridSim: run one grid battery"
_OURS = re.compile(
    r"README\.md|artifacts/verify/verify\.py|envs/gridsim/[^/]+|evals/(train|eval)\.toml|tasks/(train|eval)-\d{4}\.json"
    r"|artifacts(/verify)?|envs(/gridsim)?|evals|tasks|(.+/)?__pycache__(/[^/]+)?"
)


def write_bundle(folder: Path, *, days: Sequence[Day] | None = None, source: str = SYNTHETIC) -> Path:
    """Write the bundle into `folder`, by default of the synthetic days; answers the folder's real path.

    The folder appears whole or not at all: it is built beside its place and moved there. An earlier GridSim bundle is
    replaced; any other folder that holds something is refused with `ConfigError`. `source` says in the README where
    the prices come from.
    """
    folder = folder.resolve()
    _check_replaceable(folder)
    chosen = synthetic_days() if days is None else days
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as staging:
            new = Path(staging, "new")
            _write_files(new, chosen, source)
            _swap(new, folder, Path(staging, "old"))
    except OSError as error:
        raise ConfigError(f"can't write the bundle to {folder}: {error.strerror or error}") from error
    return folder


def task_steps(day: Day) -> list[dict[str, object]]:
    """The steps of one day's task, as its JSON file holds them."""
    args = {"date": day.date, "hub": day.hub, "prices": list(day.prices)}
    load = {"service": "gridsim", "uri": "urn:gridsim:load-day/v1", "args": args}
    return [
        {"id": "env", "type": "deploy_env", "env_id": "gridsim"},
        {"id": "load", "type": "apply_server_config", "env_id": "gridsim", "directives": [load]},
        {"id": "agent", "type": "deploy_agent", "env_ids": ["gridsim"], "system_prompt": SYSTEM_PROMPT},
        {"id": "ask", "type": "prompt_agent", "prompt": f"{day.date}, {day.hub}. Run the battery for this day."},
        {
            "id": "grade",
            "type": "env_outcome_verifier",
            "env_id": "gridsim",
            "file_artifact_id": "verify",
            "verifier_id": "grade",
            "score_aggregator": "weighted_average",
        },
    ]


def _check_replaceable(folder: Path) -> None:
    if not folder.exists():
        return
    if not folder.is_dir():
        raise ConfigError(f"{folder} is a file: name a folder for the bundle")
    held = [path.relative_to(folder).as_posix() for path in sorted(folder.rglob("*"))]
    foreign = [name for name in held if not _OURS.fullmatch(name)]
    readme = folder / "README.md"
    ours = readme.is_file() and readme.read_bytes().startswith(_MARK.encode())
    if held and (foreign or not ours):
        what = f"holds {foreign[0]}" if foreign else "is not empty"
        raise ConfigError(f"{folder} {what} and is not a GridSim bundle that this command wrote: name another folder")


def _swap(new: Path, folder: Path, aside: Path) -> None:
    if folder.exists():
        os.replace(folder, aside)
    try:
        os.replace(new, folder)
    except OSError:
        if aside.exists():
            os.replace(aside, folder)
        raise


def _write_files(folder: Path, days: Sequence[Day], source: str) -> None:
    folder.mkdir()
    here = files("agent_env.examples.gridsim")
    for part in ("envs", "artifacts"):
        _copy(here / part, folder / part)
    for part in ("tasks", "evals"):
        (folder / part).mkdir()
    counts = []
    for split in SPLITS:
        chosen = [day for day in days if day.split == split]
        if chosen:
            _write_split(folder, split, chosen)
            dates = sorted(day.date for day in chosen)
            counts.append(f"{len(chosen):,} {split} days ({dates[0]} to {dates[-1]})")
    readme = _README.format(source=source, tasks=" and ".join(counts), energy=ENERGY, power=POWER)
    _write(folder / "README.md", readme)


def _write_split(folder: Path, split: str, days: Sequence[Day]) -> None:
    names = [f"{split}-{number:04}" for number in range(len(days))]
    for name, day in zip(names, days, strict=True):
        _write(folder / "tasks" / f"{name}.json", _task_text(day))
    listed = "".join(f'    "{name}",\n' for name in names)
    _write(folder / "evals" / f"{split}.toml", f"tasks = [\n{listed}]\n")


def _task_text(day: Day) -> str:
    return "[\n" + ",\n".join(f" {json.dumps(step)}" for step in task_steps(day)) + "\n]\n"


def _write(path: Path, text: str) -> None:
    path.write_bytes(text.encode())


def _copy(source: Traversable, target: Path) -> None:
    target.mkdir()
    for entry in _entries(source):
        if entry.is_dir():
            _copy(entry, target / entry.name)
        else:
            (target / entry.name).write_bytes(entry.read_bytes())


def _entries(source: Traversable) -> Iterator[Traversable]:
    return (entry for entry in source.iterdir() if entry.name != "__pycache__")
