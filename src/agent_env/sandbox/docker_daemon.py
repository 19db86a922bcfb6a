"""The Docker daemon that we talk to: where it is, how to call it from asyncio, and what its errors mean.

The SDK's client blocks and is not thread safe (docker-py#3229), so each thread of a bounded pool has its own.
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, TypeVar
from urllib.parse import urlsplit

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound, create_api_error_from_http_exception
from docker.utils import kwargs_from_env

from agent_env.errors import ConfigError, EpisodeFailure, FailureKind
from agent_env.sandbox.docker_transport import SocketFileAdapter
from agent_env.sandbox.limits import API_TIMEOUT

T = TypeVar("T")
Client = docker.APIClient

_DEFAULT_HOST = "unix:///var/run/docker.sock"
_AWAY = (requests.exceptions.ConnectionError, requests.exceptions.Timeout, DockerException, OSError)


class Daemon:
    """One daemon. `call` runs a function with a client in the pool; `open` gives a raw stream to it."""

    def __init__(self, *, host: str | None = None, threads: int = 16, timeout: int = API_TIMEOUT) -> None:
        self.host = host or os.environ.get("DOCKER_HOST") or _DEFAULT_HOST
        scheme = urlsplit(self.host).scheme
        if scheme == "ssh":
            raise ConfigError(f"DOCKER_HOST={self.host}: ssh is not supported; forward its socket and name that")
        if scheme not in {"unix", "tcp", "http", "https", "npipe"}:
            raise ConfigError(f"DOCKER_HOST={self.host}: must be unix:///path/to/docker.sock or tcp://host:port")
        self._tls = kwargs_from_env().get("tls") or None
        self._timeout = timeout
        self._pool = ThreadPoolExecutor(max_workers=threads, thread_name_prefix="docker")
        self._local = threading.local()
        self._clients: list[Client] = []
        self._version: str | None = None

    @property
    def local(self) -> bool:
        """Is it reached by a socket file? Then it most likely runs on this kernel."""
        return self.host.startswith("unix://")

    @property
    def address(self) -> str:
        """Where ports that it publishes are reached."""
        return "127.0.0.1" if self.local else urlsplit(self.host).hostname or "127.0.0.1"

    async def call(self, function: Callable[[Client], T]) -> T:
        """Run `function(client)` in the pool. A cancelled caller leaves it running: for what only reads."""
        return await asyncio.wrap_future(self._pool.submit(self._run, function))

    async def finish(self, function: Callable[[Client], T]) -> T:
        """As `call`, but a cancelled caller waits for the end first: for what creates, changes or removes."""
        future = asyncio.wrap_future(self._pool.submit(self._run, function))
        cancelled: asyncio.CancelledError | None = None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as error:
                cancelled = error
        if cancelled is not None:
            future.exception()
            raise cancelled
        return future.result()

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A stream of our own to the daemon, for what the SDK can't do without holding a thread."""
        try:
            if self.local:
                return await asyncio.open_unix_connection(self.host.removeprefix("unix://"))
            parts = urlsplit(self.host)
            port = parts.port or (2376 if self._tls else 2375)
            return await asyncio.open_connection(parts.hostname, port, ssl=self._ssl())
        except OSError as error:
            raise self.failure(error, "connecting") from error

    def cli(self, *arguments: str) -> list[str]:
        """The docker command line that speaks to this daemon, whatever context the user has chosen."""
        return ["docker", "--host", self.host, *arguments]

    def failure(self, error: BaseException, doing: str) -> EpisodeFailure:
        """What an error of the SDK means, told apart by kind."""
        text = _one_line(error)
        reason = f"{doing}: {text}"
        if "no space left on device" in text.lower():
            return EpisodeFailure(FailureKind.DISK_FULL, reason)
        if isinstance(error, ImageNotFound) or (isinstance(error, NotFound) and "image" in text.lower()):
            return EpisodeFailure(FailureKind.IMAGE_MISSING, reason)
        if is_away(error):
            return EpisodeFailure(FailureKind.PROVIDER_UNAVAILABLE, f"Docker at {self.host} does not answer: {reason}")
        return EpisodeFailure(FailureKind.DEPLOY_FAILED, reason)

    def close(self) -> None:
        """Give threads and connections back. Calls under way end on their own."""
        self._pool.shutdown(wait=False)
        for client in self._clients:
            client.close()

    def _run(self, function: Callable[[Client], T]) -> T:
        return function(self._client())

    def _client(self) -> Client:
        client: Client | None = getattr(self._local, "client", None)
        if client is None:
            self._probe()
            client = docker.APIClient(
                base_url=self.host, version=self._version or "auto", timeout=self._timeout, tls=self._tls or False
            )
            self._version = client.api_version
            if self.local:
                path = self.host.removeprefix("unix://")
                client.mount("http+docker://", SocketFileAdapter(path, self._timeout))
            self._local.client = client
            self._clients.append(client)
        return client

    def _probe(self) -> None:
        """Fail early and cleanly where nobody listens: docker 7.2 leaks the socket of a failed connection."""
        if self.local:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
                probe.settimeout(self._timeout)
                probe.connect(self.host.removeprefix("unix://"))

    def _ssl(self) -> ssl.SSLContext | None:
        if self._tls is None:
            return None
        context = ssl.create_default_context(cafile=self._tls.ca_cert)
        if self._tls.cert:
            context.load_cert_chain(*self._tls.cert)
        context.check_hostname = False
        if not self._tls.verify:
            context.verify_mode = ssl.CERT_NONE
        return context


@contextmanager
def streamed(client: Client, route: str, **params: str) -> Iterator[requests.Response]:
    """GET an answer that need not be read to its end. The SDK's own streams leave the connection open then."""
    url = f"{client.base_url}/v{client.api_version}{route}"
    with client.get(url, params=params, stream=True) as response:
        try:
            response.raise_for_status()
        except requests.exceptions.HTTPError as error:
            raise create_api_error_from_http_exception(error) from error
        yield response


def is_gone(error: BaseException) -> bool:
    """Does the daemon say that there is no such object?"""
    return isinstance(error, NotFound)


def is_away(error: BaseException) -> bool:
    """Is this the daemon not answering, rather than an answer of its?"""
    if isinstance(error, APIError):
        return False
    return isinstance(error, _AWAY)


def _one_line(error: BaseException) -> str:
    text: Any = getattr(error, "explanation", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())
