"""The resources server's routes: NeMo Gym's protocol (nemo-gym 0.7.0) over `Sessions`, on bare ASGI.

A POST to any path that is no route of the protocol's is a tool call. What a request began goes on when its client
leaves, but for a seed: nobody will be able to name its session, so its place is given back.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import orjson

from agent_env.errors import EpisodeFailure
from agent_env.observe import exposition, page
from agent_env.observe.log import EpisodeLog
from agent_env.observe.record import Error, Observer, Observers
from agent_env.tokens import CHALLENGE, NEEDED, PASSWORD, allowed
from agent_env.training.nemo_gym import exchange, seen, wire
from agent_env.training.nemo_gym.exchange import (
    ClientLeft,
    Message,
    Patience,
    Receive,
    Reply,
    Request,
    Send,
    detail,
    text,
)
from agent_env.training.nemo_gym.folder import FolderConfig
from agent_env.training.nemo_gym.options import ServeOptions
from agent_env.training.nemo_gym.seen import Seen
from agent_env.training.nemo_gym.session import Session, ToolText
from agent_env.training.nemo_gym.sessions import Sessions
from agent_env.training.nemo_gym.verdict import episode_fields, masked_error, verify_answer
from agent_env.training.nemo_gym.wire import Row, TypedSeed, VerifyRequest, WireError

Json = Any
Handler = Callable[[Request, Session | None, Send], Awaitable[None]]
log = logging.getLogger("agent_env.serve")

HEALTH = ("/", "/health", "/healthz", "/livez", "/readyz")
_NO_SESSION = (
    "This call belongs to no session: it came without the cookie of a seed, or the server was restarted since. "
    "Reply without calling a tool."
)
_NO_METRICS: Json = {
    "group_level_metrics": [],
    "agent_metrics": {},
    "key_metrics": {},
    "perf_summary": None,
    "repeat_level_metrics": [],
}


def build_server(folder: FolderConfig, options: ServeOptions) -> ResourcesServer:
    """An ASGI app whose `sessions` exist from its start-up on."""
    return ResourcesServer(folder, options)


class ResourcesServer:
    sessions: Sessions

    def __init__(self, folder: FolderConfig, options: ServeOptions) -> None:
        self._folder = folder
        self._options = options
        self._log = _episode_log(folder, options)
        self._cookie_name = f"agent_env_session_{folder.name}"
        # A client that needs the first space early needs the others as often.
        every = min(options.keepalive_every, options.keepalive_after)
        self._patience = Patience(options.keepalive_after, every)
        # A seed that is held for a time of the user's choosing ends by that time, with its true status.
        self._seed_patience = self._patience if options.seed_wait is None else Patience(0, 0)
        self._routes: dict[tuple[str, str], Handler] = {
            **{("GET", path): self._health for path in HEALTH},
            ("GET", "/reverify_mode"): self._reverify_mode,
            ("GET", "/status"): self._status,
            ("GET", "/metrics"): self._metrics,
            ("GET", "/capacity"): self._capacity,
            ("POST", "/seed_session"): self._seed,
            ("POST", "/verify"): self._verify,
            ("POST", "/close_session"): self._close,
            ("POST", "/aggregate_metrics"): self._aggregate_metrics,
        }

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await self._http(Request.of(scope, receive), send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        async with self.running():
            await send({"type": "lifespan.startup.complete"})
            await receive()
        await send({"type": "lifespan.shutdown.complete"})

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """What the ASGI lifespan does, for an app that mounts this one: sessions exist inside the block only."""
        watcher = seen.watcher(self._options)
        observers: list[Observer] = [watcher] if self._log is None else [watcher, self._log]
        self.sessions = Sessions(self._folder, self._options, Observers(*observers))
        self._seen = Seen(self._folder.name, self.sessions, watcher)
        try:
            yield
        finally:
            self._seen.stop()
            await self.sessions.shutdown()
            self.sessions.tell_of_open()
            if self._log is not None:
                await asyncio.to_thread(self._log.close, self.sessions.summary())

    async def _http(self, request: Request, send: Send) -> None:
        cookies = request.cookies(self._cookie_name)
        session = self.sessions.find(cookies)
        request.cookie = session.cookie if session else next(iter(cookies), "") or secrets.token_urlsafe(32)
        try:
            await self._dispatch(request, session, send)
        except ClientLeft:
            log.debug("the client left during %s", request.path)
        except WireError as fault:
            await self._send(request, send, detail(str(fault), fault.status))
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            if not request.begun:
                await self._send(request, send, detail("internal error: see the server's log", 500))

    async def _dispatch(self, request: Request, session: Session | None, send: Send) -> None:
        method = "GET" if request.method == "HEAD" else request.method
        handler = self._routes.get((method, request.path))
        shown = method == "GET" and request.path in page.PATHS  # a POST there is a call of a tool of that name
        if handler != self._health and not allowed(request.headers, self._options.token, page=shown):
            await self._send(request, send, detail(NEEDED, 401, PASSWORD if shown else CHALLENGE))
        elif handler is not None:
            await handler(request, session, send)
        elif method == "POST":
            await self._tool(request, session, send)
        else:
            await self._send(request, send, detail("Method Not Allowed", 405, (b"allow", b"POST")))

    # the life of a session

    async def _seed(self, request: Request, carried: Session | None, send: Send) -> None:
        try:
            seed = wire.parse_seed(await request.body(self._options.max_body))
            session = self._begin(seed, carried)
        except WireError as fault:
            self.sessions.turn_away(str(fault))
            log.error("seed refused: %s", fault)
            raise
        except EpisodeFailure as failure:
            self.sessions.turn_away(failure.reason, failure.kind)
            await self._send(request, send, self._refusal(failure))
            return
        request.cookie = session.cookie
        body = orjson.dumps(_seed_answer(seed))
        with session.idle.request(seed=True):
            try:
                work = self._seeded(request, session, body)
                await self._answer(request, work, send, patience=self._seed_patience, watch=True)
            except ClientLeft:
                self.sessions.abandon(session)
                raise

    def _begin(self, seed: Row | TypedSeed, carried: Session | None) -> Session:
        if isinstance(seed, TypedSeed):
            return self.sessions.begin_typed(seed)
        if carried is not None:
            self.sessions.warn_of_reuse(carried)
        return self.sessions.begin(seed)

    async def _seeded(self, request: Request, session: Session, body: bytes) -> Reply | None:
        try:
            await self.sessions.seeded(session)
        except WireError as fault:
            self.sessions.refuse(session)
            log.error("seed refused: %s", fault)
            return None if request.begun else detail(str(fault), fault.status)
        except EpisodeFailure as failure:
            if self._options.masked_as_error and not request.begun:
                self.sessions.refuse(session)
                log.warning("seed of %s refused: %s", session.task, failure)
                return self._refusal(failure)
        self.sessions.accept(session)
        return Reply(body)

    def _refusal(self, failure: EpisodeFailure) -> Reply:
        seconds = self.sessions.tally.retry_after(self.sessions.waiting)
        headers = ((b"retry-after", str(seconds).encode()),)
        return Reply(masked_error(failure.kind, failure.reason), 503, headers=headers)

    async def _tool(self, request: Request, session: Session | None, send: Send) -> None:
        if session is None:
            await request.body(self._options.max_body)
            await self._send(request, send, text(_NO_SESSION, 404))
            return
        with session.idle.request():
            tool, body = request.path[1:], b""
            try:
                body = await request.body(self._options.max_body)
                arguments = wire.parse_arguments(body)
            except WireError as fault:
                refused = ToolText(f"error: {fault}", fault.status, Error.INVALID_ARGS)
                session.answered(tool, body.decode("utf-8", "replace"), refused)
                await self._send(request, send, text(refused.text, refused.status))
                return
            work = self._called(session, tool, arguments)
            await self._answer(request, work, send, media=exchange.TEXT)

    async def _called(self, session: Session, tool: str, arguments: str) -> Reply:
        answer = await session.call(tool, arguments)
        return text(answer.text, answer.status)

    async def _verify(self, request: Request, session: Session | None, send: Send) -> None:
        with session.idle.request() if session else contextlib.nullcontext():
            asked = wire.parse_verify(await request.body(self._options.max_body))
            await self._answer(request, self._verified(request, session, asked), send)

    async def _verified(self, request: Request, session: Session | None, asked: VerifyRequest) -> Reply | None:
        if session is None:
            verdict = self.sessions.lost()
        else:
            verdict = await self.sessions.verify(session, asked.final_text)
        if verdict.kind is None or not self._options.masked_as_error:
            return Reply(verify_answer(verdict, asked, self._options.metrics))
        reason = verdict.reason or ""
        log.warning(
            "verify of %s answered with an error: %s: %s", session.task if session else "?", verdict.kind, reason
        )
        if request.begun:
            return None
        return Reply(masked_error(verdict.kind, reason, episode_fields(verdict)), 503)

    async def _close(self, request: Request, session: Session | None, send: Send) -> None:
        session_id = wire.parse_close(await request.body(self._options.max_body))
        if session_id is not None:
            self.sessions.close_typed(session_id)
            await self._send(request, send, Reply(orjson.dumps({"resources_session_id": session_id})))
            return
        if session is not None:
            self.sessions.close(session)
        await self._send(request, send, Reply(b"{}"))

    # what does not concern a session

    async def _aggregate_metrics(self, request: Request, session: Session | None, send: Send) -> None:
        await request.body(self._options.max_body)
        await self._send(request, send, Reply(orjson.dumps(_NO_METRICS)))

    async def _health(self, request: Request, session: Session | None, send: Send) -> None:
        await self._send(request, send, Reply(b'{"status":"ok"}'))

    async def _reverify_mode(self, request: Request, session: Session | None, send: Send) -> None:
        await self._send(request, send, Reply(b'"unsupported"'))

    async def _status(self, request: Request, session: Session | None, send: Send) -> None:
        accept = (request.header(b"accept") or b"").decode("latin-1")
        if page.wanted(accept, request.query):
            await self._send(request, send, Reply(await self._seen.page(), media=page.MEDIA, headers=page.HEADERS))
        else:
            await self._send(request, send, Reply(orjson.dumps(await self._seen.report()), headers=page.HEADERS))

    async def _metrics(self, request: Request, session: Session | None, send: Send) -> None:
        await self._send(request, send, Reply(await self._seen.metrics(), media=exposition.MEDIA))

    async def _capacity(self, request: Request, session: Session | None, send: Send) -> None:
        sessions = self.sessions
        servers = await sessions.ground.upstream.capacity()
        told = {"open": sessions.open, "waiting": sessions.waiting, "openenv": servers}
        await self._send(request, send, Reply(orjson.dumps(told)))

    async def _answer(
        self,
        request: Request,
        work: Awaitable[Reply | None],
        send: Send,
        *,
        media: bytes = exchange.JSON,
        patience: Patience | None = None,
        watch: bool = False,
    ) -> None:
        cookie = self._set_cookie(request)
        await exchange.answer(
            request, work, send, cookie, media=media, patience=patience or self._patience, watch=watch
        )

    async def _send(self, request: Request, send: Send, reply: Reply) -> None:
        await exchange.send_reply(send, reply, self._set_cookie(request))

    def _set_cookie(self, request: Request) -> bytes:
        return f"{self._cookie_name}={request.cookie}; Path=/; HttpOnly; SameSite=Lax".encode()


def _episode_log(folder: FolderConfig, options: ServeOptions) -> EpisodeLog | None:
    if options.episode_log is None:
        return None
    tokens = [token for token in (options.token, options.openenv_token) if token]
    return EpisodeLog(options.episode_log, secrets=tokens, facts={"server": folder.name, "env": folder.env})


def _seed_answer(seed: Row | TypedSeed) -> dict[str, Json]:
    if isinstance(seed, TypedSeed):
        return {"resources_session_id": seed.session_id, "resources_tools": None, "sandbox_access": None}
    return {}
