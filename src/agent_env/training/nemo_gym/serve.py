"""`serve FOLDER`: the resources server of a written folder, alone at a URL, without NeMo Gym."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from agent_env.errors import ConfigError
from agent_env.training.nemo_gym.folder import FolderConfig, read_folder
from agent_env.training.nemo_gym.options import ServeOptions
from agent_env.training.nemo_gym.server import ResourcesServer, build_server

log = logging.getLogger("agent_env.serve")

_DEFAULTS = ServeOptions()
_BACKLOG = 2048
_CLIENT_LIMIT = 600.0
"""Seconds after which the field's clients give a request up (`request_timeout` of the published configs)."""


class PortTaken(Exception):
    """The address can't be bound."""


def serve_command(
    folder: Annotated[Path, typer.Argument(help="The folder that the writer wrote: OUT/resources_servers/NAME.")],
    host: Annotated[
        str, typer.Option(envvar="AGENT_ENV_HOST", help="A host other than loopback needs --token-file.")
    ] = (_DEFAULTS.host),
    port: Annotated[int, typer.Option(envvar="AGENT_ENV_PORT", min=0, max=65535, help="0: a free one, printed.")] = (
        _DEFAULTS.port
    ),
    openenv: Annotated[
        list[str] | None,
        typer.Option(envvar="AGENT_ENV_OPENENV", metavar="URL", help="OpenEnv servers in place of the folder's own."),
    ] = None,
    masked_as_error: Annotated[
        bool,
        typer.Option(
            "--masked-as-error", envvar="AGENT_ENV_MASKED_AS_ERROR", help="Answer a masked rollout with HTTP 503."
        ),
    ] = _DEFAULTS.masked_as_error,
    idle_timeout: Annotated[
        float | None,
        typer.Option(
            envvar="AGENT_ENV_IDLE_TIMEOUT",
            help="Seconds without a request after which a session is reclaimed. [default: the folder's, 600]",
        ),
    ] = None,
    first_call_timeout: Annotated[
        float | None,
        typer.Option(
            envvar="AGENT_ENV_FIRST_CALL_TIMEOUT",
            help="The same from the seed's answer to the first call. [default: the idle timeout]",
        ),
    ] = None,
    reset_timeout: Annotated[
        float | None,
        typer.Option(
            envvar="AGENT_ENV_RESET_TIMEOUT",
            help="Seconds that a session waits for a place in all. [default: the folder's, 600]",
        ),
    ] = None,
    ready_wait: Annotated[
        float,
        typer.Option(envvar="AGENT_ENV_READY_WAIT", help="Seconds that a call or verify waits for a deploy under way."),
    ] = _DEFAULTS.ready_wait,
    seed_wait: Annotated[
        float | None,
        typer.Option(envvar="AGENT_ENV_SEED_WAIT", help="Hold a seed at most so many seconds. [default: off]"),
    ] = None,
    keepalive_after: Annotated[
        float,
        typer.Option(
            envvar="AGENT_ENV_KEEPALIVE_AFTER", help="Seconds after which a slow answer begins with spaces; 0: never."
        ),
    ] = _DEFAULTS.keepalive_after,
    tool_timeout: Annotated[
        float,
        typer.Option(envvar="AGENT_ENV_TOOL_TIMEOUT", help="The OpenEnv server's deadline of a tool call, in seconds."),
    ] = _DEFAULTS.tool_timeout,
    verify_timeout: Annotated[
        float,
        typer.Option(envvar="AGENT_ENV_VERIFY_TIMEOUT", help="The OpenEnv server's deadline of grading, in seconds."),
    ] = _DEFAULTS.verify_timeout,
    metrics: Annotated[
        str | None,
        typer.Option(
            envvar="AGENT_ENV_METRICS",
            metavar="scores,timings",
            help="What verify answers carry at the top, where verifiers logs it. [default: scores, of two or more]",
        ),
    ] = None,
    max_body: Annotated[
        int, typer.Option(envvar="AGENT_ENV_MAX_BODY", min=1024, help="Largest request, in bytes.")
    ] = _DEFAULTS.max_body,
    max_output: Annotated[
        int,
        typer.Option(envvar="AGENT_ENV_MAX_OUTPUT", min=256, help="Largest tool output, in bytes; the rest is cut."),
    ] = _DEFAULTS.max_output,
    token_file: Annotated[
        Path | None, typer.Option(envvar="AGENT_ENV_TOKEN_FILE", help="A file with the bearer token that clients send.")
    ] = None,
    openenv_token_file: Annotated[
        Path | None, typer.Option(envvar="AGENT_ENV_OPENENV_TOKEN_FILE", help="The same for the OpenEnv server.")
    ] = None,
    log_level: Annotated[
        str, typer.Option(envvar="AGENT_ENV_LOG_LEVEL", help="debug, info, warning or error.")
    ] = "info",
    debug: Annotated[bool, typer.Option("--debug", help="Show tracebacks.")] = False,
) -> None:
    """Run the resources server of FOLDER alone: /seed_session, one route per tool, /verify, /close_session.

    Example: python -m agent_env.training.nemo_gym serve gym-root/resources_servers/gridsim_v1 --port 9100
    --masked-as-error --idle-timeout 120
    """
    try:
        config = read_folder(folder)
        options = ServeOptions(
            host=host,
            port=port,
            openenv=tuple(_url(url) for url in openenv or ()),
            masked_as_error=masked_as_error,
            idle_timeout=_first("--idle-timeout", idle_timeout, config.idle_timeout, _DEFAULTS.idle_timeout),
            first_call_timeout=first_call_timeout,
            reset_timeout=_first("--reset-timeout", reset_timeout, config.reset_timeout, _DEFAULTS.reset_timeout),
            ready_wait=ready_wait,
            seed_wait=seed_wait,
            keepalive_after=keepalive_after,
            tool_timeout=tool_timeout,
            verify_timeout=verify_timeout,
            metrics=_metrics(metrics),
            max_body=max_body,
            max_output=max_output,
            token=_token(token_file),
            openenv_token=_token(openenv_token_file),
        )
        _check_host(options)
        _set_up_logging(log_level)
    except ConfigError as error:
        if debug:
            raise
        print(f"serve: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    try:
        serve(config, options)
    except PortTaken as error:
        print(f"serve: {error}", file=sys.stderr)
        raise typer.Exit(1) from None


def serve(config: FolderConfig, options: ServeOptions) -> None:
    """Serves until SIGINT or SIGTERM. Raises PortTaken before anything is started."""
    if options.tool_limit >= _CLIENT_LIMIT:
        log.warning(
            "--tool-timeout %g: clients give a tool call up after %g s, and its answer is lost",
            options.tool_timeout,
            _CLIENT_LIMIT,
        )
    listening = bind(options.host, options.port)
    _raise_file_limit()
    app = build_server(config, options)
    try:
        asyncio.run(_run(app, config, listening))
    finally:
        listening.close()
    print(app.sessions.summary(), flush=True)


def bind(host: str, port: int) -> socket.socket:
    """A bound socket; port 0 takes a free one. Raises PortTaken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(_BACKLOG)
    except OSError as error:
        listening.close()
        raise PortTaken(f"can't listen on {host}:{port}: {error.strerror}; choose another with --port") from None
    listening.setblocking(False)
    return listening


class _Uvicorn(uvicorn.Server):
    """Says its URL once it answers, and ends the episodes before it waits for the requests that play them."""

    def __init__(self, config: uvicorn.Config, app: ResourcesServer, name: str) -> None:
        super().__init__(config)
        self._app = app
        self._name = name

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        caught = (signal.SIGINT, signal.SIGTERM)
        for number in caught:
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in caught:
                loop.remove_signal_handler(number)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and sockets:
            host, port = sockets[0].getsockname()[:2]
            shown = f"[{host}]" if ":" in host else host
            print(f"serving {self._name} on http://{shown}:{port}", flush=True)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await self._app.sessions.shutdown()
        await super().shutdown(sockets)


async def _run(app: ResourcesServer, config: FolderConfig, listening: socket.socket) -> None:
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
    await _Uvicorn(settings, app, config.name).serve(sockets=[listening])


def _first(flag: str, *candidates: float | None) -> float:
    value = next(candidate for candidate in candidates if candidate is not None)
    if not 0 < value < float("inf"):
        raise ConfigError(f"{flag} must be above 0, got {value:g}")
    return value


def _metrics(chosen: str | None) -> frozenset[str] | None:
    if chosen is None:
        return None
    names = frozenset(name for part in chosen.split(",") if (name := part.strip()))
    if unknown := sorted(names - {"scores", "timings"}):
        raise ConfigError(f"--metrics {unknown[0]}: unknown; it takes scores and timings, joined by a comma")
    return names


def _url(url: str) -> str:
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--openenv {url}: must begin with http:// or https://")
    return url.rstrip("/")


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: the token can't be read: {error}") from error
    if not token:
        raise ConfigError(f"{path}: holds no token")
    return token


def _check_host(options: ServeOptions) -> None:
    try:
        loopback = options.host == "localhost" or ipaddress.ip_address(options.host).is_loopback
    except ValueError:
        loopback = False
    if not loopback and options.token is None:
        raise ConfigError(
            f"--host {options.host}: everybody there could play and score episodes: give --token-file too"
        )


def _set_up_logging(level: str) -> None:
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise ConfigError(f"--log-level {level}: must be debug, info, warning or error")
    logging.basicConfig(level=number, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
    logging.getLogger("uvicorn.error").setLevel(max(number, logging.WARNING))
    logging.getLogger("websockets").setLevel(max(number, logging.WARNING))


def _raise_file_limit() -> None:
    """A session holds a socket on each side: the usual soft limit of 1,024 files is too few."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
