"""The run of `stubs.tallies` with its comparisons: a few seconds of it are a test, ten minutes a soak."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from stubs.quick_server import quick
from stubs.tallies import (
    LEFT_OPEN,
    Told,
    episodes_of_log,
    episodes_of_metrics,
    episodes_of_summary,
    faulty_bundle,
    faulty_stub,
    leave_some_open,
    of_log,
    of_metrics,
    of_summary,
    on_bundle,
    on_stub,
    play,
    resources_server,
    serving,
)

from agent_env.commands.logtable import totals
from agent_env.errors import FailureKind
from agent_env.observe.reading import Log, read
from agent_env.observe.record import Fate

_GIVEN_UP = (*(FailureKind.SESSION_EXPIRED, FailureKind.CANCELLED), FailureKind.SERVER_SHUTDOWN, None)
"""why a session ended that its client left"""


async def run_and_compare(place: Path, *, seconds: float, players: int, on_sandboxes: int) -> dict[str, Any]:
    """Both runs at once; what each was told."""
    (place / "stub").mkdir()
    (place / "real").mkdir()
    async with asyncio.TaskGroup() as group:
        first = group.create_task(_on_a_stub(place / "stub", seconds, players))
        second = group.create_task(_on_sandboxes(place / "real", seconds, on_sandboxes))
    return {"stub": first.result(), "sandboxes": second.result()}


async def _on_a_stub(place: Path, seconds: float, players: int) -> dict[str, Any]:
    """A resources server whose OpenEnv server misbehaves in every way that the stub can."""
    log = place / "serve.jsonl"
    async with quick(faulty_stub()) as upstream, resources_server(place, upstream, "stub-v1", log) as server:
        ends = await play(players, seconds, on_stub, server.url)
        metrics, summary, told = await _ended(server, log)
    _same(metrics, summary, told, log)
    assert told.counts["verified"] == ends["measured"]
    assert sum(told.kinds.values()) == ends["masked"]
    assert (told.counts["unknown"], told.counts["refused"]) == (ends["unknown"], ends["refused"])
    assert told.counts["open"] == LEFT_OPEN
    return {"ends": dict(ends), "counts": told.counts, "masked": told.kinds}


async def _on_sandboxes(place: Path, seconds: float, players: int) -> dict[str, Any]:
    """Both of our servers, and envs that crash."""
    log, upstream_log = place / "serve.jsonl", place / "openenv.jsonl"
    flags = ("--sandbox", "process", "--max-concurrent-envs", 3, "--warm", 1, "--episode-log", upstream_log)
    bundle = faulty_bundle(place / "stub-v1")
    async with serving("agent_env", bundle, *flags, errors=place / "openenv.txt") as openenv:
        async with resources_server(place, openenv.url, "stub-v1", log) as server:
            ends = await play(players, seconds, on_bundle, server.url)
            metrics, summary, told = await _ended(server, log)
        _same(metrics, summary, told, log)
        await _settled(openenv)
        upstream_metrics = episodes_of_metrics((await openenv.get("/metrics")).text)
        await openenv.stop()
    printed = (place / "openenv.txt").read_text()
    sessions, episodes = read([log]), read([upstream_log])
    upstream = episodes_of_log(episodes)
    assert upstream == upstream_metrics == episodes_of_summary(printed)
    assert totals(episodes, episodes.entries)[0] in printed
    _as_the_openenv_server_tells(sessions, episodes)
    assert told.counts["verified"] == ends["measured"]
    return {"ends": dict(ends), "counts": told.counts, "masked": told.kinds, "episodes": upstream.counts}


def _same(metrics: Told, summary: str, told: Told, log: Path) -> None:
    assert metrics == told == of_summary(summary)
    read_again = read([log])
    assert totals(read_again, read_again.entries) == [summary]
    assert read_again.notices == []


def _as_the_openenv_server_tells(sessions: Log, episodes: Log) -> None:
    """Each session had one episode, which ended as the session did."""
    played = {entry.episode: entry for entry in episodes.entries}
    assert len(played) == len(sessions.entries)
    for session in sessions.entries:
        episode = played[session.episode]
        if session.fate is Fate.VERIFIED:
            assert (episode.fate, episode.reward) == (Fate.SCORED, session.reward)
        elif session.kind in _GIVEN_UP:
            assert episode.fate is Fate.ABANDONED, (session, episode)
        else:
            assert (episode.fate, episode.kind) == (Fate.FAILED, session.kind), (session, episode)


async def _ended(server: Any, log: Path) -> tuple[Told, str, Told]:
    """What its metrics, its last line and its log tell, once it was stopped."""
    metrics = of_metrics(await leave_some_open(server))
    summary = (await server.stop()).strip().splitlines()[-1]
    return metrics, summary, of_log(read([log]))


async def _settled(openenv: Any) -> None:
    """Waits until every episode is counted: sandboxes are gone."""
    async with asyncio.timeout(30):
        while True:
            counts = episodes_of_metrics((await openenv.get("/metrics")).text).counts
            if counts["started"] == counts["scored"] + counts["failed"] + counts["abandoned"]:
                return
            await asyncio.sleep(0.1)
