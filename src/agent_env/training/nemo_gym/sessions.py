"""All sessions of one server: found by cookie or by the caller's own id, ended by their clocks, remembered for a while.

An ended session stays as its own tombstone, so that a late or repeated request gets the true answer: a bounded number
of them, for a bounded time.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.observe.record import Fate, Observers, Of, Record
from agent_env.training.nemo_gym.folder import FolderConfig
from agent_env.training.nemo_gym.idle import IdleClock
from agent_env.training.nemo_gym.options import ServeOptions
from agent_env.training.nemo_gym.session import Ground, Session, State
from agent_env.training.nemo_gym.tally import Tally
from agent_env.training.nemo_gym.toolsets import Toolsets
from agent_env.training.nemo_gym.upstream import Upstream
from agent_env.training.nemo_gym.verdict import Verdict
from agent_env.training.nemo_gym.wire import Row, TypedSeed, WireError

Json = Any
log = logging.getLogger("agent_env.serve")

_CLOSE_WITHIN = 3.0


class Sessions:
    def __init__(self, folder: FolderConfig, options: ServeOptions, observers: Observers | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.tally = Tally(loop.time)
        own = () if options.openenv_file else (folder.openenv_url,)
        upstream = Upstream(options.openenv or own, folder.env, options)
        self._watching = loop.create_task(upstream.watch())
        self.ground = Ground(
            options,
            upstream,
            Toolsets(folder.aliases, folder.bundle_digest),
            self.tally,
            observers or Observers(),
        )
        self._observers = self.ground.observers
        self._clock = loop.time
        self._options = options
        self._by_cookie: dict[bytes, Session] = {}
        self._by_id: dict[str, Session] = {}
        self._closed_ids: OrderedDict[str, float] = OrderedDict()
        self._ended: OrderedDict[Session, float] = OrderedDict()
        self._fates: dict[Session, Fate] = {}
        self._stopping = False
        self._reuse_warned = False

    # finding

    def find(self, cookies: Iterable[str]) -> Session | None:
        """The session of the first cookie that is one's. Looked up by digest, so that timing tells nothing of it."""
        for cookie in cookies:
            if session := self._by_cookie.get(_digest(cookie)):
                return session
        return None

    @property
    def open(self) -> int:
        return sum(fate is Fate.OPEN for fate in self._fates.values())

    @property
    def waiting(self) -> int:
        return sum(session.waiting for session in self._fates)

    def states(self) -> dict[str, int]:
        """How many sessions without an end are in each state."""
        counts = {state.value: 0 for state in State}
        for session, fate in self._fates.items():
            if fate in (Fate.SEEDING, Fate.OPEN):
                counts[session.state] += 1
        return counts

    # seeding

    def begin(self, row: Row) -> Session:
        """A new session, whatever cookie the request carried."""
        return self._begin(row, None)

    def begin_typed(self, seed: TypedSeed) -> Session:
        """The session of that id, a new one the first time. Raises WireError 409 when it was closed or can't go on."""
        if seed.session_id in self._closed_ids:
            raise WireError(f"resources_session_id: the session {seed.session_id!r} was closed", 409)
        known = self._by_id.get(seed.session_id)
        if known is None:
            session = self._by_id[seed.session_id] = self._begin(seed.row, seed.episode)
            session.typed_id = seed.session_id
            return session
        if known.episode != seed.episode:
            raise WireError(f"episode_id: the session {seed.session_id!r} belongs to another episode", 409)
        if self._fates.get(known) in (Fate.RECLAIMED, Fate.CLOSED):
            raise WireError(f"resources_session_id: the session {seed.session_id!r} has ended", 409)
        return known

    def warn_of_reuse(self, carried: Session) -> None:
        """A seed came with the cookie of a session that still runs: does one cookie jar serve all rollouts?"""
        if not self._reuse_warned and self._fates.get(carried) is Fate.OPEN:
            self._reuse_warned = True
            log.warning(
                "a seed carried the cookie of session %s, which is still open: each seed makes a session of its own, "
                "and a cookie jar that all rollouts share would mix them up",
                carried.id,
            )

    async def seeded(self, session: Session) -> None:
        """Returns once the session has its place. Raises what `Session.placed` raises; the session is then still there
        and failed: call `accept` to keep it for `/verify`, or `refuse` to drop it."""
        try:
            session.seeders += 1
            async with asyncio.timeout(self._options.seed_wait):
                await session.placed()
        except TimeoutError:
            session.fail(FailureKind.CAPACITY, f"waited {self._options.seed_wait:g} s for a place (--seed-wait)")
            await session.placed()
        except EpisodeFailure:
            if self._fates.get(session) is Fate.CLOSED:
                raise WireError("the session was closed while its seed waited", 409) from None
            raise
        finally:
            session.seeders -= 1

    def accept(self, session: Session) -> None:
        """The seed is being answered with success: from here on the session counts."""
        if self._fates.get(session) is Fate.SEEDING:
            self._fates[session] = Fate.OPEN
            self.tally.seeded += 1

    def refuse(self, session: Session) -> None:
        """The seed is being answered with an error, so nobody will ever name the session."""
        if self._fates.get(session) is Fate.SEEDING:
            self.tally.refused += 1
            self._tell(session, Fate.REFUSED)
            self._forget(session)

    def turn_away(self, reason: str, kind: FailureKind | None = None) -> None:
        """A seed is being answered with an error before it became a session."""
        self.tally.refused += 1
        self._tell_of_none(Fate.REFUSED, kind, reason)

    def abandon(self, session: Session) -> None:
        """The client left before its seed was answered. A retry of a typed seed begins anew."""
        if self._fates.get(session) is Fate.SEEDING and not session.seeders:
            self.tally.abandoned += 1
            session.fail(FailureKind.CLIENT_GONE, "the client left before its seed was answered")
            self._tell(session, Fate.ABANDONED)
            self._forget(session)

    # ending

    async def verify(self, session: Session, final_text: str) -> Verdict:
        verdict = await session.verify(final_text)
        fate = Fate.MASKED if verdict.masked else Fate.VERIFIED
        if self._fates.get(session) not in (None, fate):
            self._recount(session, fate)
            session.forget()
            self._bury(session)
            worth = f"masked, {verdict.kind.value}" if verdict.kind else f"reward {verdict.reward:g}"
            log.info("session %s of %s verified: %s (episode %s)", session.id, session.task, worth, verdict.episode_id)
        return verdict

    def lost(self) -> Verdict:
        """The verdict on a session that nobody here knows."""
        self.tally.unknown += 1
        reason = (
            "this server does not know the session: "
            "no cookie of its seed came with the request, or the server was restarted since"
        )
        self._tell_of_none(Fate.UNKNOWN, FailureKind.SESSION_LOST, reason)
        return Verdict(kind=FailureKind.SESSION_LOST, reason=reason)

    def close(self, session: Session) -> None:
        session.fail(FailureKind.CANCELLED, "the session was closed before it was verified")
        if self._fates.get(session) in (Fate.OPEN, Fate.SEEDING):
            self._recount(session, Fate.CLOSED)
            log.info("session %s of %s closed before it was verified", session.id, session.task)
            self._bury(session)

    def close_typed(self, session_id: str) -> None:
        """An id that was never seeded is closed too: its seed may still be on the way."""
        self._closed_ids[session_id] = self._clock()
        self._trim()
        if session := self._by_id.get(session_id):
            self.close(session)

    async def shutdown(self) -> None:
        """Ends every episode. Requests in flight are answered at once with what that means for them."""
        self._stopping = True
        for session in list(self._fates):
            session.fail(FailureKind.SERVER_SHUTDOWN, "the resources server was stopped")
            session.idle.stop()
        self._watching.cancel()
        await asyncio.wait({self._watching})
        await self.ground.background.aclose(_CLOSE_WITHIN)

    def tell_of_open(self) -> None:
        """The last word on sessions that nobody ended, for when no request can come any more."""
        for session, fate in self._fates.items():
            if fate is Fate.OPEN:
                self._tell(session, Fate.OPEN)

    def summary(self) -> str:
        return self.tally.summary(self.open)

    def report(self) -> dict[str, Json]:
        return {"open": self.open, "waiting": self.waiting, **self.tally.report()}

    def _begin(self, row: Row, episode: tuple[str, int] | None) -> Session:
        if self._stopping:
            raise EpisodeFailure(FailureKind.SERVER_SHUTDOWN, "the resources server is being stopped")
        clock = IdleClock(
            self._options.first_call, self._options.idle_timeout, lambda idle: self._expire(session, idle)
        )
        session = Session(row, self.ground, clock, episode)
        self._by_cookie[_digest(session.cookie)] = session
        self._fates[session] = Fate.SEEDING
        return session

    def _expire(self, session: Session, idle: float) -> None:
        if self._fates.get(session) is Fate.OPEN:
            session.fail(FailureKind.SESSION_EXPIRED, f"no request for {idle:g} s (--idle-timeout)")
            self._recount(session, Fate.RECLAIMED)
            log.info("session %s of %s reclaimed after %g s without a request", session.id, session.task, idle)
            self._bury(session)

    def _recount(self, session: Session, fate: Fate) -> None:
        before = self._fates[session]
        if before is Fate.SEEDING:
            self.tally.seeded += 1
        if before is Fate.RECLAIMED:
            self.tally.reclaimed -= 1
        if before is Fate.CLOSED:
            self.tally.closed -= 1
        self._fates[session] = fate
        verdict = session.verdict
        if fate is Fate.VERIFIED:
            self.tally.measured()
        elif fate is Fate.MASKED and verdict is not None and verdict.kind is not None:
            self.tally.mask(verdict.kind, session.task, session.failed_tool)
        elif fate is Fate.RECLAIMED:
            self.tally.reclaimed += 1
        elif fate is Fate.CLOSED:
            self.tally.closed += 1
        self._tell(session, fate, before if before in (Fate.RECLAIMED, Fate.CLOSED) else None)

    def _tell(self, session: Session, fate: Fate, before: Fate | None = None) -> None:
        if self._observers:
            self._observers.counted(session.record(fate, before))

    def _tell_of_none(self, fate: Fate, kind: FailureKind | None, reason: str) -> None:
        if self._observers:
            serial = next(self.ground.serials)
            self._observers.counted(Record(Of.SESSION, serial, fate, time.time(), kind=kind, reason=reason))

    def _bury(self, session: Session) -> None:
        session.idle.stop()
        self._ended[session] = self._clock()
        self._trim()

    def _trim(self) -> None:
        oldest = self._clock() - self._options.tombstone_ttl
        while self._ended:
            session, since = next(iter(self._ended.items()))
            if since > oldest and len(self._ended) <= self._options.tombstones:
                break
            del self._ended[session]
            self._forget(session)
        while self._closed_ids:
            session_id, since = next(iter(self._closed_ids.items()))
            if since > oldest and len(self._closed_ids) <= self._options.tombstones:
                break
            del self._closed_ids[session_id]

    def _forget(self, session: Session) -> None:
        session.idle.stop()
        self._fates.pop(session, None)
        self._by_cookie.pop(_digest(session.cookie), None)
        if session.typed_id is not None and self._by_id.get(session.typed_id) is session:
            del self._by_id[session.typed_id]


def _digest(cookie: str) -> bytes:
    return hashlib.blake2b(cookie.encode("utf-8", "replace"), digest_size=16).digest()
