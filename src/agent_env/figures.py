"""Pictures are optional: matplotlib is imported when the first one is drawn."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agent_env.errors import ConfigError

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def new_figure(width: float, height: float) -> Figure:
    """An empty figure of so many inches, outside pyplot: no display, no global state.

    Raises `ConfigError` when matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ConfigError("pictures need matplotlib: pip install 'agent-env[plot]'") from error
    return Figure(figsize=(width, height), layout="constrained")


def save_png(figure: Figure, path: Path) -> Path:
    """Draw with the Agg back end, which a figure outside pyplot uses for PNG; folders on the way are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png", backend="agg")
    return path
