"""What a resources server shows of itself: `/metrics`, and `/status` as a page and as JSON."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from agent_env.observe import page, report
from agent_env.observe.exposition import Exposition, Series, by, single
from agent_env.observe.health import Finding, Health, State, judge
from agent_env.observe.lag import LoopLag
from agent_env.observe.page import Page, Table, Tile, duration
from agent_env.observe.record import Fate
from agent_env.observe.redact import environment_secrets
from agent_env.observe.times import Times
from agent_env.observe.watcher import Watcher
from agent_env.training.nemo_gym.options import ServeOptions
from agent_env.training.nemo_gym.sessions import Sessions

Json = Any
_SUMS = "seeded = verified + masked + reclaimed + closed + open"
_UNKNOWN = (
    "deploy and load are as the OpenEnv server told them at the end of an episode; turn and teardown are on its own "
    "/status. start is from the place to the first tool call that could be made."
)


def watcher(options: ServeOptions) -> Watcher:
    """For the sessions of one server."""
    times = Times("wait", "start", "verify", told={"deploy_s": "deploy", "load_s": "load"})
    tokens = [token for token in (options.token, options.openenv_token) if token]
    return Watcher(times, logging.getLogger("agent_env.serve"), [*tokens, *environment_secrets()])


class Seen:
    """Of one running server. `stop` it before its loop ends."""

    def __init__(self, name: str, sessions: Sessions, watcher: Watcher) -> None:
        self._name = name
        self._sessions = sessions
        self._watcher = watcher
        self._lag = LoopLag()
        self._exposition = Exposition(watcher, self._lag)
        self._since = asyncio.get_running_loop().time()

    def stop(self) -> None:
        self._lag.stop()

    async def metrics(self) -> bytes:
        return await self._exposition.text(self._series(await self._servers()))

    async def report(self) -> dict[str, Json]:
        servers = await self._servers()
        told = report.shared(self._watcher, self._lag, self._health(servers))
        return {
            **self._sessions.report(),
            "states": self._sessions.states(),
            "up_s": round(self._up, 1),
            "openenv": servers,
            **told,
        }

    async def page(self) -> bytes:
        urls = self._sessions.ground.upstream.urls
        servers = await self._servers()
        states = self._sessions.states()
        tally, lag = self._sessions.tally, self._lag
        told = Page(
            name=self._name,
            what="resources server",
            up_s=self._up,
            health=self._health(servers),
            now=[
                Tile("open sessions", f"{self._sessions.open:,}"),
                *(Tile(state, f"{count:,}", _STATES[state]) for state, count in states.items()),
                Tile("event loop late by", duration(lag.last), f"at most {duration(lag.largest)} of late"),
            ],
            tables=[_servers(urls, servers)],
            ended=[
                Tile("seeded", f"{tally.seeded:,}"),
                Tile("verified", f"{tally.verified:,}", "with a reward"),
                Tile("masked", f"{tally.masked.total():,}", "the environment failed"),
                Tile("reclaimed", f"{tally.reclaimed:,}", "no request came any more"),
                Tile("closed", f"{tally.closed:,}", "by the client, before a verify"),
                Tile("refused", f"{tally.refused:,}", "seeds answered with an error"),
                Tile("longest wait", duration(tally.longest_wait), "for a place"),
            ],
            sums=_SUMS,
            unknown_times=_UNKNOWN,
        )
        return page.render(told, self._watcher)

    @property
    def _up(self) -> float:
        return asyncio.get_running_loop().time() - self._since

    async def _servers(self) -> list[Json]:
        servers: list[Json] = await self._sessions.ground.upstream.capacity()
        return servers

    def _health(self, servers: list[Json]) -> Health:
        return judge(self._watcher.troubles, self._lag.largest, _away(servers))

    def _series(self, servers: list[Json]) -> Iterator[Series]:
        sessions, counted, again = self._sessions, self._watcher.counted_as, self._watcher.recounted
        tally = sessions.tally
        yield by("agent_env_sessions", "Sessions without an end, by what they do.", "state", sessions.states())
        yield single("agent_env_sessions_open", "Sessions that were seeded and have not ended.", sessions.open)
        yield single("agent_env_sessions_seeded_total", "Seeds that were answered with a session.", tally.seeded)
        ends = {fate.value: counted[fate] for fate in _ENDS}
        yield by("agent_env_sessions_ended_total", "Sessions by how they ended.", "fate", ends)
        late = {fate.value: again[fate] for fate in (Fate.RECLAIMED, Fate.CLOSED)}
        help = "Ended sessions that were verified all the same, and so ended a second time; by how they had ended."
        yield by("agent_env_sessions_recounted_total", help, "fate", late)
        yield single("agent_env_seeds_refused_total", "Seeds answered with an error.", counted[Fate.REFUSED])
        help = "Seeds whose client left before the answer."
        yield single("agent_env_seeds_abandoned_total", help, counted[Fate.ABANDONED])
        help = "Verifies without a session that is known here."
        yield single("agent_env_verifies_unknown_total", help, counted[Fate.UNKNOWN])
        help = "The longest that a session waited for its place."
        yield single("agent_env_longest_wait_seconds", help, tally.longest_wait)
        known = [server for server in servers if server is not None]
        for key, help in _PLACES.items():
            values = {server["url"]: server[key] for server in known if isinstance(server.get(key), int)}
            yield by(f"agent_env_openenv_{key}", help, "server", values)
        up = {server["url"]: float("error" not in server) for server in known}
        yield by("agent_env_openenv_up", "Whether the OpenEnv server answered just now.", "server", up)


_ENDS = (Fate.VERIFIED, Fate.MASKED, Fate.RECLAIMED, Fate.CLOSED)
_STATES = {
    "waiting": "for a place",
    "starting": "the env is deployed and loaded",
    "playing": "the model can call tools",
    "ended": "played, not yet verified",
    "failed": "by the environment, not yet verified",
}
_PLACES = {
    "places": "Places of the OpenEnv server.",
    "running": "Its places that are taken.",
    "queued": "Episodes that wait there for a place.",
    "starting": "Sandboxes that start there.",
    "spares": "Its sandboxes that are ready for an episode.",
}


def _servers(urls: Sequence[str], servers: list[Json]) -> Table:
    rows = []
    for url, server in zip(urls, servers, strict=False):  # the list may have changed while they were asked
        if server is None:
            rows.append((url, "tells nothing of its places", "", "", "", ""))
        elif "error" in server:
            rows.append((server["url"], f"away: {server['error']}", "", "", "", ""))
        else:
            places = [str(server.get(key, "-")) for key in _PLACES]
            rows.append((server["url"], "up", f"{places[1]} of {places[0]}", *places[2:]))
    return Table("OpenEnv servers", ("server", "", "places taken", "queued", "starting", "spares"), rows)


def _away(servers: list[Json]) -> Iterator[Finding]:
    away = [server["url"] for server in servers if server is not None and "error" in server]
    if away and len(away) == len(servers):
        yield Finding(State.FAILING, f"no OpenEnv server answers: is agent-env serve running at {', '.join(away)}?")
    elif away:
        yield Finding(State.DEGRADED, f"away: {', '.join(away)}; its sessions were masked, new ones go to the others")
