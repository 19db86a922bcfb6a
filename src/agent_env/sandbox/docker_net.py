"""How a container is connected, and how we reach the env's port in it.

Three ways, best first; the first that works here is taken and kept:
- `netns`: no network at all; our sockets are made inside the container's namespace. Root, Linux, daemon on this
  kernel, and a runtime whose containers use this kernel's sockets (runsc and kata bring their own).
- `bridge`: one internal bridge for all our containers, closed between them; we connect to the container's address.
- `port`: a bridge without masquerading; the daemon publishes the port where only we should find it.
An env with `network = "egress"` is on a bridge of its own kind in each of them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from agent_env.sandbox.docker_config import OWNER_LABEL, PORT
from agent_env.sandbox.docker_daemon import Client, Daemon
from agent_env.sandbox.docker_sandbox import Reach
from agent_env.sandbox.firewall import BRIDGE_PREFIX, close_bridges
from agent_env.sandbox.netns import NamespaceSockets, can_enter_namespaces, connected, open_namespace
from agent_env.sandbox.ownership import owner

log = logging.getLogger(__name__)

Way = Literal["netns", "bridge", "port"]

_SHARES_OUR_KERNEL = (None, "runc", "crun", "io.containerd.runc.v2")
_BRIDGE = "com.docker.network.bridge."
_CLOSED = {f"{_BRIDGE}enable_icc": "false"}


class Unreachable(Exception):
    """This way does not reach containers from here; another one may."""


@dataclass(frozen=True, slots=True)
class Attachment:
    """What to create a container with."""

    way: Way
    network: str
    publish: str | None = None


class Networks:
    """The networks of one provider, made when first needed and removed by `aclose`."""

    def __init__(
        self,
        daemon: Daemon,
        way: Way | Literal["auto"] = "auto",
        *,
        runtime: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> None:
        self._daemon = daemon
        self._labels = dict(labels or {})
        self._ways: list[Way] = self._candidates(runtime) if way == "auto" else [way]
        self._sockets = NamespaceSockets()
        self._made: dict[str, str] = {}
        self._making = asyncio.Lock()

    @property
    def way(self) -> Way:
        return self._ways[0]

    def demote(self, way: Way) -> bool:
        """That way was tried and does not work here; is there another one?"""
        if self._ways[0] == way and len(self._ways) > 1:
            del self._ways[0]
            log.warning("containers can't be reached by %r from here; using %r", way, self._ways[0])
        return self._ways[0] != way

    async def attachment(self, network: str) -> Attachment:
        """`network`: the env's setting, "none" or "egress"."""
        way = self.way
        publish = self._publish_address() if way == "port" else None
        if network == "egress":
            return Attachment(way, await self._network("egress", {}, internal=False), publish)
        if way == "netns":
            return Attachment(way, "none")
        if way == "bridge":
            return Attachment(way, await self._network("internal", {}, internal=True))
        options = {f"{_BRIDGE}enable_ip_masquerade": "false"}
        return Attachment(way, await self._network("port", options, internal=False), publish)

    def reach(self, attachment: Attachment, told: dict[str, Any]) -> Reach:
        """How to connect to a running container; `told`: the daemon's inspection. Raises Unreachable."""
        if attachment.way == "netns":
            namespace = open_namespace(told["State"]["Pid"], told["Id"])
            if namespace is None:
                raise Unreachable(f"the process of container {told['Id'][:12]} is not to be seen from here")
            return Reach(lambda: self._sockets.connect(namespace, PORT), namespace)
        if attachment.way == "bridge":
            if not Path(f"/sys/class/net/{_interface(attachment.network)}").exists():
                raise Unreachable(f"the bridge of network {attachment.network} is not to be seen from here")
            return _by_address(told["NetworkSettings"]["Networks"][attachment.network]["IPAddress"], PORT)
        ports = told["NetworkSettings"]["Ports"].get(f"{PORT}/tcp") or []
        if not ports:
            raise Unreachable("the daemon published no port")
        return _by_address(self._daemon.address, int(ports[0]["HostPort"]))

    async def aclose(self) -> None:
        """Remove what was made. A network that still has containers stays for the reaper."""
        self._sockets.close()
        for network in self._made.values():
            try:
                await self._daemon.finish(lambda client, network=network: client.remove_network(network))  # type: ignore[misc]
            except Exception as error:
                log.warning("network %s stays, left to the reaper: %s", network, error)
        self._made.clear()

    async def _network(self, kind: str, options: dict[str, str], *, internal: bool) -> str:
        async with self._making:
            if kind not in self._made:
                labels = {OWNER_LABEL: owner(), **self._labels}
                self._made[kind] = await self._daemon.finish(
                    lambda client: _make(client, kind, options, labels, internal=internal)
                )
                if self._daemon.local:
                    await close_bridges()
            return self._made[kind]

    def _candidates(self, runtime: str | None) -> list[Way]:
        ways: list[Way] = ["port"]
        if self._daemon.local and sys.platform == "linux":
            ways.insert(0, "bridge")
            if runtime in _SHARES_OUR_KERNEL and can_enter_namespaces():
                ways.insert(0, "netns")
        return ways

    def _publish_address(self) -> str:
        """On a remote daemon's machine the port must be on the address by which we reach it."""
        return socket.gethostbyname(self._daemon.address)


def _make(client: Client, kind: str, options: Mapping[str, str], labels: dict[str, str], *, internal: bool) -> str:
    name = f"agent-env-{kind}-{secrets.token_hex(4)}"
    client.create_network(
        name,
        driver="bridge",
        internal=internal,
        options={**_CLOSED, f"{_BRIDGE}name": _interface(name), **options},
        labels=labels,
    )
    return name


def _by_address(host: str, port: int) -> Reach:
    async def connect() -> socket.socket:
        sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        sock.setblocking(False)
        return await connected(sock, (host, port))

    return Reach(connect)


def _interface(network: str) -> str:
    return BRIDGE_PREFIX + network.rpartition("-")[2]
