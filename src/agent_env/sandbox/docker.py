"""Sandboxes that are containers of a Docker daemon: one per env, with a network namespace of its own.

Images are built by the docker command (whatever it can build, this can) and run through the SDK. Everything made here
carries its owner and a deadline as labels, so that `reap` can tell what nobody will ever remove.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from docker.errors import ImageNotFound

from agent_env.bundle.model import Env
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.base import BARE, Prepared, SandboxSpec
from agent_env.sandbox.docker_config import SANDBOX_LABEL, container_config, interchange_key
from agent_env.sandbox.docker_daemon import Client, Daemon
from agent_env.sandbox.docker_net import Attachment, Networks, Unreachable, Way
from agent_env.sandbox.docker_reap import reap
from agent_env.sandbox.docker_sandbox import DockerSandbox, Reach, remove_container
from agent_env.sandbox.images import Images
from agent_env.sandbox.presence import Presence
from agent_env.sandbox.variables import resolve_variables

log = logging.getLogger(__name__)

SANDBOX_IMAGE = "python:3.12-slim"


class DockerProvider:
    """Starts envs as containers. One per event loop.

    Args:
        build_args: for every Dockerfile that declares them; `BASE_IMAGE` is the usual one.
        build_network: network of builds, for `docker build --network`.
        runtime: a runtime the daemon knows, such as `runsc`.
        host: the daemon; default `$DOCKER_HOST`, else the usual socket.
        reach: how envs are reached (docker_net.py); default the best that works.
        platform: for builds and pulls, where it is not to be the daemon's own.
        labels: more labels for all that is made here, images included.
        sandbox_image: what bare sandboxes are made of.
    """

    name = "docker"

    def __init__(
        self,
        *,
        build_args: Mapping[str, str] | None = None,
        build_network: str | None = None,
        runtime: str | None = None,
        host: str | None = None,
        reach: Way | Literal["auto"] = "auto",
        platform: str | None = None,
        labels: Mapping[str, str] | None = None,
        sandbox_image: str = SANDBOX_IMAGE,
        threads: int = 16,
    ) -> None:
        self.daemon = Daemon(host=host, threads=threads)
        self._presence = Presence(self.daemon.host)
        self._labels = dict(labels or {})
        self._sandbox_image = sandbox_image
        self.images = Images(
            self.daemon,
            build_args=dict(build_args or {}),
            network=build_network,
            platform=platform,
            labels=self._labels,
        )
        self.networks = Networks(self.daemon, reach, runtime=runtime, labels=self._labels)
        self.runtime = runtime
        self._sandboxes: dict[str, DockerSandbox] = {}
        self._starting: set[asyncio.Task[DockerSandbox]] = set()
        self._left_over: set[str] = set()
        self._closed = False

    async def check(self) -> None:
        try:
            info: dict[str, Any] = await self.daemon.call(lambda client: client.info())
        except Exception as error:
            raise EpisodeFailure(
                FailureKind.PROVIDER_UNAVAILABLE, self.daemon.failure(error, "asking for its state").reason
            ) from error
        runtimes = info.get("Runtimes") or {}
        if self.runtime and self.runtime not in runtimes:
            known = ", ".join(sorted(runtimes))
            raise EpisodeFailure(
                FailureKind.PROVIDER_UNAVAILABLE,
                f"the Docker daemon has no runtime {self.runtime!r} (it has {known}): register it with the daemon",
            )

    async def prepare(self, env: Env) -> Prepared:
        """Also raises `ConfigError` when a secret that the env's settings name is not set."""
        resolve_variables(env.settings.env, env_name=env.name)
        if env.type == BARE:
            env = replace(env, image_ref=self._sandbox_image)
        image = await self.images.ensure(env)
        return Prepared(env=env, key=interchange_key(env, image, runtime=self.runtime), handle=image)

    async def start(self, spec: SandboxSpec) -> DockerSandbox:
        starting = asyncio.get_running_loop().create_task(self._start(spec), name=f"start for {spec.episode}")
        self._starting.add(starting)
        try:
            return await _to_end(starting)
        finally:
            self._starting.discard(starting)

    async def reap(self) -> int:
        left_over, self._left_over = self._left_over, set()
        try:
            return await reap(self.daemon, left_over)
        except BaseException:
            self._left_over |= left_over
            raise

    async def aclose(self) -> None:
        self._closed = True
        if self._starting:
            await asyncio.wait(self._starting)
        await asyncio.gather(*(sandbox.stop() for sandbox in list(self._sandboxes.values())))
        if self._left_over:  # the daemon was away when they were to go; it may be back
            try:
                await self.reap()
            except EpisodeFailure as error:
                log.warning("%d sandboxes stay, left to the next start: %s", len(self._left_over), error.reason)
        await self.networks.aclose()
        self._presence.close()
        self.daemon.close()

    async def _start(self, spec: SandboxSpec) -> DockerSandbox:
        while True:
            attachment = await self._attach(spec)
            try:
                return await self._start_attached(spec, attachment)
            except Unreachable as error:
                if not self.networks.demote(attachment.way):
                    raise EpisodeFailure(
                        FailureKind.PROVIDER_UNAVAILABLE, f"containers can't be reached from here: {error}"
                    ) from error

    async def _attach(self, spec: SandboxSpec) -> Attachment:
        try:
            return await self.networks.attachment(spec.prepared.env.settings.network)
        except Exception as error:
            raise self.daemon.failure(error, "making a network") from error

    async def _start_attached(self, spec: SandboxSpec, attachment: Attachment) -> DockerSandbox:
        name = uuid.uuid4().hex
        try:
            container = await self._create(spec, name, attachment)
            sandbox = DockerSandbox(name, spec, self.daemon, container, self._forget)
            self._sandboxes[name] = sandbox
            told: dict[str, Any] = await self.daemon.call(lambda client: _start_container(client, container))
            sandbox.volumes = tuple(mount["Name"] for mount in told["Mounts"] if mount["Type"] == "volume")
            if told["State"]["Running"]:
                sandbox.reach = await self._reach(attachment, told)
            if self._closed:
                raise EpisodeFailure(FailureKind.SERVER_SHUTDOWN, "the provider was closed")
        except BaseException as error:
            await self._undo(name)
            if isinstance(error, (EpisodeFailure, Unreachable, asyncio.CancelledError)):
                raise
            raise self.daemon.failure(error, f"starting env {spec.prepared.env.name!r}") from error
        log.info(
            "sandbox %s: env %s for episode %s, container %s",
            name,
            spec.prepared.env.name,
            spec.episode,
            container[:12],
        )
        return sandbox

    async def _create(self, spec: SandboxSpec, name: str, attachment: Attachment) -> str:
        config = container_config(
            spec, name, network=attachment.network, publish=attachment.publish, runtime=self.runtime
        )

        config["Labels"].update(self._labels)

        def create(client: Client) -> str:
            made: dict[str, Any] = client.create_container_from_config(config, f"agent-env-{name}")  # type: ignore[no-untyped-call]
            return str(made["Id"])

        try:
            return await self.daemon.call(create)
        except ImageNotFound:
            # Somebody pruned it since it was prepared: make it once more, and say so if that can't be.
            log.warning("env %s: image %s is gone, making it again", spec.prepared.env.name, spec.prepared.handle)
            config["Image"] = await self.images.ensure(spec.prepared.env)
            return await self.daemon.call(create)

    async def _reach(self, attachment: Attachment, told: dict[str, Any]) -> Reach | None:
        """None when it has ended already: then nobody is to be reached, and nothing is wrong with the way."""
        try:
            return self.networks.reach(attachment, told)
        except Unreachable:
            now: dict[str, Any] = await self.daemon.call(lambda client: client.inspect_container(told["Id"]))
            if now["State"]["Running"]:
                raise
            return None

    async def _undo(self, name: str) -> None:
        """Leave nothing of a start that failed, whether or not we were told its container's id."""
        if (sandbox := self._sandboxes.get(name)) is not None:
            await sandbox.stop(grace=0)
            return
        try:
            await self.daemon.call(lambda client: _remove_by_label(client, name))
        except Exception as error:
            log.warning("sandbox %s: a failed start could not be undone, left to the reaper: %s", name, error)
            self._left_over.add(name)

    def _forget(self, sandbox: DockerSandbox, left_over: bool) -> None:
        self._sandboxes.pop(sandbox.id, None)
        if left_over:
            self._left_over.add(sandbox.id)


async def _to_end(starting: asyncio.Task[DockerSandbox]) -> DockerSandbox:
    """Wait for a start. One that is cancelled comes to its end first, so that there is something whole to take down."""
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        while not starting.done():
            try:
                await asyncio.wait({starting})
            except asyncio.CancelledError:
                continue  # told twice; the start is bounded by the daemon's own time-outs
        if not starting.cancelled() and starting.exception() is None:
            await starting.result().stop(grace=0)
        raise


def _start_container(client: Client, container: str) -> dict[str, Any]:
    client.start(container)
    told: dict[str, Any] = client.inspect_container(container)
    return told


def _remove_by_label(client: Client, sandbox: str) -> None:
    for entry in client.containers(all=True, filters={"label": f"{SANDBOX_LABEL}={sandbox}"}):
        remove_container(client, entry["Id"])
