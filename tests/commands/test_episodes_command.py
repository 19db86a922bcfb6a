"""`agent-env episodes` on logs that servers wrote."""

from __future__ import annotations

import gzip
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from stubs.gym_client import bench, until
from stubs.stub_bundle import stub_task, write_stub_bundle
from stubs.stub_openenv import Knobs, StubOpenEnv
from typer.testing import CliRunner

from agent_env.cli import app
from agent_env.commands.logtable import since, totals
from agent_env.errors import ConfigError, FailureKind
from agent_env.observe.log import EpisodeLog
from agent_env.observe.reading import read, with_rotated
from agent_env.observe.record import Call, Fate, Of, Phase, Record

pytestmark = pytest.mark.anyio


def run(*words: object) -> Any:
    return CliRunner().invoke(app, ["episodes", *map(str, words)])


def record(serial: int, fate: Fate = Fate.VERIFIED, **fields: Any) -> Record:
    more = {"session": f"s{serial:07x}", "task": f"day-{serial:03d}", "at": 1_800_000_000.0 + 60 * serial}
    return Record(Of.SESSION, serial, fate, **{**more, **fields})


def write(path: Path, *records: Record, close: bool = True) -> Path:
    log = EpisodeLog(path)
    for each in records:
        log.counted(each)
    log.close("summary")
    return path


@pytest.fixture
def log(tmp_path: Path) -> Path:
    calls = (Call(1, "look", '{"at":"sun"}', "bright\nand warm", 0.5, 0.25), Call(1, "fly", "{}", "no", 1, 0, "failed"))
    return write(
        tmp_path / "e.jsonl",
        record(1, reward=0.5, scores={"grade": 0.5}, calls=calls, calls_made=3, prompt="Play.", final="Done."),
        record(2, reward=0.9),
        record(3, Fate.MASKED, kind=FailureKind.ENV_CRASHED, reason="it fell", failed_tool="look"),
        record(4, Fate.RECLAIMED, kind=FailureKind.SESSION_EXPIRED),
    )


def test_the_table_has_a_line_for_each_session_and_the_totals(log: Path) -> None:
    told = run(log)
    assert told.exit_code == 0
    lines = told.stdout.splitlines()
    assert len(lines) == 6
    assert lines[1].split() == ["2027-01-15T08:01:00.000", "s0000001", "day-001", "verified", "0.5000", "3", "0.00"]
    assert lines[3].endswith("env_crashed: it fell")
    assert lines[-1].startswith(
        "seeded 4, verified 2, masked 1 (env_crashed 1), reclaimed 1, closed 0, refused 0, open "
    )


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--task", "day-002"), [2]),
        (("--task", "day-*"), [1, 2, 3, 4]),
        (("--kind", "env_crashed"), [3]),
        (("--fate", "verified", "--fate", "reclaimed"), [1, 2, 4]),
        (("--reward-below", 0.6), [1]),
        (("--reward-above", 0.6), [2]),
        (("--since", "2027-01-15T08:03"), [3, 4]),
        (("--limit", 1), [4]),
    ],
)
def test_sessions_are_chosen_by(words: tuple[object, ...], found: list[int], log: Path) -> None:
    told = run(log, "--json", *words)
    assert [json.loads(line)["n"] for line in told.stdout.splitlines()] == found


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--fate", "lost"), "--fate lost: choose from"),
        (("--kind", "tired"), "--kind tired: choose from"),
        (("--since", "yesterday"), "--since yesterday: write a moment"),
        (("--show", "nobody"), "--show nobody: no session"),
        (("--replay",), "--replay plays again to grade again: give --regrade BUNDLE too"),
    ],
)
def test_what_cannot_be_asked_is_told(words: tuple[str, ...], says: str, log: Path) -> None:
    told = run(log, *words)
    assert says in (told.stderr or str(told.exception))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none: no such file; --episode-log FILE of a server makes it"):
        read([tmp_path / "none"])


def test_one_session_is_shown_as_a_transcript(log: Path) -> None:
    told = run(log, "--show", "s0000001").stdout
    assert told.startswith("session s0000001 of day-001: verified, reward 0.5 (grade 0.5)\n")
    assert "user:\n    Play.\n" in told
    assert '1. look {"at":"sun"}  (turn 1, at 0.50 s, 0.250 s)\n    bright\n    and warm\n' in told
    assert "2. fly {}  (turn 1, at 1.00 s, 0.000 s, failed)" in told
    assert "(1 calls are not in the log)" in told
    assert told.endswith("agent, at the end:\n    Done.\n")
    masked = run(log, "--show", "s0000003").stdout
    assert masked.startswith("session s0000003 of day-003: masked; env_crashed: it fell in the tool look\n")


def test_a_torn_line_is_passed_over_with_a_notice(log: Path) -> None:
    whole = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join(whole[:-2]) + whole[-2][:40])
    told = run(log)
    assert told.exit_code == 0
    assert f"note: {log}: 1 torn line passed over\n" in told.stderr
    assert "it has no end: it still runs, or was killed" in told.stderr
    assert "seeded 3," in told.stdout


def test_a_line_that_replaces_an_earlier_one_counts_once(tmp_path: Path) -> None:
    waited = (Phase("wait", 0, 2.5), Phase("start", 2.5, 1.0))
    early = record(1, Fate.RECLAIMED, phases=waited)
    late = record(1, Fate.MASKED, before=Fate.RECLAIMED, kind=FailureKind.SESSION_EXPIRED, phases=waited)
    told = run(write(tmp_path / "e", early, record(2), late)).stdout
    assert "seeded 2, verified 1, masked 1 (session_expired 1), reclaimed 0, closed 0" in told
    assert "longest wait 2.5 s" in told
    assert len(told.splitlines()) == 4


def test_files_that_were_rotated_are_read_from_the_oldest_on(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    log = EpisodeLog(path, most_bytes=2000, files=5)
    for serial in range(1, 21):
        log.counted(record(serial, Fate.RECLAIMED))
        if serial % 2:
            log.counted(record(serial, Fate.VERIFIED, before=Fate.RECLAIMED))
    log.close()
    files = with_rotated([path])
    assert files[-1] == path
    assert len(files) > 2
    told = read([path])
    assert sorted(entry.n for entry in told.entries) == list(range(1, 21))
    assert "verified 10, masked 0, reclaimed 10," in totals(told, told.entries)[0]
    assert with_rotated(sorted(tmp_path.iterdir())) == files


def test_runs_are_summed_up_one_by_one_and_together(tmp_path: Path) -> None:
    path = write(tmp_path / "e", record(1), record(2))
    write(path, record(1))
    lines = run(path).stdout.splitlines()[4:]
    assert [line.split(":")[0].split()[0] for line in lines] == ["run", "run", "in"]
    assert [line.split("verified ")[1][0] for line in lines] == ["2", "1", "3"]


async def test_totals_equal_the_servers_own_summary(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    by_index = {
        1: Knobs(fail={"tool": ("env_crashed", "x")}),
        2: Knobs(fail={"start": ("deploy_failed", "x")}),
        3: Knobs(fail={"verify": ("verifier_error", "x")}),
    }
    async with bench(StubOpenEnv(by_index=by_index), episode_log=path, idle_timeout=0.2) as b:
        for index in (0, 1, 2, 3, 3, 0):
            rollout = await b.seeded(index=index)
            await rollout.call("look")
            await rollout.verify()
        closed = await b.seeded()
        await closed.post("/close_session", {})
        await b.rollout().verify()
        await b.rollout().seed({"index": 1})
        late = await b.seeded()
        await b.seeded()
        await until(lambda: b.tally.reclaimed == 2)
        await late.verify()
        await b.seeded()
    log = read([path])
    summary = b.app.sessions.summary()
    assert "masked 5 (verifier_error 2," in summary
    assert totals(log, log.entries) == [summary]
    assert log.runs[log.entries[0].run].ended is not None
    assert log.runs[log.entries[0].run].ended["summary"] == summary  # type: ignore[index]


def test_a_time_ago_is_counted_from_now() -> None:
    now = datetime(2026, 11, 30, 20, 0, tzinfo=UTC)
    assert since("90m", now) == "2026-11-30T18:30:00.000Z"
    assert since("1d", now) == "2026-11-29T20:00:00.000Z"
    assert since("2026-11-30T21:00+02:00", now) == "2026-11-30T19:00:00.000Z"
    for wrong in ("9" * 30 + "d", "9999999d", "9999-12-31T23:59-14:00"):
        with pytest.raises(ConfigError, match="--since"):
            since(wrong, now)


LATER = (
    '{"of":"session","run":"r","n":1,"fate":"teleported"}',
    '{"of":"session","run":"r","n":2}',
    '{"of":"session","run":"r","n":"x","fate":"verified"}',
    '{"of":"session","run":"r","n":3,"fate":"verified","phases":[1]}',
    '{"of":"session","run":"r","n":4,"fate":"verified","task":5}',
    '{"of":"session","run":"r","n":5,"fate":"masked","kind":"of_tomorrow"}',
    '{"of":"weather","run":"r"}',
    '{"split":"train","index":0}',
    "[1]",
)


def test_lines_that_no_version_wrote_yet_are_passed_over_and_told(log: Path) -> None:
    with log.open("a") as file:
        file.write("".join(f"{line}\n" for line in LATER) + '{"of":"session","ru')
    told = run(log)
    assert told.exit_code == 0
    assert f"e.jsonl: {len(LATER)} lines of kinds that this version does not know passed over" in told.stderr
    assert "e.jsonl: 1 torn line passed over" in told.stderr
    assert "verified 2, masked 1" in told.stdout


@pytest.mark.parametrize("content", [b"\x00\xffjunk\n", b"x" * 100_000, b'{"split":"train"}\n', b"".join([b"[1]\n"])])
def test_what_is_no_episode_log_is_said_to_be_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    told = run(tmp_path / "x")
    assert told.exit_code != 0
    assert "not an episode log" in str(told.exception)


def test_a_log_without_a_session_says_so(log: Path, tmp_path: Path) -> None:
    assert "no session yet" in run(write(tmp_path / "new.jsonl")).stdout
    assert "no session of that kind" in run(log, "--fate", "closed").stdout


def test_a_compressed_log_and_a_folder_are_told_what_to_do(log: Path, tmp_path: Path) -> None:
    (tmp_path / "e.gz").write_bytes(gzip.compress(log.read_bytes()))
    assert "gunzip -k" in str(run(tmp_path / "e.gz").exception)
    assert "no file that can be searched" in str(run(tmp_path).exception)


def test_a_log_whose_name_ends_in_a_number_may_be_rotated(log: Path, tmp_path: Path) -> None:
    named = tmp_path / "log.20261130"
    named.write_bytes(log.read_bytes())
    (tmp_path / "log.20261130.1").write_bytes(log.read_bytes())
    assert [path.name for path in with_rotated([named])] == ["log.20261130.1", "log.20261130"]


def test_a_log_that_is_rotated_after_it_was_read_still_shows_its_sessions(log: Path) -> None:
    told = read([log])
    log.rename(log.with_name("e.jsonl.1"))
    log.write_text('{"of":"run","run":"other","format":1}\n' * 50)
    assert [entry.load()["n"] for entry in told.entries] == [1, 2, 3, 4]
    log.with_name("e.jsonl.1").unlink()
    with pytest.raises(ConfigError, match="rotated away while it was read"):
        told.entries[0].load()


def test_what_an_env_wrote_does_not_steer_the_terminal(tmp_path: Path) -> None:
    calls = (Call(1, "look", "{}", "\x1b]0;owned\x07\x1b[2Jred\u202e\x9b", 0.5, 0.25),)
    path = write(
        tmp_path / "e.jsonl",
        record(1, Fate.MASKED, kind=FailureKind.ENV_CRASHED, reason="\x1b[31m", task="a\nb\x1b[2J", calls=calls),
    )
    for words in ((), ("--show", "s0000001")):
        shown = run(path, *words).stdout
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(shown)
        assert "\\x1b[" in shown


def test_a_line_with_calls_of_another_shape_is_told_and_not_stumbled_over(tmp_path: Path) -> None:
    bundle = write_stub_bundle(tmp_path / "stub-v1", tasks={"one": stub_task(0.5)})
    log = write(tmp_path / "e.jsonl", record(1, task="one", scores={"grade": 0.5}))
    line = {"of": "session", "run": "later", "n": 1, "fate": "verified", "session": "odd", "task": "one"}
    with log.open("a") as file:
        file.write(json.dumps({**line, "scores": {"grade": 0.5}, "calls": [{"tool": "look"}], "calls_made": 1}) + "\n")
    assert "--json prints it" in str(run(log, "--show", "odd").exception)
    assert json.loads(run(log, "--show", "odd", "--json").stdout)["calls"] == [{"tool": "look"}]
    assert "not scored again: odd: its line is none that this version writes" in run(log, "--regrade", bundle).stdout
