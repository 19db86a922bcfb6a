from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest
from stubs.containers import running

from agent_env.bundle.model import Env
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.base import SandboxSpec
from agent_env.sandbox.conformance import conformance_env
from agent_env.sandbox.docker import DockerProvider
from agent_env.sandbox.images import SOURCES_LABEL

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


@pytest.fixture
def env(sources: Path) -> Env:
    return conformance_env(sources)


def written(folder: Path, dockerfile: str, *, name: str = "made", digest: str = "", **more: Any) -> Env:
    path = folder / "Some Bundle.v1" / "envs" / name
    path.mkdir(parents=True, exist_ok=True)
    (path / "Dockerfile").write_text(dockerfile)
    return Env(
        name=name,
        path=path,
        environment_name=name,
        digest=digest or hashlib.sha256(dockerfile.encode()).hexdigest(),
        **more,
    )


@contextmanager
def failing(kind: FailureKind, match: str) -> Iterator[None]:
    with pytest.raises(EpisodeFailure, match=match) as caught:
        yield
    assert caught.value.kind is kind


async def test_an_image_is_built_once_per_sources_and_arguments(
    api: docker.APIClient, provider: DockerProvider, tmp_path: Path
) -> None:
    dockerfile = "FROM scratch\nARG WORD\nARG UNUSED=1\nCOPY Dockerfile /x\nLABEL word=${WORD}\n"
    env = written(tmp_path, dockerfile)
    first = await provider.prepare(env)
    again = await provider.prepare(env)
    changed = await provider.prepare(replace(env, digest="d2"))
    worded = await provider.prepare(replace(env, settings=replace(env.settings, build_args={"WORD": "hello"})))
    assert first == again
    assert len({first.key, changed.key, worded.key}) == 3
    told = api.inspect_image(worded.handle)
    assert told["Config"]["Labels"]["word"] == "hello"
    assert SOURCES_LABEL in told["Config"]["Labels"]
    assert told["RepoTags"][0].startswith("agent-env/some-bundle-v1-made:")


async def test_an_image_artifact_is_what_is_built(
    api: docker.APIClient, provider: DockerProvider, tmp_path: Path
) -> None:
    artifact = written(tmp_path, "FROM scratch\nCOPY Dockerfile /x\nLABEL of=artifact\n", name="artifact").path
    env = written(tmp_path, "FROM scratch\nCOPY absent /x\n", context=artifact)
    built = await provider.prepare(env)
    assert api.inspect_image(built.handle)["Config"]["Labels"]["of"] == "artifact"


async def test_a_build_that_others_wait_for_runs_once(
    api: docker.APIClient, options: dict[str, Any], provider: DockerProvider, tmp_path: Path, base_image: str, mark: str
) -> None:
    """Two providers here, and one in another process."""
    dockerfile = f"FROM {base_image}\nRUN sleep 1; head -c 16 /dev/urandom > /random\n"
    env = written(tmp_path, dockerfile, digest=f"once-{mark}")
    code = (
        "import asyncio, sys; from pathlib import Path\n"
        "from agent_env.bundle.model import Env; from agent_env.sandbox.docker import DockerProvider\n"
        "env = Env(name='made', path=Path(sys.argv[1]), environment_name='made', digest=sys.argv[2])\n"
        "async def main():\n"
        "    provider = DockerProvider(labels={'agent-env.test': sys.argv[3]})\n"
        "    print((await provider.prepare(env)).handle); await provider.aclose()\n"
        "asyncio.run(main())"
    )
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, str(env.path), env.digest, mark, stdout=asyncio.subprocess.PIPE
    )
    other = DockerProvider(**options)
    prepared = await asyncio.gather(*(maker.prepare(env) for maker in (provider, other, provider)))
    await other.aclose()
    output, _ = await process.communicate()
    assert {entry.handle for entry in prepared} == {output.decode().strip()}


async def test_a_failing_build_shows_its_last_lines(provider: DockerProvider, tmp_path: Path, base_image: str) -> None:
    env = written(tmp_path, f"FROM {base_image}\nRUN echo the reason for it; exit 9\n")
    with failing(FailureKind.DEPLOY_FAILED, r"(?s)env 'made': docker build .* failed .*the reason for it"):
        await provider.prepare(env)


async def test_a_base_image_that_cannot_be_had_is_named(provider: DockerProvider, tmp_path: Path) -> None:
    env = written(tmp_path, "FROM agent-env-test-nowhere:1\n")
    with failing(FailureKind.IMAGE_MISSING, r"env 'made'.*base image can't be had .--build-arg BASE_IMAGE="):
        await provider.prepare(env)


async def test_an_image_that_cannot_be_pulled_is_named(provider: DockerProvider, tmp_path: Path) -> None:
    env = written(tmp_path, "", image_ref="agent-env-test-nowhere:1")
    with failing(FailureKind.IMAGE_MISSING, "image agent-env-test-nowhere:1 is not here, and pulling it failed: "):
        await provider.prepare(env)


async def test_a_named_image_that_is_here_is_taken_as_it_is(
    provider: DockerProvider, tmp_path: Path, base_image: str, api: docker.APIClient
) -> None:
    prepared = await provider.prepare(written(tmp_path, "", image_ref=base_image))
    assert prepared.handle == api.inspect_image(base_image)["Id"]


async def test_an_image_for_another_architecture_is_refused_before_the_first_start(
    provider: DockerProvider, tmp_path: Path, api: docker.APIClient, mark: str
) -> None:
    (tmp_path / "Dockerfile").write_text("FROM scratch\nCOPY Dockerfile /x\n")
    other = "arm64" if api.version()["Arch"] == "amd64" else "amd64"
    tag = f"agent-env-test-{other}:{mark}"
    for line in api.build(
        str(tmp_path), tag=tag, platform=f"linux/{other}", labels={"agent-env.test": mark}, decode=True, rm=True
    ):
        assert "error" not in line
    with failing(FailureKind.IMAGE_MISSING, f"image {tag} is for {other}, and the Docker daemon's machine is"):
        await provider.prepare(written(tmp_path, "", image_ref=tag))


async def test_an_image_that_was_pruned_is_made_again(
    api: docker.APIClient, provider: DockerProvider, sources: Path, env: Env, mark: str
) -> None:
    own = replace(env, digest=f"pruned-{mark}")
    prepared = await provider.prepare(own)
    api.remove_image(prepared.handle, force=True)
    sandbox = await provider.start(SandboxSpec(prepared=prepared, episode="test"))
    await sandbox.stop(grace=0)
    async with running(provider, own) as again:
        assert (await again.state()).running


async def test_a_named_image_that_was_pruned_and_cannot_be_pulled_is_named(
    api: docker.APIClient, provider: DockerProvider, tmp_path: Path, base_image: str, mark: str
) -> None:
    tag = f"agent-env-test-gone:{mark}"
    prepared = await provider.prepare(written(tmp_path, "", image_ref=base_image, digest=f"named-{mark}"))
    gone = replace(prepared, handle="sha256:" + "0" * 64, env=replace(prepared.env, image_ref=tag))
    with failing(FailureKind.IMAGE_MISSING, f"image {tag} is not here"):
        await provider.start(SandboxSpec(prepared=gone, episode="test"))


async def test_a_cancelled_build_ends_its_process(
    provider: DockerProvider, tmp_path: Path, base_image: str, mark: str
) -> None:
    env = written(tmp_path, f"FROM {base_image}\nRUN sleep 120\n", digest=f"cancelled-{mark}")
    task = asyncio.ensure_future(provider.prepare(env))
    await asyncio.wait({task}, timeout=1.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    listed = await asyncio.create_subprocess_exec("pgrep", "-f", str(env.path), stdout=asyncio.subprocess.PIPE)
    output, _ = await listed.communicate()
    assert output == b""
