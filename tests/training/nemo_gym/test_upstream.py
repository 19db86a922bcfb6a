"""How a session finds its place among OpenEnv servers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from stubs.gym_client import Bench, bench, until
from stubs.quick_server import quick
from stubs.stub_openenv import Knobs, StubOpenEnv

from agent_env.errors import ConfigError
from agent_env.training.nemo_gym import openenv_server, upstream
from agent_env.training.nemo_gym.openenv_list import read_servers
from agent_env.training.nemo_gym.openenv_server import Server

pytestmark = pytest.mark.anyio


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "LOOK_EVERY", 0.02)


@contextlib.asynccontextmanager
async def stopped_by_hand(stub: StubOpenEnv, port: int = 0) -> AsyncIterator[tuple[str, contextlib.AsyncExitStack]]:
    async with contextlib.AsyncExitStack() as stack:
        yield await stack.enter_async_context(quick(stub, port)), stack


@contextlib.asynccontextmanager
async def odd(answer: str | None) -> AsyncIterator[str]:
    """A server that gives everybody this answer; None: it takes connections and never says a word."""
    writers = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        await reader.readuntil(b"\r\n\r\n")
        if answer is not None:
            writer.write(answer.encode())
            writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        host, port = server.sockets[0].getsockname()
        yield f"http://{host}:{port}"
        for writer in writers:
            writer.transport.abort()


async def play(b: Bench, count: int) -> list[float]:
    """The rewards of that many rollouts, one after the other."""
    return [(await (await b.seeded()).verify()).json()["reward"] for _ in range(count)]


async def test_several_servers_share_the_sessions_by_their_places() -> None:
    small, large = StubOpenEnv(places=2), StubOpenEnv(places=6)
    async with quick(small) as one, quick(large) as two, bench(openenv=(one, two)) as b:
        for _ in range(2):  # each is asked for its places at its first session
            await (await b.seeded()).verify()
        rollouts = [await b.seeded() for _ in range(8)]
        assert (small.running, large.running) == (2, 6)
        for rollout in rollouts:
            assert (await rollout.verify()).json()["reward"] == 0.75
        await until(lambda: small.sessions + large.sessions == 0)


async def test_a_burst_does_not_queue_at_one_of_two_servers() -> None:
    stubs = StubOpenEnv(Knobs(start_s=0.1), places=4), StubOpenEnv(Knobs(start_s=0.1), places=4)
    async with quick(stubs[0]) as one, quick(stubs[1]) as two, bench(openenv=(one, two)) as b:
        rollouts = await asyncio.gather(*(b.seeded() for _ in range(8)))
        assert [stub.running for stub in stubs] == [4, 4]
        await asyncio.gather(*(rollout.verify() for rollout in rollouts))


async def test_a_server_that_is_away_or_full_is_passed_over() -> None:
    full, free = StubOpenEnv(refuse_all=True), StubOpenEnv()
    async with quick(full) as one, quick(free) as two, bench(openenv=("http://127.0.0.1:9", one, two)) as b:
        for _ in range(5):
            assert (await (await b.seeded()).verify()).json()["reward"] == 0.75
        assert len(free.resets) == 5


async def test_between_looks_those_places_count_as_taken_to_which_a_session_was_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(upstream, "LOOK_EVERY", 60)
    small, large = StubOpenEnv(Knobs(start_s=0.1), places=3), StubOpenEnv(Knobs(start_s=0.1), places=7)
    async with quick(small) as one, quick(large) as two, bench(openenv=(one, two)) as b:
        first = await asyncio.gather(*(b.seeded() for _ in range(4)))
        assert (small.running, large.running) == (0, 4)
        rest = await asyncio.gather(*(b.seeded() for _ in range(6)))
        assert (small.running, large.running) == (3, 7)
        for rollout in (*first, *rest):
            await rollout.verify()
        await until(lambda: small.sessions + large.sessions == 0)
        assert await play(b, 10) == [0.75] * 10  # those that ended since make room where nothing else is known


@pytest.mark.usefixtures("looks_often")
async def test_places_that_others_took_are_seen_at_the_next_look() -> None:
    shared, own = StubOpenEnv(places=8), StubOpenEnv(places=4)
    async with quick(shared) as one, quick(own) as two, bench(openenv=(one, two)) as b:
        await play(b, 1)
        shared.running += 6
        seen = len(shared.requests)
        await until(lambda: len(shared.requests) > seen + 1)
        await play(b, 1)
        assert (len(shared.resets), len(own.resets)) == (1, 1)
        shared.running -= 6


async def test_servers_that_are_equally_free_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "LOOK_EVERY", 60)
    stubs = [StubOpenEnv() for _ in range(3)]
    async with quick(stubs[0]) as one, quick(stubs[1]) as two, quick(stubs[2]) as three:
        async with bench(openenv=(one, two, three)) as b:
            await play(b, 9)
    assert [len(stub.resets) for stub in stubs] == [3, 3, 3]


@pytest.mark.usefixtures("looks_often")
async def test_a_server_that_answers_nothing_does_not_hold_up_the_first_seeds() -> None:
    async with odd(None) as silent, quick(StubOpenEnv()) as good:
        async with bench(openenv=(silent, good)) as b:
            began = time.monotonic()
            assert await play(b, 2) == [0.75, 0.75]
            assert time.monotonic() - began < 2


async def test_a_fault_of_the_look_out_is_told_and_stops_no_seed(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fails(server: Server) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Server, "look", fails)
    async with quick(StubOpenEnv()) as one, quick(StubOpenEnv()) as two, bench(openenv=(one, two)) as b:
        assert await play(b, 2) == [0.75, 0.75]
    assert "looked at no more" in caplog.text


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        ("401 Unauthorized", "{}", "HTTP 401: it wants a token (--openenv-token-file)"),
        ("500 Oops", "<html>", "HTTP 500"),
        ("200 OK", '{"url": 5, "error": 7, "places": "many"}', 7),
        ("200 OK", "[" * 10_000, None),
    ],
)
async def test_a_server_that_tells_nonsense_is_shown_as_such_and_harms_nobody(
    status: str, body: str, told: object
) -> None:
    async with odd(f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n\r\n{body}") as strange:
        async with quick(StubOpenEnv()) as good, bench(openenv=(strange, good)) as b:
            assert await play(b, 3) == [0.75] * 3
            first = (await b.http.get("/capacity")).json()["openenv"][0]
            assert first is None if told is None else (first["url"], first["error"]) == (strange, told)
            for path in ("/status", "/status?format=html", "/metrics"):
                assert (await b.http.get(path)).status_code == 200


async def test_a_server_that_goes_away_takes_only_its_sessions_along_and_is_used_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stays, goes = StubOpenEnv(), StubOpenEnv()
    async with quick(stays) as one, stopped_by_hand(goes) as (two, server), bench(openenv=(one, two)) as b:
        rollouts = [await b.seeded() for _ in range(6)]
        lost = goes.running
        assert 0 < lost < 6
        port = int(two.rpartition(":")[2])
        await goes.kill()
        await server.aclose()
        answers = [(await rollout.verify()).json() for rollout in rollouts]
        assert sum(answer["mask_sample"] for answer in answers) == lost
        assert {answer["failure_kind"] for answer in answers} == {None, "provider_unavailable"}
        await until(lambda: f"{two} is away" in caplog.text)
        assert await play(b, 6) == [0.75] * 6
        assert len(goes.resets) == lost
        caplog.set_level(logging.INFO)
        async with quick(goes, port):
            await until(lambda: f"{two} is back" in caplog.text)
            assert await play(b, 6) == [0.75] * 6
            assert len(goes.resets) > lost
    assert caplog.text.count("is away") == 1


@pytest.mark.usefixtures("looks_often")
@pytest.mark.parametrize("foreign", [False, True])
async def test_a_server_that_opens_no_session_is_away_once_and_back_when_it_opens_one(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, foreign: bool
) -> None:
    """A proxy that passes HTTP on and no websocket: it tells its places, if at all, and that proves nothing."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(openenv_server, "_FIRST_HOLD", 0.1)
    monkeypatch.setattr(openenv_server, "_LONGEST_HOLD", 0.4)
    good, shut = StubOpenEnv(foreign=foreign), StubOpenEnv(places=96, shut=True, foreign=foreign)
    async with quick(good) as one, quick(shut) as two, bench(openenv=(one, two)) as b:
        assert await play(b, 4) == [0.75] * 4
        await until(lambda: shut.refused >= 4)
        assert await play(b, 8) == [0.75] * 8
        looks = shut.requests.count("GET /capacity")
        assert looks > 3 * shut.refused
        assert caplog.text.count(f"{two} is away") == 1
        assert "HTTP 403" in caplog.text
        assert "is back" not in caplog.text
        shut.shut = False
        await until(lambda: f"{two} is back" in caplog.text)
        await until(lambda: shut.sessions == 0)
        rollouts = [await b.seeded() for _ in range(6)]
        assert shut.sessions > 0
        for rollout in rollouts:
            assert (await rollout.verify()).json()["reward"] == 0.75
    assert (caplog.text.count("is away"), caplog.text.count("is back")) == (1, 1)


async def test_the_only_server_that_opens_no_session_is_away_once_and_back_when_it_opens_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    stub = StubOpenEnv(shut=True)
    async with bench(stub) as b:
        seeded = asyncio.create_task(b.seeded())
        await until(lambda: stub.refused >= 3)
        assert "is back" not in caplog.text
        stub.shut = False
        assert (await (await seeded).verify()).json()["reward"] == 0.75
    assert (caplog.text.count("is away"), caplog.text.count("is back")) == (1, 1)


@pytest.mark.usefixtures("looks_often")
async def test_the_file_is_followed_while_the_server_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    listed = tmp_path / "servers"
    first, second = StubOpenEnv(), StubOpenEnv()
    async with quick(first) as one, quick(second) as two:
        listed.write_text(f"# ours\n\n{one}/  # the first\n")
        options = {"openenv_file": str(listed), "openenv_listed": read_servers(listed)}
        async with bench(**options) as b:
            running = await b.seeded()
            assert (len(first.resets), len(b.stub.resets)) == (1, 0)
            listed.write_text(f"{one}\n{two}\n")
            await until(lambda: f"{two} is used from now on" in caplog.text)
            await until(lambda: "GET /capacity" in second.requests)
            await play(b, 5)
            assert len(second.resets) > 0

            before = len(first.resets)
            listed.write_text(f"{two}\n")
            await until(lambda: f"{one} gets no new sessions; 1 go on" in caplog.text)
            await play(b, 3)
            assert len(first.resets) == before
            assert (await running.verify()).json()["reward"] == 0.75

            listed.write_text(f"{two}\n{one}\n")
            await until(lambda: f"{one} is used from now on" in caplog.text)


@pytest.mark.usefixtures("looks_often")
@pytest.mark.parametrize("text", ["", "# none\n", "http://127.0.0.1:9\nbox-7\n", None, "\xff"])
async def test_a_file_that_cant_be_used_keeps_the_last_list_and_warns_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, text: str | None
) -> None:
    listed, stub = tmp_path / "servers", StubOpenEnv()
    async with quick(stub) as one:
        listed.write_text(one)
        async with bench(openenv_file=str(listed), openenv_listed=(one,)) as b:
            listed.unlink() if text is None else listed.write_bytes(text.encode("latin-1"))
            await until(lambda: "the OpenEnv servers stay as they are" in caplog.text)
            seen = len(stub.requests)
            await until(lambda: len(stub.requests) > seen + 3)
            assert await play(b, 1) == [0.75]
    assert len([record for record in caplog.records if record.levelno >= logging.WARNING]) == 1
    assert str(listed) in caplog.text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no OpenEnv server"),
        ("http://a:1\n127.0.0.1:8200", ":2: '127.0.0.1:8200' is not a server's URL"),
        ("ftp://a", "is not a server's URL"),
        ("http://a:99999", "is not a server's URL"),
        ("http://a b:1", "is not a server's URL"),
        ("http://bücher:1", "is not a server's URL"),
        ("http://me:secret@a:1", "--openenv-token-file"),
        ("ftp://me:secret@a", "--openenv-token-file"),
        ("http://a?token=secret", "--openenv-token-file"),
        ("x" * 1_000_000, "xxx...' is not a server's URL"),
    ],
)
def test_a_list_that_is_wrong_is_named_by_file_and_line_and_tells_no_secret(
    tmp_path: Path, text: str, said: str
) -> None:
    (tmp_path / "servers").write_text(text)
    with pytest.raises(ConfigError) as error:
        read_servers(tmp_path / "servers")
    assert said in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "servers"))
    assert "secret" not in str(error.value)
    assert len(str(error.value)) < 1000


def test_a_list_is_read_without_comments_and_each_server_once(tmp_path: Path) -> None:
    (tmp_path / "servers").write_text("\ufeffhttp://a:1/\r\n# http://b:1\r\n\r\n  https://c/x/ # far\nhttp://a:1\n")
    assert read_servers(tmp_path / "servers") == ("http://a:1", "https://c/x")


async def test_each_state_of_the_bundle_that_is_not_the_folders_is_told(caplog: pytest.LogCaptureFixture) -> None:
    right, wrong = StubOpenEnv(), StubOpenEnv(digest="e" * 64)
    async with quick(right) as one, quick(wrong) as two:
        async with bench(folder={"bundle_digest": right.digest}, openenv=(one, two)) as b:
            await play(b, 6)
    assert caplog.text.count(f"{two} serves another state of the bundle") == 1
    assert f"{one} serves" not in caplog.text


@pytest.mark.usefixtures("looks_often")
async def test_a_servers_deadline_that_is_longer_than_expected_here_is_told_once_with_the_flag(
    caplog: pytest.LogCaptureFixture,
) -> None:
    longer = StubOpenEnv(deadlines={"tool_s": 900.0, "verify_s": 60})
    alike = StubOpenEnv(deadlines={"tool_s": 300.0, "verify_s": 90.5, "else": None})
    async with quick(longer) as one, quick(alike) as two:
        async with bench(openenv=(one, two), verify_timeout=60.0) as b:
            seen = len(longer.requests)
            await until(lambda: len(longer.requests) > seen + 5)
            assert await play(b, 4) == [0.75] * 4
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == [
        f"the OpenEnv server at {one} lets a tool call take 900 s, and is waited for 300 s here: "
        "give --tool-timeout 900 here too",
        f"the OpenEnv server at {two} lets grading take 90.5 s, and is waited for 60 s here: "
        "give --verify-timeout 90.5 here too",
    ]


@pytest.mark.parametrize("told", [None, {}, [], "300", {"tool_s": "900"}, {"tool_s": True, "verify_s": None}])
async def test_deadlines_that_are_not_told_are_no_warning(caplog: pytest.LogCaptureFixture, told: object) -> None:
    async with bench(StubOpenEnv(deadlines=told)) as b:
        assert await play(b, 1) == [0.75]
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_connection_that_breaks_after_the_reset_is_not_tried_again() -> None:
    async with bench(StubOpenEnv(Knobs(drop=frozenset({"reset"})))) as b:
        rollout = await b.seeded()
        answer = (await rollout.verify()).json()
        assert answer["failure_kind"] == "provider_unavailable"
        assert b.stub.resets == [("train", 0)]


async def test_the_openenv_servers_token_is_sent() -> None:
    async with bench(StubOpenEnv(token="secret"), openenv_token="secret") as b:
        assert (await (await b.seeded()).verify()).json()["reward"] == 0.75
    async with bench(StubOpenEnv(token="secret"), openenv_token="wrong", refused_for=0.2) as b:
        answer = (await (await b.seeded()).verify()).json()
        assert answer["failure_kind"] == "provider_unavailable"
        assert "HTTP 403" in answer["failure_reason"]
        assert "--openenv-token-file" in answer["failure_reason"]


async def test_capacity_tells_what_each_server_tells() -> None:
    async with quick(StubOpenEnv(foreign=True)) as foreign, quick(StubOpenEnv(places=5)) as ours:
        async with bench(openenv=(foreign, ours, "http://127.0.0.1:9")) as b:
            told = (await b.http.get("/capacity")).json()
            page = (await b.http.get("/status?format=html")).text
    assert f"<td>{foreign}</td><td>tells nothing of its places" in page
    assert (told["open"], told["waiting"]) == (0, 0)
    assert told["openenv"][0] is None
    assert told["openenv"][1] == {"url": ours, "places": 5, "running": 0, "free": 5, "queued": 0}
    assert "error" in told["openenv"][2]
