from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from agent_env.sandbox.conformance import CHECKS, Check, Subject, run_check
from agent_env.sandbox.docker import DockerProvider

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

WAYS = ("netns", "bridge", "port")


def make(way: str) -> DockerProvider:
    """Also called in processes that the suite starts."""
    return DockerProvider(
        build_args={"BASE_IMAGE": os.environ["CONFORMANCE_BASE"]},
        labels={"agent-env.test": os.environ["CONFORMANCE_MARK"]},
        reach=way,  # type: ignore[arg-type]
    )


make_netns, make_bridge, make_port = (partial(make, way) for way in WAYS)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_docker_conforms(
    check: Check,
    way: str,
    base_image: str,
    mark: str,
    request: pytest.FixtureRequest,
    sources: Path,
    whats_there: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if way == "netns":
        request.getfixturevalue("by_netns")
    monkeypatch.setenv("CONFORMANCE_BASE", base_image)
    monkeypatch.setenv("CONFORMANCE_MARK", mark)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))

    async def left() -> Sequence[str]:
        # The network that the containers share lives as long as its provider.
        return [name for name in whats_there() if not name.startswith("network")]

    subject = Subject(
        make=partial(make, way),
        leftovers=left,
        factory=f"test_docker_conformance:make_{way}",
        kills_by_memory=True,
    )
    await run_check(check, subject, sources)
