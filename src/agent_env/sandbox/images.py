"""Env images: built once per source digest by the docker command, or pulled once by name."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import shutil
import signal
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_env.bundle.model import Env
from agent_env.errors import ConfigError, EpisodeFailure, FailureKind
from agent_env.sandbox.docker_daemon import Daemon, is_gone
from agent_env.sandbox.limits import BUILD_TIMEOUT
from agent_env.sandbox.locks import file_lock
from agent_env.state import cache_dir

SOURCES_LABEL = "agent-env.sources"

_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64", "armv7l": "arm", "i386": "386", "i686": "386"}
_ARG = re.compile(r"^\s*ARG\s+([A-Za-z_]\w*)", re.IGNORECASE | re.MULTILINE)
_NOT_THERE = re.compile(
    r"pull access denied|manifest unknown|manifest for .* not found|failed to resolve (source|reference)|"
    r"no such host|no match for platform|does not exist or may require|Get \"?https?://",
    re.IGNORECASE,
)
_TAIL = 4096
_NOISE = ("Sending build context", "DEPRECATED:", " ---> ")


@dataclass(frozen=True, slots=True)
class Images:
    """Makes sure that an env's image is there. Safe to use at once, from several processes."""

    daemon: Daemon
    build_args: Mapping[str, str] = field(default_factory=dict)
    """for every env whose Dockerfile declares them; an env's own `build_args` win"""
    network: str | None = None
    platform: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    async def ensure(self, env: Env) -> str:
        """The id of the env's image, built or pulled where it is not there yet.

        Raises:
            EpisodeFailure: IMAGE_MISSING (it, or its base, can't be had, or is for another architecture), DISK_FULL,
                PROVIDER_UNAVAILABLE, or DEPLOY_FAILED with the build's last lines.
        """
        tag = env.image_ref or self.tag(env)
        if (found := await self._find(env, tag)) is None:
            async with file_lock(cache_dir() / "locks" / f"image-{_digest(tag)}"):
                if (found := await self._find(env, tag)) is None:
                    await (self._pull(env, tag) if env.image_ref else self._build(env, tag))
                    found = await self._find(env, tag)
        if found is None:
            raise EpisodeFailure(FailureKind.IMAGE_MISSING, f"env {env.name!r}: image {tag} was made, and is gone")
        await self._check_architecture(env, tag, found)
        return str(found["Id"])

    def tag(self, env: Env) -> str:
        """`agent-env/<bundle>-<env>:<digest>`; the digest covers sources and whatever else shapes the build."""
        bundle = env.path.resolve().parent.parent.name
        return f"agent-env/{_slug(bundle)}-{_slug(env.name)}:{self._sources(env)[:16]}"

    def _sources(self, env: Env) -> str:
        extra = {**self._arguments(env), **({"--platform": self.platform} if self.platform else {})}
        return _digest(env.digest, *(f"{name}={value}" for name, value in sorted(extra.items())))

    def _arguments(self, env: Env) -> dict[str, str]:
        try:
            declared = set(_ARG.findall((env.sources / env.dockerfile).read_text(errors="replace")))
        except OSError as error:
            raise ConfigError(f"envs/{env.name}/{env.dockerfile}: {error.strerror}") from error
        given = {name: value for name, value in self.build_args.items() if name in declared}
        return {**given, **env.settings.build_args}

    async def _find(self, env: Env, tag: str) -> dict[str, Any] | None:
        try:
            image: dict[str, Any] = await self.daemon.call(lambda client: client.inspect_image(tag))  # type: ignore[no-untyped-call]
        except Exception as error:
            if is_gone(error):
                return None
            raise self.daemon.failure(error, f"env {env.name!r}: looking for image {tag}") from error
        labels = (image.get("Config") or {}).get("Labels") or {}
        fits = env.image_ref is not None or labels.get(SOURCES_LABEL) == self._sources(env)
        return image if fits else None

    async def _check_architecture(self, env: Env, tag: str, image: Mapping[str, Any]) -> None:
        if self.platform is not None:
            return  # asked for by name, so it is meant
        info: dict[str, Any] = await self.daemon.call(lambda client: client.version())
        machine = _architecture(str(info.get("Arch", "")))
        built_for = _architecture(str(image.get("Architecture", "")))
        if machine and built_for and machine != built_for:
            raise EpisodeFailure(
                FailureKind.IMAGE_MISSING,
                f"env {env.name!r}: image {tag} is for {built_for}, and the Docker daemon's machine is {machine}: "
                f"have it built for {machine}",
            )

    async def _build(self, env: Env, tag: str) -> None:
        command = self.daemon.cli("build", "--force-rm", "--label", f"{SOURCES_LABEL}={self._sources(env)}", "-t", tag)
        for name, value in self.labels.items():
            command += ["--label", f"{name}={value}"]
        for name, value in self._arguments(env).items():
            command += ["--build-arg", f"{name}={value}"]
        if self.network:
            command += ["--network", self.network]
        if self.platform:
            command += ["--platform", self.platform]
        command += ["-f", str(env.sources / env.dockerfile), str(env.sources)]
        code, output = await _run(command)
        if code != 0:
            raise _build_failure(env, tag, code, output)

    async def _pull(self, env: Env, tag: str) -> None:
        platform = ["--platform", self.platform] if self.platform else []
        code, output = await _run(self.daemon.cli("pull", "-q", *platform, tag))
        if code != 0:
            kind = FailureKind.DISK_FULL if _disk_full(output) else FailureKind.IMAGE_MISSING
            raise EpisodeFailure(
                kind, f"env {env.name!r}: image {tag} is not here, and pulling it failed: {_last(output)}"
            )


def _build_failure(env: Env, tag: str, code: int, output: str) -> EpisodeFailure:
    where = f"env {env.name!r}: docker build of {tag} failed (exit {code})"
    if _disk_full(output):
        return EpisodeFailure(FailureKind.DISK_FULL, f"{where}: {_last(output)}")
    if "cannot connect to the docker daemon" in output.lower():
        return EpisodeFailure(FailureKind.PROVIDER_UNAVAILABLE, f"{where}: {_last(output)}")
    if _NOT_THERE.search(_last(output)):
        return EpisodeFailure(
            FailureKind.IMAGE_MISSING,
            f"{where}: its base image can't be had (--build-arg BASE_IMAGE=... names another): {_last(output)}",
        )
    return EpisodeFailure(FailureKind.DEPLOY_FAILED, f"{where}:\n{output[-_TAIL:].strip()}")


async def _run(command: list[str]) -> tuple[int, str]:
    """Run to the end; the exit code and the output's end. Killed with all its children when cancelled or too slow."""
    if shutil.which(command[0]) is None:
        raise EpisodeFailure(
            FailureKind.PROVIDER_UNAVAILABLE, "the docker command, which builds images, is not on PATH"
        )
    environment = {name: value for name, value in os.environ.items() if name not in {"DOCKER_HOST", "DOCKER_CONTEXT"}}
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=environment,
        start_new_session=True,
    )
    assert process.stdout is not None
    tail = bytearray()
    try:
        async with asyncio.timeout(BUILD_TIMEOUT):
            while chunk := await process.stdout.read(65_536):
                tail += chunk
                del tail[: -16 * _TAIL]
            return await process.wait(), tail.decode(errors="replace")
    except TimeoutError:
        return 124, f"{tail.decode(errors='replace')}\nnot done after {BUILD_TIMEOUT:g} s"
    finally:
        if process.returncode is None:
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


def _last(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip() and not line.startswith(_NOISE)]
    return " | ".join(lines[-3:]) or "no output"


def _disk_full(output: str) -> bool:
    return "no space left on device" in output.lower()


def _architecture(name: str) -> str:
    return _ARCHITECTURES.get(name, name)


def _slug(name: str) -> str:
    """A name as image tags allow it; never empty."""
    slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
    return slug[:40].strip("-") or "x"


def _digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
