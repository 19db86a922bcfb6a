from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.results import Metric, chart, paired, save, table


def test_a_target_bounds_our_value_the_ratio_or_the_difference() -> None:
    assert Metric("m", "s", 1.8, ours=1.8).met
    assert not Metric("m", "s", 1.8, ours=1.9).met
    assert Metric("m", "s", 0.7, of="ratio", ours=1.0, peer=2.0).met
    assert not Metric("m", "s", 0.7, of="ratio", ours=1.5, peer=2.0).met
    assert Metric("m", "ms", 4, of="difference", ours=12.0, peer=9.0).met
    assert Metric("m", "1/min", 600, at_least=True, ours=601).met
    assert not Metric("m", "1/min", 600, at_least=True, ours=599).met


def test_what_was_not_measured_is_not_met() -> None:
    assert not Metric("m", "s", 1).met
    assert not Metric("m", "s", 1, of="ratio", ours=1.0).met


def test_an_entry_begins_with_the_five_keys_of_every_entry() -> None:
    entry = paired("m", "s", 0.7, [1.0, 1.1, 1.2], [2.0, 2.2, 2.4], of="ratio", note="so").entry()
    assert list(entry)[:5] == ["ours", "peer", "ratio", "target", "met"]
    assert entry["ours"] == 1.1
    assert entry["peer"] == 2.2
    assert entry["ratio"] == 0.5
    assert entry["interval"] == [0.5, 0.5], "each pair has this ratio, whatever disturbed it"
    assert entry["pairs"] == 3
    assert entry["note"] == "so"


def test_runs_add_to_what_the_file_holds(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "results.json"
    save(path, [Metric("first", "s", 1, ours=0.5), Metric("second", "s", 1, ours=2.0)])
    held = save(path, [Metric("second", "s", 1, ours=0.25)])
    assert held == json.loads(path.read_text())
    assert (held["first"]["ours"], held["second"]["ours"]) == (0.5, 0.25)


def test_the_table_has_a_line_for_each_and_says_what_is_missed() -> None:
    entries = {
        metric.name: metric.entry()
        for metric in (
            paired("quick", "s", 0.7, [1.0, 1.0], [2.0, 2.0], of="ratio"),
            Metric("slow", "1/min", 600, at_least=True, ours=10, note="seen by profile: imports"),
        )
    }
    lines = table(entries).splitlines()
    assert lines[1].split() == ["quick", "s", "1", "2", "0.5", "0.5..0.5", "ratio", "<=", "0.7", "yes"]
    assert lines[2].split() == ["slow", "1/min", "10", "-", "-", "-", "ours", ">=", "600", "NO"]
    assert lines[3] == "slow: seen by profile: imports"


def test_the_chart_is_a_picture(tmp_path: Path) -> None:
    entries = {
        metric.name: metric.entry()
        for metric in (
            paired("cpu", "ms", 0.5, [1.0], [4.0], of="ratio"),
            paired("rate", "1/min", 2.5, [10.0], [4.0], of="ratio", at_least=True),
            Metric("alone", "s", 1, ours=0.5),
        )
    }
    assert chart(tmp_path / "chart.png", entries).read_bytes().startswith(b"\x89PNG")


@pytest.mark.integration
def test_what_needs_no_peer_is_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.__main__ import main

    out = tmp_path / "results.json"
    assert main(["serve", "idle", "--quick", "--pairs", "1", "--out", str(out)]) == 0
    held = json.loads(out.read_text())
    assert 0 < held["serve_start"]["ours"] < 30
    assert 0 < held["idle_session_memory"]["ours"] < 1000
    assert (tmp_path / "results.png").exists()
    assert "serve_start" in capsys.readouterr().out
