from __future__ import annotations

import sys
from pathlib import Path

import pytest

from agent_env.errors import ConfigError
from agent_env.examples.gridsim.battery import greedy_schedule
from agent_env.examples.gridsim.plots import plot_day
from agent_env.examples.gridsim.prices import Day

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize("submitted", [True, False])
def test_a_day_is_drawn_with_or_without_a_schedule(tmp_path: Path, days: tuple[Day, ...], submitted: bool) -> None:
    pytest.importorskip("matplotlib")
    day = days[0]
    schedule = greedy_schedule(day.prices) if submitted else None
    path = plot_day(tmp_path / "new" / "day.png", day.date, day.hub, day.prices, schedule)
    assert path.read_bytes().startswith(PNG)


def test_without_matplotlib_the_extra_to_install_is_named(
    tmp_path: Path, days: tuple[Day, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(ConfigError, match=r"agent-env\[plot\]"):
        plot_day(tmp_path / "day.png", days[0].date, days[0].hub, days[0].prices, None)
