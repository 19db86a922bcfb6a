"""`agent-env example gridsim`: writes the example bundle."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from agent_env.errors import ConfigError
from agent_env.examples.gridsim.bundle import write_bundle
from agent_env.examples.gridsim.ercot import read_export
from agent_env.examples.gridsim.prices import Day, synthetic_days


def example_gridsim(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The bundle's folder: a new or empty one, or an earlier GridSim.")
    ],
    prices: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv", help="A real ERCOT export of DAM Settlement Point Prices, in place of synthetic days."
        ),
    ] = None,
    hub: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A settlement point to take from --prices; repeatable. Default: the five hubs."
        ),
    ] = None,
) -> None:
    """Write GridSim, the example bundle: a grid battery, one day of prices a task.

    Without --prices: 2,000 train and 200 eval days whose prices are synthetic.

    Examples:

        agent-env example gridsim bundles/gridsim-v1

        agent-env example gridsim bundles/gridsim-real --prices dam_2024.csv --hub HB_NORTH --hub LZ_WEST
    """
    if prices is None:
        if hub:
            raise ConfigError("--hub picks settlement points of a price file: it needs --prices FILE.csv")
        days: Sequence[Day] = synthetic_days()
        written = write_bundle(folder, days=days)
    else:
        imported = read_export(prices, hub or ())
        typer.echo(imported.summary())
        days = imported.days
        source = f"The prices are real: ERCOT's DAM Settlement Point Prices, read from `{imported.name}`."
        written = write_bundle(folder, days=days, source=source)
    counts = Counter(day.split for day in days)
    kind = "synthetic" if prices is None else "real"
    typer.echo(f"wrote {written}: {counts['train']:,} train and {counts['eval']:,} eval days, {kind} prices")
