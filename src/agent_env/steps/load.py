"""The step that loads artifacts: seed data into an env through its data plane, files into a sandbox."""

from __future__ import annotations

import asyncio
import mimetypes
import posixpath
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, Field

from agent_env.bundle import Artifact, Bundle, Step
from agent_env.env.data import data_add, data_reset
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.base import Sandbox, path_inside
from agent_env.steps.context import DeployedEnv, RunContext
from agent_env.steps.deploy import DeployEnv, not_deployed
from agent_env.steps.registry import Phase, StepModel, register
from agent_env.steps.sandboxes import no_sandbox

DATA_FOLDER = "/data"
PER_GB = 1200.0
"""seconds that a load may take more for each gigabyte"""
LONGEST = 3600.0
AT_ONCE = 8
"""files on their way into a sandbox"""

_SEED_DATA = ("environment", "environment_universe")
_FILES = ("file", "file_artifact_universe")


class Source(BaseModel):
    """One artifact to load."""

    model_config = ConfigDict(extra="ignore", frozen=True, strict=True)

    id: str
    version: int | None = None


@register
class LoadArtifact(StepModel):
    """Loads artifacts of the bundle, in order."""

    type_name: ClassVar[str] = "load_artifact"
    phase: ClassVar[Phase] = "load"
    references: ClassVar[Mapping[str, str]] = {
        "env_id": "envs",
        "artifact_id": "artifacts",
        "artifacts[].id": "artifacts",
    }
    without_effect: ClassVar[frozenset[str]] = frozenset({"artifact_version", "snapshot_after_load"})

    artifact_id: str | None = None
    artifacts: list[Source] = Field(default_factory=list)
    urls: list[Any] | None = None
    artifact_from_step_id: str | None = None
    collected_artifacts_step_id: str | None = None
    env_id: str | None = None
    env_step_id: str | None = None
    sandbox_name: str | None = None
    agent_name: str | None = None
    container_name: str | None = None
    destination_path: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """The artifacts it loads."""
        return (self.artifact_id,) if self.artifact_id is not None else tuple(source.id for source in self.artifacts)

    def problems(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        elsewhere = self.urls or self.artifact_from_step_id or self.collected_artifacts_step_id
        if self.artifact_id is not None and self.artifacts:
            yield "give either artifact_id or artifacts"
        if not self.names and not elsewhere:
            yield "names nothing to load: give artifact_id or artifacts"
        if self.env_id is not None:
            for why in not_deployed(bundle, self.env_id, earlier):
                yield f"env_id: {why}"
            deploys = earlier.get(self.env_step_id or "")
            if self.env_step_id is not None and not (isinstance(deploys, DeployEnv) and deploys.env_id == self.env_id):
                yield f"env_step_id: {self.env_step_id!r} is no earlier step that deploys {self.env_id!r}"
        if self.sandbox_name is not None:
            for why in no_sandbox(self.sandbox_name, earlier):
                yield f"sandbox_name: {why}"
        if self.env_id is not None and self.sandbox_name is not None:
            yield "give one target: env_id or sandbox_name"
        if self.env_id is None and self.sandbox_name is None and self.agent_name is None:
            yield "names no target: give env_id or sandbox_name"
        if self.destination_path is not None and not self.destination_path.startswith("/"):
            yield f"destination_path must be absolute, not {self.destination_path!r}"
        for artifact in self._found(bundle):
            yield from self._misfits(artifact, bundle)

    def unsupported(self, bundle: Bundle) -> Iterator[str]:
        if self.agent_name is not None:
            yield "agent_name: agents have no sandbox of their own here: load into an env or a deploy_sandbox"
        if self.container_name is not None:
            yield "container_name is not run here: sandboxes run no containers"
        if self.urls:
            yield "urls is not run here: put the files into an artifact"
        for key in ("artifact_from_step_id", "collected_artifacts_step_id"):
            if getattr(self, key) is not None:
                yield f"{key} is not run here: no step makes artifacts"
        for artifact in self._found(bundle):
            if artifact.type not in (*_SEED_DATA, *_FILES):
                yield f"artifact {artifact.name!r} is a {artifact.type}, which is not loaded here"
            elif artifact.type in _SEED_DATA and self.env_id is None:
                yield (
                    f"artifact {artifact.name!r} is data for an env ({artifact.type}): load it with env_id, "
                    "or make it files"
                )

    async def run(self, step: Step, context: RunContext) -> None:
        started = time.monotonic()
        artifacts = [context.bundle.artifacts[name] for name in self.names]
        for artifact in artifacts:
            try:
                if artifact.type in _SEED_DATA:
                    assert self.env_id is not None
                    await self._load_data(context, context.envs[self.env_id], artifact)
                    context.envs[self.env_id].set_up = step.id
                else:
                    await self._load_files(context, artifact)
            except EpisodeFailure as failure:
                raise EpisodeFailure(failure.kind, f"step {step.id!r}: {failure.reason}") from failure
        context.spent("load_s", time.monotonic() - started)

    def _found(self, bundle: Bundle) -> Iterator[Artifact]:
        return (bundle.artifacts[name] for name in self.names if name in bundle.artifacts)

    def _misfits(self, artifact: Artifact, bundle: Bundle) -> Iterator[str]:
        """Seed data for another env than the one it is loaded into."""
        env = bundle.envs.get(self.env_id or "")
        if env is None or artifact.type not in _SEED_DATA:
            return
        names = [str(item.config.get("environment_name")) for item in _parts(artifact, bundle)]
        if env.environment_name not in names:
            yield (
                f"artifact {artifact.name!r} holds data for {', '.join(map(repr, names)) or 'no env'}, "
                f"and env {env.name!r} serves {env.environment_name!r}"
            )

    async def _load_data(self, context: RunContext, deployed: DeployedEnv, artifact: Artifact) -> None:
        if deployed.dead:
            return
        served = deployed.env.environment_name
        part = next(p for p in _parts(artifact, context.bundle) if p.config.get("environment_name") == served)
        file = data_file(part, context.bundle)
        size = (await asyncio.to_thread(file.stat)).st_size
        limit = time_limit(context.deadlines.load, size)
        what = f"artifact {artifact.name!r} into env {deployed.env.name!r}"
        async with _within(limit, what):
            inside = f"{DATA_FOLDER}/{file.name}"
            await deployed.sandbox.put(inside, await asyncio.to_thread(file.read_bytes))
            uri = f"file://{quote(path_inside(deployed.sandbox, inside))}"
            part_sent = {"uri": uri, "mimeType": mime_type(file.name), "name": file.name}
            await data_reset(deployed.http, card=deployed.card, timeout=limit)
            await data_add(deployed.http, [{"kind": "file", "file": part_sent}], card=deployed.card, timeout=limit)

    async def _load_files(self, context: RunContext, artifact: Artifact) -> None:
        if self.sandbox_name is not None:
            sandbox, usual = context.bare[self.sandbox_name], "/loaded"
        else:
            assert self.env_id is not None
            deployed = context.envs[self.env_id]
            if deployed.dead:
                return
            sandbox, usual = deployed.sandbox, "/tmp/file_artifacts"
        folder = self.destination_path or usual
        size = await asyncio.to_thread(_size, artifact)
        async with _within(time_limit(context.deadlines.load, size), f"artifact {artifact.name!r} into {folder}"):
            await _put_all(sandbox, artifact, folder)


def time_limit(base: float, size: int) -> float:
    """Seconds for a load of `size` bytes, where one of nothing has `base`."""
    return max(base, min(base + size / 1e9 * PER_GB, LONGEST))


def mime_type(name: str) -> str:
    return mimetypes.guess_type(name)[0] or "application/octet-stream"


def data_file(artifact: Artifact, bundle: Bundle) -> Path:
    """The one file of an `environment` artifact, which may lie in a `file` artifact that it names."""
    holder = bundle.artifacts[artifact.config["file"]] if "file" in artifact.config else artifact
    return holder.path / holder.files[0]


def _parts(artifact: Artifact, bundle: Bundle) -> Iterable[Artifact]:
    if artifact.type == "environment":
        return [artifact]
    named = artifact.config.get("environment_artifacts", ())
    return [bundle.artifacts[name] for name in named if name in bundle.artifacts]


async def _put_all(sandbox: Sandbox, artifact: Artifact, folder: str) -> None:
    places = asyncio.Semaphore(AT_ONCE)

    async def put(name: str) -> None:
        async with places:
            data, mode = await asyncio.to_thread(_read, artifact.path / name)
            await sandbox.put(posixpath.join(folder, name), data, mode=mode)

    await asyncio.gather(*map(put, artifact.files))


def _read(file: Path) -> tuple[bytes, int]:
    """Bytes and mode: runnable stays runnable."""
    return file.read_bytes(), 0o755 if file.stat().st_mode & 0o100 else 0o644


def _size(artifact: Artifact) -> int:
    return sum((artifact.path / name).stat().st_size for name in artifact.files)


@asynccontextmanager
async def _within(limit: float, what: str) -> AsyncIterator[None]:
    """A deadline that fails as LOAD_TIMEOUT."""
    try:
        async with asyncio.timeout(limit):
            yield
    except TimeoutError:
        reason = f"{what}: not done after {limit:g} s (--load-timeout)"
        raise EpisodeFailure(FailureKind.LOAD_TIMEOUT, reason) from None
