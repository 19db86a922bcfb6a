"""What a resources server keeps of its sessions, over real sockets."""

from __future__ import annotations

import asyncio
import json
import logging
import os
from pathlib import Path
from typing import Any

import pytest
from stubs.gym_client import bench, until
from stubs.gym_requests import closing, typed
from stubs.stub_openenv import Knobs, StubOpenEnv

from agent_env.errors import ConfigError
from agent_env.observe.log import EpisodeLog
from agent_env.observe.reading import read
from agent_env.observe.record import Call, Fate, Of, Record
from agent_env.observe.watcher import Watcher

pytestmark = pytest.mark.anyio


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def record(serial: int, **fields: Any) -> Record:
    return Record(Of.SESSION, serial, fields.pop("fate", Fate.VERIFIED), 1_800_000_000.0, **fields)


async def test_a_session_is_one_line_that_tells_all_of_it(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    stub = StubOpenEnv(Knobs(start_s=0.02, prompts=("First.", "Second.")))
    async with bench(stub, episode_log=path) as b:
        rollout = await b.seeded(index=3, task_id="tasks/train-0003")
        await rollout.call("look", {"at": "sun"})
        await rollout.call("fail")
        await rollout.call("fly")
        await rollout.call("look", "[1")
        await rollout.call("end_turn", {"response": "one"})
        await rollout.call("look", {"at": "moon"})
        await rollout.verify("two")
        session = next(iter(b.app.sessions._fates))
    begun, line, ended = lines(path)
    assert (begun["of"], begun["format"], begun["server"], begun["env"]) == ("run", 1, "stub_v1", "stub-v1")
    assert (line["of"], line["run"], line["n"], line["fate"]) == ("session", begun["run"], 1, "verified")
    assert (line["session"], line["server"]) == (session.id, b.app._folder.openenv_url)
    assert (line["task"], line["split"], line["index"], line["task_id"]) == (
        *("train-0003", "train", 3),
        "tasks/train-0003",
    )
    assert (line["reward"], line["scores"], line["turns_played"]) == (0.75, {"grade": 0.75}, 2)
    assert (line["prompt"], line["final"], line["bundle"]) == ("First.", "two", "d" * 64)
    told = [
        (call["turn"], call["name"], call.get("arguments", call.get("raw_arguments")), call.get("error"))
        for call in line["calls"]
    ]
    assert told == [
        (1, "look", {"at": "sun"}, None),
        (1, "fail", {}, "execution_error"),
        (1, "fly", {}, "tool_not_found"),
        (1, "look", "[1", "invalid_args"),
        (1, "end_turn", {"response": "one"}, None),
        (2, "look", {"at": "moon"}, None),
    ]
    assert line["calls"][0]["output"] == '{"saw": {"at": "sun"}}'
    assert line["calls"][4]["output"] == "Second."
    phases = line["phases"]
    assert list(phases) == ["wait", "start", "calls", "verify"]
    assert phases["start"]["s"] >= 0.015
    assert phases["wait"]["at"] <= phases["start"]["at"] <= phases["calls"]["at"] <= phases["verify"]["at"]
    assert (ended["of"], ended["lost"], ended["summary"]) == ("end", 0, b.app.sessions.summary())


async def test_every_fate_has_its_line_and_the_lines_add_up_to_the_summary(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    by_index = {1: Knobs(fail={"tool": ("env_crashed", "it fell")}), 2: Knobs(name="other")}
    async with bench(StubOpenEnv(by_index=by_index), episode_log=path, idle_timeout=0.15) as b:
        verified, masked = await b.seeded(), await b.seeded(index=1)
        await verified.verify()
        await masked.call("look")
        await masked.verify()
        await b.rollout().verify()  # unknown
        await b.rollout().seed(index=2, task_id="mine")  # refused: another task
        await b.rollout().seed({"split": 1})  # refused: no row
        closed, late = await b.seeded(), await b.seeded()
        await closed.post("/close_session", {})
        await until(lambda: b.tally.reclaimed == 1)
        assert b.tally.seeded == 4
        await late.verify()  # was reclaimed before
        left = await b.seeded()
        await left.call("look")
    fates = {entry.fate: entry for entry in read([path]).entries}
    counted = [line["fate"] for line in lines(path)[1:-1]]
    assert counted == ["verified", "masked", "unknown", "refused", "refused", "closed", "reclaimed", "masked", "open"]
    assert fates[Fate.REFUSED].reason is not None
    masked_lines = [line for line in lines(path) if line.get("fate") == "masked"]
    assert [line["kind"] for line in masked_lines] == ["env_crashed", "session_expired"]
    assert masked_lines[0]["failed_tool"] == "look"
    assert masked_lines[1]["before"] == "reclaimed"


async def test_a_late_verify_is_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    async with bench(episode_log=path, idle_timeout=0.1) as b:
        rollout = await b.seeded()
        await rollout.call("look")
        await until(lambda: b.tally.reclaimed == 1)
        await rollout.verify()
        assert (b.tally.reclaimed, b.tally.masked.total()) == (0, 1)
    assert [line["fate"] for line in lines(path)[1:-1]] == ["reclaimed", "masked"]
    (entry,) = read([path]).entries
    assert (entry.fate, entry.calls_made) == (Fate.MASKED, 1)


async def test_what_a_verified_session_said_and_called_is_kept_in_the_log_and_not_in_memory(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    async with bench(episode_log=path) as b:
        rollout = await b.seeded()
        await rollout.call("look")
        await rollout.verify("Done.")
        await rollout.call("look")
        (session,) = b.app.sessions._fates
        assert (session._history.calls, session._history.final) == ([], None)
    assert (lines(path)[1]["calls"][0]["name"], lines(path)[1]["final"]) == ("look", "Done.")


async def test_an_observer_that_fails_is_told_once_and_costs_no_rollout(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*what: object) -> None:
        raise ZeroDivisionError("a fault")

    monkeypatch.setattr(Watcher, "counted", fails)
    monkeypatch.setattr(Watcher, "called", fails)
    path = tmp_path / "e.jsonl"
    async with bench(episode_log=path) as b:
        for _ in range(3):
            rollout = await b.seeded()
            assert (await rollout.call("look")).status_code == 200
            assert (await rollout.verify()).json()["reward"] == 0.75
    assert len([told for told in caplog.records if "a fault" in (told.exc_text or str(told.exc_info))]) == 2
    assert len(lines(path)) == 2 + 3


async def test_a_seed_whose_client_left_is_kept_too(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    async with bench(StubOpenEnv(places=1), episode_log=path) as b:
        holding = await b.seeded()
        seeding = asyncio.create_task(b.rollout().seed())
        await until(lambda: b.app.sessions.waiting == 1)
        seeding.cancel()
        await asyncio.wait({seeding})
        await until(lambda: b.tally.abandoned == 1)
        await holding.verify()
    assert sorted(line["fate"] for line in lines(path)[1:-1]) == ["abandoned", "verified"]


async def test_a_typed_session_is_named_by_its_callers_ids(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    async with bench(episode_log=path) as b:
        await b.rollout().post("/seed_session", typed("mine"))
        await b.rollout().post("/close_session", closing("mine"))
    line = lines(path)[1]
    assert (line["resources_session_id"], line["fate"], len(line["rollout"])) == ("mine", "closed", 2)


async def test_sessions_that_play_at_once_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"

    async def play(b: Any, number: int) -> None:
        rollout = await b.seeded(index=number)
        for step in range(3):
            await rollout.call("look", {"at": f"{number}.{step}"})
        await rollout.verify(f"final {number}")

    async with bench(StubOpenEnv(places=50), episode_log=path) as b:
        await asyncio.gather(*(play(b, number) for number in range(40)))
    told = {line["index"]: line for line in lines(path)[1:-1]}
    assert len(told) == 40
    for number, line in told.items():
        assert [call["arguments"]["at"] for call in line["calls"]] == [f"{number}.{step}" for step in range(3)]
        assert line["final"] == f"final {number}"


async def test_secrets_are_in_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", "k-of-the-shop")
    path = tmp_path / "e.jsonl"
    spill = {"server": "t-of-the-server", "env": "k-of-the-shop", "header": "Authorization: Bearer abcdef123456"}
    stub = StubOpenEnv(Knobs(output=lambda tool, arguments: json.dumps(spill)))
    async with bench(stub, episode_log=path, token="t-of-the-server") as b:
        b.http.headers["authorization"] = "Bearer t-of-the-server"
        rollout = await b.seeded()
        await rollout.call("look", {"at": "x", "password": "hunter2", "login": {"apiKey": "hunter3"}})
        await rollout.verify("the token is t-of-the-server")
    text = path.read_text()
    for secret in ("t-of-the-server", "k-of-the-shop", "abcdef123456", "hunter2", "hunter3"):
        assert secret not in text
    (call,) = lines(path)[1]["calls"]
    assert call["arguments"] == {"at": "x", "password": "[redacted]", "login": {"apiKey": "[redacted]"}}


async def test_long_outputs_are_cut_and_say_so(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    async with bench(StubOpenEnv(Knobs(output=lambda tool, arguments: "x" * 10_000)), episode_log=path) as b:
        rollout = await b.seeded()
        await rollout.call("look", {"at": "y" * 70_000})
        await rollout.verify()
    (call,) = lines(path)[1]["calls"]
    assert call["output"].endswith("[output cut: 4096 of 10000 bytes are shown]")
    assert call["raw_arguments"].endswith("bytes are shown]")


def test_a_text_that_is_no_unicode_is_kept_all_the_same(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path / "e")
    log.counted(record(1, final="\ud800", calls=(Call(1, "look", '{"a":1}', "o", 0.0, 0.0),)))
    log.close()
    assert lines(tmp_path / "e")[1]["calls"][0]["arguments"] == {"a": 1}


@pytest.mark.parametrize("path", ["/dev/full", "/proc/nothing/e", "/"])
def test_a_file_that_cannot_be_written_is_told_at_the_start(path: str) -> None:
    with pytest.raises(ConfigError, match=f"--episode-log {path}: can't be written: "):
        EpisodeLog(Path(path))


def test_one_file_for_two_servers_is_told_at_the_start(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path / "e")
    with pytest.raises(ConfigError, match="another server writes it"):
        EpisodeLog(tmp_path / "e")
    log.close()


async def test_a_disk_that_gets_full_is_one_error_and_counts_what_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agent_env.observe.log.GATHER_S", 0.05)
    path = tmp_path / "e"
    log = EpisodeLog(path)
    os.dup2(full := os.open("/dev/full", os.O_RDWR), log._file._fd)
    os.close(full)
    with caplog.at_level(logging.WARNING):
        for number in range(2):
            log.counted(record(number))
            await until(lambda number=number: log.lost > number)  # type: ignore[misc]
        log.close()
    told = [entry.getMessage() for entry in caplog.records]
    assert told == [
        f"the episode log {path} can't be written: No space left on device; rollouts go on without it",
        f"the episode log {path} lacks 2 records that could not be written",
    ]


@pytest.mark.parametrize(("most", "characters"), [(1_000, 0), (200_000, 20_000)])
def test_what_the_disk_cannot_take_in_time_is_told_once_and_counted_as_lost(
    most: int, characters: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("agent_env.observe.log.MOST_WAITING", most)
    log = EpisodeLog(tmp_path / "e")
    for number in range(25):
        log.counted(record(number, characters=characters))
    log.close("the summary")
    told = lines(tmp_path / "e")
    assert log.lost >= 5
    assert len([entry for entry in caplog.records if "its disk is too slow" in entry.getMessage()]) == 1
    assert (told[-1]["lost"], told[-1]["summary"], len(told)) == (log.lost, "the summary", 2 + 25 - log.lost)


def test_lines_of_short_and_long_sessions_keep_their_order(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path / "e")
    for number in range(1, 401):
        log.counted(record(number, characters=20_000 if number % 3 else 100))
    log.close()
    assert [line["n"] for line in lines(tmp_path / "e")[1:-1]] == list(range(1, 401))
    assert log.lost == 0


@pytest.mark.parametrize("characters", [0, 20_000])
def test_a_record_that_makes_no_line_is_counted_as_lost(characters: int, tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path / "e")
    log.counted(record(1, characters=characters, calls=(None,)))
    log.counted(record(2, characters=characters))
    log.close()
    told = lines(tmp_path / "e")
    assert ([line["n"] for line in told[1:-1]], told[-1]["lost"], log.lost) == ([2], 1, 1)
