"""What was measured: one entry a row of the targets, kept in a JSON file that runs add to, shown as table and chart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

from agent_env.figures import new_figure, save_png
from agent_env.tables import align
from benchmarks.stats import difference_interval, ratio_interval

Json = Any


@dataclass(frozen=True, slots=True)
class Metric:
    """One target. `ratio` is ours / peer, so below 1 we are quicker, or lighter."""

    name: str
    unit: str
    target: float
    of: str = "ours"
    """what the target bounds: ours | ratio | difference (ours - peer)"""
    at_least: bool = False
    """the target is the least allowed, not the most"""
    ours: float | None = None
    peer: float | None = None
    interval: tuple[float, float] | None = None
    """95 %, of the ratio, or of the difference where that is what counts"""
    pairs: int = 0
    note: str = ""
    extra: Mapping[str, float] = field(default_factory=dict)

    @property
    def ratio(self) -> float | None:
        return self.ours / self.peer if self.ours is not None and self.peer else None

    @property
    def judged(self) -> float | None:
        if self.of == "ratio":
            return self.ratio
        if self.of == "difference":
            return self.ours - self.peer if self.ours is not None and self.peer is not None else None
        return self.ours

    @property
    def met(self) -> bool:
        judged = self.judged
        if judged is None:
            return False
        return judged >= self.target if self.at_least else judged <= self.target

    def entry(self) -> dict[str, Json]:
        """The five keys of every entry, then what explains them."""
        told: dict[str, Json] = {
            "ours": _rounded(self.ours),
            "peer": _rounded(self.peer),
            "ratio": _rounded(self.ratio),
            "target": self.target,
            "met": self.met,
            "target_is": f"{self.of} {'at least' if self.at_least else 'at most'}",
            "unit": self.unit,
        }
        if self.interval:
            told["interval"] = [_rounded(bound) for bound in self.interval]
        if self.pairs:
            told["pairs"] = self.pairs
        if self.note:
            told["note"] = self.note
        return told | {name: _rounded(value) for name, value in self.extra.items()}


def paired(name: str, unit: str, target: float, ours: Sequence[float], peer: Sequence[float], **more: Any) -> Metric:
    """The medians of values that were taken in turn, and the interval of what the target is about."""
    interval = (difference_interval if more.get("of") == "difference" else ratio_interval)(ours, peer)
    return Metric(
        name,
        unit,
        target,
        ours=median(ours),
        peer=median(peer),
        interval=interval,
        pairs=len(ours),
        **more,
    )


def save(path: Path, metrics: Sequence[Metric]) -> dict[str, Json]:
    """Adds to what the file holds; answers all of it."""
    held: dict[str, Json] = json.loads(path.read_text()) if path.exists() else {}
    held |= {metric.name: metric.entry() for metric in metrics}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(held, indent=1) + "\n")
    return held


def table(held: Mapping[str, Json]) -> str:
    rows = [["", "unit", "ours", "peer", "ratio", "95 %", "target", "met"]]
    for name, entry in held.items():
        interval = entry.get("interval")
        sign = ">=" if "at least" in entry["target_is"] else "<="
        rows.append(
            [
                name,
                entry["unit"],
                *(_number(entry[key]) for key in ("ours", "peer", "ratio")),
                f"{_number(interval[0])}..{_number(interval[1])}" if interval else "-",
                f"{entry['target_is'].split()[0]} {sign} {_number(entry['target'])}",
                "yes" if entry["met"] else "NO",
            ]
        )
    notes = [f"{name}: {entry['note']}" for name, entry in held.items() if entry.get("note") and not entry["met"]]
    return "\n".join([align(rows, left=(0, 1)), *notes])


def markdown(held: Mapping[str, Json]) -> str:
    """The table of docs/performance.md."""
    lines = ["| | ours | beside | ratio, or difference (95 %) | target | |", "|---|---|---|---|---|---|"]
    for name, entry in held.items():
        of, sign = entry["target_is"].split(maxsplit=1)
        unit = "" if of == "ratio" else f" {entry['unit']}"
        compared = entry["ratio"]
        if of == "difference" and entry["peer"] is not None:
            compared = entry["ours"] - entry["peer"]
        interval = entry.get("interval")
        between = f" ({_number(interval[0])} to {_number(interval[1])})" if interval else ""
        cells = [
            f"`{name}`",
            f"{_number(entry['ours'])} {entry['unit']}",
            _number(entry["peer"]),
            f"{_number(compared)}{between}",
            f"{of} {sign} {_number(entry['target'])}{unit}",
            "met" if entry["met"] else "short",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def chart(path: Path, held: Mapping[str, Json]) -> Path:
    """How many times the peer's value is ours, in logarithmic bars, where the target is a ratio; a tick marks it."""
    compared = {
        name: entry for name, entry in held.items() if entry["ratio"] and entry["target_is"].startswith("ratio")
    }
    figure = new_figure(9, 1.2 + 0.42 * max(1, len(compared)))
    axes = figure.subplots()
    for row, entry in enumerate(compared.values()):
        gain = entry["ratio"] if "at least" in entry["target_is"] else 1 / entry["ratio"]
        axes.barh(row, gain - 1, left=1, color="tab:green" if entry["met"] else "tab:orange")
        axes.annotate(f" {gain:.3g}x", (max(gain, 1), row), va="center", fontsize="small")
        aim = entry["target"] if "at least" in entry["target_is"] else 1 / entry["target"]
        axes.plot([aim, aim], [row - 0.4, row + 0.4], color="black", linewidth=1.5)
    axes.axvline(1, color="grey", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yticks(range(len(compared)), list(compared), fontsize="small")
    axes.invert_yaxis()
    axes.set_xlabel("times better than the peer (black: target)")
    axes.margins(x=0.12)
    return save_png(figure, path)


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
