"""`agent-env example gridsim`: writes the example bundle."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agent_env.examples.gridsim.bundle import write_bundle


def example_gridsim(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The bundle's folder: new, empty or an earlier GridSim.")
    ],
) -> None:
    """Write GridSim, the example bundle: a grid battery, 2,000 train days and 200 eval days.

    The days are synthetic.

    Examples:

        agent-env example gridsim bundles/gridsim-v1
    """
    typer.echo(f"wrote {write_bundle(folder)}")
