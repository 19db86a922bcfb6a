from __future__ import annotations

from pathlib import Path

import pytest

from agent_env.training.nemo_gym.plots import plot_rewards


@pytest.mark.parametrize(
    "rewards", [{}, {"idle": []}, {"idle": [0.2] * 24, "greedy": [0.1, 0.9, 0.75], "odd": [-3.0, 12.5]}]
)
def test_rewards_are_drawn_whatever_they_are(tmp_path: Path, rewards: dict[str, list[float]]) -> None:
    pytest.importorskip("matplotlib")
    path = plot_rewards(tmp_path / "new" / "rewards.png", rewards)
    assert path.read_bytes().startswith(b"\x89PNG")
