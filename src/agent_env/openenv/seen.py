"""What an OpenEnv server shows of itself: `/metrics`, and `/status` as a page and as JSON."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agent_env.observe import exposition, page, report
from agent_env.observe.exposition import Exposition, Series, by, shown, single
from agent_env.observe.health import Finding, Health, State, judge
from agent_env.observe.lag import LoopLag
from agent_env.observe.page import Page, Tile, duration
from agent_env.observe.record import Fate
from agent_env.observe.redact import environment_secrets
from agent_env.observe.times import Times
from agent_env.observe.watcher import Watcher
from agent_env.openenv.hub import Hub

Json = Any
_PHASES = ("wait", "deploy", "load", "turn", "verify", "teardown")
_ENDS = (Fate.SCORED, Fate.FAILED, Fate.ABANDONED)
_ASK = 3.0
"""seconds within which the sandbox provider must say that it is well"""
_NEARLY = 0.9
"""of the queue"""


def watcher(token: str | None = None) -> Watcher:
    """For the episodes of one server."""
    secrets = [*([token] if token else []), *environment_secrets()]
    times = Times(told={f"{phase}_s": phase for phase in _PHASES})
    return Watcher(times, logging.getLogger("agent_env.openenv"), secrets)


class Seen:
    """Of one server: `begin` on its loop, `stop` before that ends."""

    def __init__(self, hub: Hub, watcher: Watcher) -> None:
        self._hub = hub
        self._watcher = watcher

    def begin(self) -> None:
        self._since = time.monotonic()
        self._lag = LoopLag()
        self._exposition = Exposition(self._watcher, self._lag)

    def stop(self) -> None:
        self._lag.stop()

    async def metrics(self, request: Request) -> Response:
        text = await self._exposition.text(self._series())
        return Response(text, media_type=exposition.MEDIA.decode())

    async def status(self, request: Request) -> Response:
        health = await self._health()
        headers = {name.decode(): value.decode() for name, value in page.HEADERS}
        if page.wanted(request.headers.get("accept", ""), request.url.query):
            body = page.render(self._page(health), self._watcher)
            return Response(body, media_type=page.MEDIA.decode(), headers=headers)
        return JSONResponse(self._report(health), headers=headers)

    def _report(self, health: Health) -> dict[str, Json]:
        hub, seen = self._hub, self._watcher
        return {
            **hub.tally(),
            "failed_tasks": {shown(task): count for task, count in seen.tasks.most_common(50)},
            "failed_tools": {shown(tool): count for tool, count in seen.tools.most_common(50)},
            "up_s": round(time.monotonic() - self._since, 1),
            "capacity": hub.capacity(),
            **report.shared(seen, self._lag, health),
        }

    def _page(self, health: Health) -> Page:
        hub, lag = self._hub, self._lag
        now, told = hub.capacity(), hub.tally()
        running, places, queued, limit = now["running"], now["places"], now["queued"], now["queue_limit"]
        return Page(
            name=hub.catalog.name,
            what=f"OpenEnv server, {hub.runtime.provider.name} sandboxes",
            up_s=time.monotonic() - self._since,
            health=health,
            now=[
                Tile("places taken", f"{running} of {places}", "from deploy to the end of teardown", running / places),
                Tile("queue", f"{queued:,} of {limit:,}", "episodes that wait for a place", queued / max(limit, 1)),
                Tile("starting", f"{now['starting']} of {now['starting_limit']}", "sandboxes, spares included"),
                Tile("spares", str(now["spares"]), "sandboxes that are ready"),
                Tile("event loop late by", duration(lag.last), f"at most {duration(lag.largest)} of late"),
            ],
            ended=[
                Tile("started", f"{told['started']:,}", "episodes"),
                Tile("scored", f"{told['scored']:,}"),
                Tile("failed", f"{sum(told['failed'].values()):,}", "by the environment"),
                Tile("abandoned", f"{told['abandoned']:,}", "by their client"),
            ],
            sums="started = scored + failed + abandoned + those that wait, run or are torn down",
        )

    async def _health(self) -> Health:
        return judge(self._watcher.troubles, self._lag.largest, [*await self._provider(), *self._queue()])

    async def _provider(self) -> list[Finding]:
        try:
            async with asyncio.timeout(_ASK):
                told = await self._hub.health()
        except TimeoutError:
            return [Finding(State.FAILING, f"the sandbox provider does not answer within {_ASK:g} s")]
        if told["status"] == "healthy":
            return []
        return [Finding(State.FAILING, f"no sandbox can start: {told['reason']}")]

    def _queue(self) -> Iterator[Finding]:
        now = self._hub.capacity()
        if now["queued"] > _NEARLY * now["queue_limit"]:
            yield Finding(
                State.DEGRADED, f"the queue is nearly full: {now['queued']} of {now['queue_limit']} (--queue)"
            )

    def _series(self) -> Iterator[Series]:
        counted, now = self._watcher.counted_as, self._hub.capacity()
        yield single("agent_env_episodes_started_total", "Episodes that were started.", self._hub.started)
        ends = {fate.value: counted[fate] for fate in _ENDS}
        yield by("agent_env_episodes_ended_total", "Episodes by how they ended.", "fate", ends)
        for key, help in _CAPACITY.items():
            yield single(f"agent_env_{key}", help, now[key])


_CAPACITY = {
    "places": "Episodes that may run at once.",
    "running": "Places that are taken, from deploy to the end of teardown.",
    "queued": "Episodes that wait for a place.",
    "queue_limit": "Episodes that may wait for one.",
    "starting": "Sandboxes that are being started.",
    "starting_limit": "Sandboxes that may start at once.",
    "spares": "Sandboxes that are ready for an episode.",
}
