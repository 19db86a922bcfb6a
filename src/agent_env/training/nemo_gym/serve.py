"""`serve FOLDER`: the resources server of a written folder, alone at a URL, without NeMo Gym."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import resource
import socket
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path

import uvicorn

from agent_env.commands import console
from agent_env.commands.http import bind, ended_by_signals, search_seldom, url_of
from agent_env.errors import AgentEnvError, ConfigError
from agent_env.tokens import read_token, refuse_strangers
from agent_env.training.nemo_gym.flags import OK, USAGE, Parser, guarded, positive, say, seconds
from agent_env.training.nemo_gym.folder import FolderConfig, read_folder
from agent_env.training.nemo_gym.openenv_list import read_servers, server_url
from agent_env.training.nemo_gym.options import ServeOptions
from agent_env.training.nemo_gym.server import ResourcesServer, build_server

log = logging.getLogger("agent_env.serve")

_BACKLOG = 2048
_CLIENT_LIMIT = 600.0
"""Seconds after which the field's clients give a request up (`request_timeout` of the published configs)."""
_EXAMPLES = """\
  python -m agent_env.training.nemo_gym serve gym-root/resources_servers/gridsim_v1
  python -m agent_env.training.nemo_gym serve gym-root/resources_servers/gridsim_v1 --port 9100 \\
    --masked-as-error --idle-timeout 120
"""


def serve_command(argv: Sequence[str]) -> int:
    """FOLDER: serves until SIGINT or SIGTERM."""
    given = _parser().parse(argv)
    try:
        folder = read_folder(Path(given.folder))
        options = _options(given, folder)
        refuse_strangers(options.host, options.token)
        set_up_logging(given.log_level, given.log_format)
    except ConfigError as error:
        if given.debug:
            traceback.print_exc()
        say(f"error: {error}")
        return USAGE
    return guarded(lambda: serve(folder, options), debug=given.debug)


def serve(folder: FolderConfig, options: ServeOptions) -> int:
    """Serves until SIGINT or SIGTERM, then prints what became of the sessions. Raises AgentEnvError when the address
    can't be had."""
    listening = _listen(options.host, options.port)
    if options.tool_limit >= _CLIENT_LIMIT:
        log.warning("--tool-timeout %g: clients give a tool call up after %g s", options.tool_timeout, _CLIENT_LIMIT)
    _raise_file_limit()
    app = build_server(folder, options)
    try:
        asyncio.run(_run(app, folder.name, listening))
    finally:
        listening.close()
    print(app.sessions.summary(), flush=True)
    return OK


class _Uvicorn(uvicorn.Server):
    """Says its URL once it answers, and ends the episodes before it waits for the requests that play them."""

    def __init__(self, config: uvicorn.Config, app: ResourcesServer, name: str) -> None:
        super().__init__(config)
        self._app = app
        self._name = name

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        with ended_by_signals(self.handle_exit):
            yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        search_seldom()
        if self.started and sockets:
            print(f"serving {self._name} at {url_of(sockets[0])}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._app.sessions.shutdown()
        await super().shutdown(sockets)


async def _run(app: ResourcesServer, name: str, listening: socket.socket) -> None:
    settings = uvicorn.Config(
        app,
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=2,
    )
    await _Uvicorn(settings, app, name).serve(sockets=[listening])


def _parser() -> Parser:
    default = ServeOptions()
    parser = Parser(
        "serve",
        "Runs the resources server of FOLDER alone: /seed_session, one route per tool, /verify, /close_session.\n"
        "Times are seconds, sizes bytes.",
        _EXAMPLES,
    )
    parser.add_argument("folder", metavar="FOLDER", help="what the writer wrote: OUT/resources_servers/NAME")
    parser.flag("--host", default=default.host, help="address to listen on; others than loopback need --token-file")
    parser.flag("--port", type=_port, default=default.port, help="0 takes a free one; the URL is printed")
    parser.flag(
        "--openenv",
        action="append",
        type=_url,
        metavar="URL",
        help="OpenEnv server, in place of the folder's; repeatable: a session goes where the most places are free",
    )
    parser.flag(
        "--openenv-file",
        metavar="FILE",
        help="list of OpenEnv servers, one URL a line, in place of the folder's; read again when it changes",
    )
    parser.flag("--masked-as-error", action="store_true", help="answer a masked rollout with HTTP 503 (verifiers)")
    parser.flag("--idle-timeout", type=seconds, help="reclaim a session without requests; the folder's, or 600")
    parser.flag("--first-call-timeout", type=seconds, help="the same from seed to first call; the idle timeout")
    parser.flag("--reset-timeout", type=seconds, help="wait for a place, in all; the folder's, or 600")
    parser.flag("--ready-wait", type=seconds, default=default.ready_wait, help="wait of a call for a deploy under way")
    parser.flag("--seed-wait", type=seconds, help="hold a seed at most so long; off")
    parser.flag(
        "--keepalive-after",
        type=_seconds_or_off,
        default=default.keepalive_after,
        help="begin a slow answer with spaces after so long, so that no client gives it up; 0 is off",
    )
    parser.flag("--tool-timeout", type=seconds, default=default.tool_timeout, help="the OpenEnv server's, of a call")
    parser.flag("--verify-timeout", type=seconds, default=default.verify_timeout, help="the same of grading")
    parser.flag("--metrics", type=_metrics, metavar="scores,timings", help="put these at the top of verify answers")
    parser.flag("--max-body", type=positive, default=default.max_body, help="largest request")
    parser.flag("--max-output", type=positive, default=default.max_output, help="largest tool output; the rest is cut")
    parser.flag("--episode-log", metavar="FILE", type=Path, help="keep each session as a line of JSON; rotated")
    parser.flag("--workers", type=_one_worker, metavar="1", help="one process holds every session; see --name, --rows")
    parser.flag("--token-file", metavar="FILE", help="file with the bearer token that clients must send")
    parser.flag("--openenv-token-file", metavar="FILE", help="file with the OpenEnv server's token")
    parser.flag("--log-level", choices=("debug", "info", "warning", "error"), default="info", help="what is logged")
    parser.flag("--log-format", choices=("text", "json"), default="text", help="how it is logged, on stderr")
    parser.flag("--debug", action="store_true", help="show tracebacks")
    return parser


def options_without_flags(folder: FolderConfig) -> ServeOptions:
    """What `serve` does when no flag is given: environment, the folder's config, defaults. Raises ConfigError."""
    return _options(_parser().parse([folder.name]), folder)


def _options(given: argparse.Namespace, folder: FolderConfig) -> ServeOptions:
    """Flags and environment win over the folder's config, which wins over the defaults. Raises ConfigError."""
    default = ServeOptions()
    listed = read_servers(Path(given.openenv_file)) if given.openenv_file else ()
    return ServeOptions(
        host=given.host,
        port=given.port,
        openenv=tuple(given.openenv or (() if listed else (folder.openenv_url,))),
        openenv_file=given.openenv_file,
        openenv_listed=listed,
        masked_as_error=given.masked_as_error,
        idle_timeout=given.idle_timeout or folder.idle_timeout or default.idle_timeout,
        first_call_timeout=given.first_call_timeout,
        reset_timeout=given.reset_timeout or folder.reset_timeout or default.reset_timeout,
        ready_wait=given.ready_wait,
        seed_wait=given.seed_wait,
        keepalive_after=given.keepalive_after,
        tool_timeout=given.tool_timeout,
        verify_timeout=given.verify_timeout,
        metrics=given.metrics,
        max_body=given.max_body,
        max_output=given.max_output,
        episode_log=given.episode_log,
        token=read_token(given.token_file),
        openenv_token=read_token(given.openenv_token_file, "--openenv-token-file"),
    )


def _listen(host: str, port: int) -> socket.socket:
    listening = bind(host, port)
    try:
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise AgentEnvError(f"can't listen on {host} port {port}: {error.strerror}") from None
    return listening


def _port(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port: 0 to 65535")
    return int(text)


def _one_worker(text: str) -> int:
    if text.strip() != "1":
        raise argparse.ArgumentTypeError(
            "one process holds every session. For more, write the bundle as several servers (--name, --rows of the "
            "writer) and serve each, or give several --openenv URL"
        )
    return 1


def _seconds_or_off(text: str) -> float:
    return 0.0 if text.strip() in ("0", "0.0", "off") else seconds(text)


def _url(text: str) -> str:
    try:
        return server_url(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _metrics(text: str) -> frozenset[str]:
    names = frozenset(name for part in text.split(",") if (name := part.strip()))
    if unknown := sorted(names - {"scores", "timings"}):
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no metric: scores and timings are, joined by a comma")
    return names


def set_up_logging(level: str, form: str = "text") -> None:
    console.set_up_logging(level, form)
    uvicorn_log = logging.getLogger("uvicorn.error")
    uvicorn_log.addFilter(_not_of_cut_answers)
    uvicorn_log.setLevel(max(logging.getLogger().level, logging.WARNING))


def _not_of_cut_answers(record: logging.LogRecord) -> bool:
    """A slow verify that ends masked is cut on purpose, and logged by us."""
    return "returned without completing response" not in record.getMessage()


def _raise_file_limit() -> None:
    """A session holds a socket on each side: the usual soft limit of 1,024 files is too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
