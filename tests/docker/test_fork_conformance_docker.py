from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from agent_env.sandbox.conformance import CHECKS, Check, Subject, run_check
from agent_env.sandbox.docker import DockerProvider
from agent_env.sandbox.fork import Isolating

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


LOOK = """
import os
print(*os.listdir("/tmp/agent-env"), sep="\\n")
for entry in filter(str.isdigit, os.listdir("/proc")):
    try:
        if os.stat(f"/proc/{entry}").st_uid >= 20000: print("process-" + entry)
    except FileNotFoundError: pass
"""


def forking() -> Isolating:
    """Also called in processes that the suite starts."""
    docker = DockerProvider(
        build_args={"BASE_IMAGE": os.environ["CONFORMANCE_BASE"]},
        labels={"agent-env.test": os.environ["CONFORMANCE_MARK"]},
    )
    return Isolating(docker, "fork")


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
async def test_forks_in_a_container_conform(
    check: Check,
    base_image: str,
    mark: str,
    sources: Path,
    tmp_path: Path,
    whats_there: Callable[[], list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AGENT_ENV_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("CONFORMANCE_BASE", base_image)
    monkeypatch.setenv("CONFORMANCE_MARK", mark)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent))
    made: list[Isolating] = []

    def make() -> Isolating:
        made.append(forking())
        return made[-1]

    async def left() -> Sequence[str]:
        """Containers and folders, and the forks in those containers that are kept for more."""
        for provider in made:
            await provider.settled()
        hosts = [host for provider in made for host in provider.hosts]
        keeping = [host.sandbox.id for host in hosts if host.sandbox]
        found = [name for name in whats_there() if not name.startswith("network")]
        found = [name for name in found if not any(sandbox in name for sandbox in keeping)]
        folders = [path for path in (tmp_path / "state" / "forks").glob("*") if path.name not in {h.id for h in hosts}]
        for host in hosts:
            assert host.sandbox is not None
            inside = await host.sandbox.exec(["python3", "-c", LOOK], timeout=20)
            assert inside.exit_code == 0, inside.stderr
            found += inside.stdout.decode().split()
            folders += (host.folder / "control" / "logs").glob("*")
        return [*found, *map(str, folders)]

    await run_check(check, Subject(make=make, leftovers=left, factory="test_fork_conformance_docker:forking"), sources)
