from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agent_env.examples.gridsim import transcript
from agent_env.examples.gridsim.transcript import plot_transcript

DAY = {"date": "2025-01-01", "hub": "HB_NORTH", "prices": [float(hour) for hour in range(24)]}


def turn(name: str, arguments: Any, answer: Any) -> list[dict[str, Any]]:
    call_id = f"call_{name}_{json.dumps(arguments)[:40]}"
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    answered = answer if isinstance(answer, str) else json.dumps(answer)
    return [
        {"type": "function_call", "call_id": call_id, "name": name, "arguments": text},
        {"type": "function_call_output", "call_id": call_id, "output": answered},
    ]


def drawn(monkeypatch: pytest.MonkeyPatch, output: list[dict[str, Any]]) -> list[Any]:
    seen: list[Any] = []

    def plot_day(path: Path, *day: Any) -> Path:
        seen.extend(day)
        return path

    monkeypatch.setattr(transcript, "plot_day", plot_day)
    plot_transcript(Path("day.png"), output)
    return seen


def test_the_last_accepted_schedule_is_drawn_on_its_day(monkeypatch: pytest.MonkeyPatch) -> None:
    output = turn("get_prices", {}, DAY)
    output += turn("submit_schedule", {"schedule": [1, *[0] * 23]}, {"accepted": True, "profit": 0})
    output += turn("submit_schedule", {"schedule": [2, *[0] * 23]}, {"accepted": True, "profit": 0})
    output += turn("submit_schedule", {"schedule": [99]}, "24 hours are needed")
    assert drawn(monkeypatch, output) == ["2025-01-01", "HB_NORTH", DAY["prices"], [2, *[0] * 23]]


@pytest.mark.parametrize("output", [[], turn("get_prices", {}, "down"), turn("search", {}, DAY), [{"type": "message"}]])
def test_a_rollout_without_a_days_prices_has_no_picture(output: list[dict[str, Any]], tmp_path: Path) -> None:
    assert plot_transcript(tmp_path / "day.png", output) is None


def test_a_day_without_a_schedule_is_a_picture_too(tmp_path: Path) -> None:
    output = turn("get_prices", {}, DAY) + turn("submit_schedule", '{"schedule": [0,', "error: invalid JSON")
    path = plot_transcript(tmp_path / "day.png", output)
    assert path is not None
    assert path.read_bytes().startswith(b"\x89PNG")
