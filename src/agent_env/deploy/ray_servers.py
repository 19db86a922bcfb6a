"""`python -m agent_env.deploy.ray_servers BUNDLE --openenv-file FILE`: an OpenEnv server on each node of a Ray cluster.

The file lists the servers that run, for `serve --openenv-file`: a node that comes gets a server and a line, one that
goes loses its line. The servers belong to this process: they end when it does. Ray 2.x; every node needs this package,
the bundle under the same path, and Docker (a node without it is passed over).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_env.deploy.node import NodeServer
from agent_env.errors import AgentEnvError, ConfigError
from agent_env.tokens import read_token
from agent_env.training.nemo_gym.flags import OK, Parser, guarded, say

PROGRAM = "python -m agent_env.deploy.ray_servers"
_EXAMPLES = """\
  python -m agent_env.deploy.ray_servers bundles/gridsim-v1 --openenv-file servers --token-file token.txt
  ray job submit -- python -m agent_env.deploy.ray_servers /shared/gridsim-v1 --openenv-file /shared/servers \\
    --token-file /shared/token.txt -- --max-concurrent-envs 96
"""
_LOOK_EVERY = 1.0
_AGAIN_AFTER = 10.0
"""Seconds from a server's end, or from a look that found no Docker, to the next try on that node."""
_STOP_WITHIN = 160.0
Json = Any


@dataclass(frozen=True, slots=True)
class Settings:
    bundle: str
    openenv_file: Path
    token: str | None = None
    address: str | None = "auto"
    port: int = 0
    resource: str | None = None
    sandbox: str = "docker"
    flags: tuple[str, ...] = ()


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 0 stopped, 1 the cluster failed, 2 usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    flags: list[str] = []
    if "--" in words:
        flags = words[words.index("--") + 1 :]
        words = words[: words.index("--")]
    given = _parser().parse(words)
    return guarded(lambda: run(_settings(given, flags)), debug=given.debug)


def run(settings: Settings) -> int:
    """Until SIGINT or SIGTERM."""
    try:
        import ray
    except ImportError as error:
        raise ConfigError(f"Ray is missing ({error}): pip install 'agent-env[openenv,ray]'") from error
    try:
        ray.init(address=settings.address, log_to_driver=True, logging_level="warning")
    except ConnectionError as error:
        raise AgentEnvError(f"no Ray cluster answers: {error}; start one with `ray start --head`") from None
    with stopped_by_signals() as stopping:  # Ray's own handler of SIGTERM ends the process in the middle
        fleet = Fleet(ray, settings)
        try:
            while not stopping:
                fleet.look()
                fleet.wait(_LOOK_EVERY)
        finally:
            fleet.stop()
            ray.shutdown()
    return OK


class Fleet:
    """One `Post` for each node that is to have a server."""

    def __init__(self, ray: Any, settings: Settings) -> None:
        self._ray = ray
        self._settings = settings
        self._posts: dict[str, Post] = {}
        self._not_before: dict[str, float] = {}
        self._written: tuple[str, ...] | None = None
        self._trouble: str | None = None

    def look(self) -> None:
        """Nodes that came get a server, those that went lose theirs; the file follows. Raises ConfigError."""
        if self._written is None:
            self._write()
        nodes = {node["NodeID"]: node for node in self._ray.nodes() if node["Alive"] and self._wanted(node)}
        for gone in self._posts.keys() - nodes.keys():
            say(f"node {gone[:8]} is gone, and its OpenEnv server with it")
            self._posts.pop(gone).abandon()
        for node, told in nodes.items():
            if node not in self._posts and time.monotonic() >= self._not_before.get(node, 0.0):
                self._posts[node] = Post(self._ray, node, told["NodeManagerAddress"], self._settings)
        self._write()

    def wait(self, seconds: float) -> None:
        """Until something is known of a server, or the time is over."""
        asked = {post.pending: post for post in self._posts.values()}
        if not asked:
            time.sleep(seconds)
            return
        done, _ = self._ray.wait(list(asked), timeout=seconds)
        for reference in done:
            post = asked[reference]
            if trouble := post.heard():
                say(f"node {post.node[:8]}: {trouble}")
                post.abandon()
                del self._posts[post.node]
                self._not_before[post.node] = time.monotonic() + _AGAIN_AFTER
        self._write()

    def stop(self) -> None:
        stops = [post.stop() for post in self._posts.values()]
        self._posts.clear()
        if self._written is not None:
            self._write()
        if stops:
            self._ray.wait(stops, num_returns=len(stops), timeout=_STOP_WITHIN)

    def _wanted(self, node: Json) -> bool:
        return self._settings.resource is None or node["Resources"].get(self._settings.resource, 0) > 0

    def _write(self) -> None:
        """Whoever reads the file finds the old list or the new one, never a part. A disk that is full costs no server:
        the list is tried again. Raises ConfigError when it can't be written from the start."""
        urls = tuple(sorted(post.url for post in self._posts.values() if post.url is not None))
        if urls == self._written:
            return
        path = self._settings.openenv_file
        new = path.with_name(f".{path.name}.new")
        lines = [f"# the OpenEnv servers on a Ray cluster, kept by {PROGRAM}", *urls]
        try:
            new.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            os.replace(new, path)
        except OSError as error:
            told, self._trouble = self._trouble, f"--openenv-file {path}: can't be written: {error.strerror}"
            if self._written is None:
                raise ConfigError(self._trouble) from None
            if told != self._trouble:
                say(f"{self._trouble}; it is tried again, and the servers go on")
            return
        self._written, self._trouble = urls, None
        say(f"{path}: {len(urls)} servers{''.join(f', {url}' for url in urls)}")


class Post:
    """A server on one node: asked for Docker, started, then waited for. One call is pending at any time."""

    def __init__(self, ray: Any, node: str, host: str, settings: Settings) -> None:
        self.node = node
        self.url: str | None = None
        self._ray = ray
        strategy = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)
        words = [settings.bundle, "--host", host, "--port", str(settings.port), "--sandbox", settings.sandbox]
        made = ray.remote(NodeServer).options(num_cpus=0, max_concurrency=3, scheduling_strategy=strategy)
        self._actor = made.remote([*words, *settings.flags], settings.token)
        self._starting = settings.sandbox != "docker"
        self.pending = self._actor.start.remote() if self._starting else self._actor.has_docker.remote()

    def heard(self) -> str | None:
        """Takes the pending answer, and asks what comes next. Returns what is wrong, if anything is."""
        try:
            answer = self._ray.get(self.pending)
        except self._ray.exceptions.RayError as error:
            return f"its OpenEnv server is lost: {' '.join(str(error).split())[:300]}"
        if self.url is not None:
            return f"its OpenEnv server ended with {answer}"
        if self._starting:
            self.url = answer
            self.pending = self._actor.ended.remote()
            return None
        if not answer:
            return "no Docker daemon answers there, so it gets no OpenEnv server"
        self._starting = True
        self.pending = self._actor.start.remote()
        return None

    def stop(self) -> Any:
        """Ends the server in order; what to wait for."""
        return self._actor.stop.remote()

    def abandon(self) -> None:
        """Ends the actor, and with it the server where that still runs."""
        self._ray.kill(self._actor)


@contextlib.contextmanager
def stopped_by_signals() -> Iterator[list[int]]:
    """A list that is empty until SIGINT or SIGTERM."""
    caught: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda received, _: caught.append(received))
    try:
        yield caught
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parser() -> Parser:
    parser = Parser(
        "",
        "Starts an OpenEnv server of BUNDLE on every node of a Ray cluster that has Docker, and keeps a list of them "
        "for\n`serve --openenv-file`. What follows `--` are flags of `agent-env serve`.",
        _EXAMPLES,
        PROGRAM,
    )
    parser.add_argument("bundle", metavar="BUNDLE", help="the bundle's folder: the same path on every node")
    parser.flag("--openenv-file", metavar="FILE", required=True, help="the list that is kept")
    parser.flag("--token-file", metavar="FILE", help="file with the bearer token that all servers ask for")
    parser.flag("--address", default="auto", help="the Ray cluster; auto: the one that runs here")
    parser.flag("--port", type=int, default=0, help="of the servers; 0: a free one on each node")
    parser.flag("--resource", metavar="NAME", help="only nodes that have this Ray resource")
    parser.flag("--sandbox", default="docker", help="docker, or process on nodes without it")
    parser.flag("--debug", action="store_true", help="show tracebacks")
    return parser


def _settings(given: argparse.Namespace, flags: Sequence[str]) -> Settings:
    bundle = Path(given.bundle).absolute()
    return Settings(
        bundle=str(bundle) if bundle.exists() else given.bundle,
        openenv_file=Path(given.openenv_file).absolute(),
        token=read_token(given.token_file),
        address=given.address,
        port=given.port,
        resource=given.resource,
        sandbox=given.sandbox,
        flags=tuple(flags),
    )


if __name__ == "__main__":
    sys.exit(main())
