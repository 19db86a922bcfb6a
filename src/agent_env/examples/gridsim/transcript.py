"""A played GridSim rollout as a picture of its day."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_env.examples.gridsim.battery import HOURS
from agent_env.examples.gridsim.plots import plot_day

Json = Any


def plot_transcript(path: Path, output: Sequence[Mapping[str, Json]]) -> Path | None:
    """Write a PNG of the day and of the last schedule that was accepted. `output` is a rollout's Responses items.

    None when nobody asked for a day's prices in it, as in rollouts of other bundles.
    """
    answers = {item.get("call_id"): item.get("output") for item in output if item.get("type") == "function_call_output"}
    day: dict[str, Json] | None = None
    schedule: list[int] | None = None
    for call in output:
        if call.get("type") != "function_call":
            continue
        answer = _object(answers.get(call.get("call_id")))
        if call.get("name") == "get_prices" and _is_day(answer):
            day = answer
        elif call.get("name") == "submit_schedule" and answer.get("accepted") is True:
            schedule = _object(call.get("arguments")).get("schedule")
    if day is None:
        return None
    return plot_day(path, str(day["date"]), str(day["hub"]), day["prices"], schedule)


def _is_day(answer: Mapping[str, Json]) -> bool:
    prices = answer.get("prices")
    return {"date", "hub"} <= answer.keys() and isinstance(prices, list) and len(prices) == HOURS


def _object(text: Json) -> dict[str, Json]:
    try:
        value = json.loads(text)
    except (TypeError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}
