"""What graders leave in the temp folder when their server and their keeper were both killed."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_env.grading.pool import GraderPool
from agent_env.sandbox import Isolating, temporary
from agent_env.sandbox.garbage import Item, collect
from agent_env.sandbox.ownership import owner
from agent_env.sandbox.process import ProcessProvider

pytestmark = pytest.mark.anyio

_SERVER = """
import asyncio, sys
from pathlib import Path
from agent_env.grading.pool import GraderPool

pool = GraderPool(requirements=(), workers=1)
asyncio.run(pool.verify(Path(sys.argv[1]), "u", None, step_id="g", timeout=600))
"""


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")


def records(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "state" / "temporary").iterdir())


def stands(path: Path) -> bool:
    return path.exists()


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def dead(folder: Path, tmp_path: Path) -> None:
    """As if its owner had been another process, that is gone."""
    *same, start, name = next(path for path in records(tmp_path) if path.name.endswith(folder.name)).name.split(".")
    old = tmp_path / "state" / "temporary" / ".".join((*same, start, name))
    old.rename(old.with_name(".".join((*same, str(int(start) + 1), name))))


@pytest.mark.integration
@pytest.mark.parametrize("by", ["gc", "server"])
async def test_it_is_removed_once_its_owner_is_dead_and_not_before(
    grader: Callable[[str], Path], phone: Any, tmp_path: Path, by: str
) -> None:
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", _SERVER, str(grader(phone.caller)))
    pid, child = await phone.call()
    keeper = parent_of(pid)
    (record,) = records(tmp_path)
    folder = Path(record.read_text())
    assert folder.name.startswith("agent-env-grader-")
    assert (await collect(dry_run=False)).items == []
    assert stands(folder / "home")

    os.kill(keeper, signal.SIGSTOP)
    server.kill()
    await server.wait()
    for killed in (keeper, pid, child):
        os.kill(killed, signal.SIGKILL)
    if by == "gc":
        assert (await collect(dry_run=True)).items == [Item("grader folder", str(folder))]
        assert stands(folder), "a dry run only looks"
        assert (await collect(dry_run=False)).items == [Item("grader folder", str(folder))]
    else:
        provider = Isolating(ProcessProvider())
        await provider.reap()
        await provider.aclose()
    assert not stands(folder)
    assert not records(tmp_path)


@pytest.mark.integration
async def test_a_pool_that_is_closed_leaves_neither_folder_nor_record(
    pool: GraderPool, grader: Callable[[str], Path], tmp_path: Path
) -> None:
    source = grader("async def verify(mcp_url):\n    return []")
    await pool.verify(source, "u", None, step_id="g", timeout=20)
    (record,) = records(tmp_path)
    folder = Path(record.read_text())
    assert record.name == f"{owner()}.{folder.name}"
    assert stands(folder)
    await pool.aclose()
    assert not stands(folder)
    assert not records(tmp_path)


def test_what_stands_in_its_place_and_was_not_made_by_us_stays(tmp_path: Path) -> None:
    kept, link, other = (temporary.make_folder(tmp_path, f"{name}-") for name in ("kept", "link", "other"))
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").touch()
    link.rmdir()
    link.symlink_to(target)
    for folder in (link, other):
        dead(folder, tmp_path)
    (record,) = (path for path in records(tmp_path) if path.name.endswith(other.name))
    record.write_text(str(target))
    temporary.remove_folders_of_the_dead()
    assert (kept.exists(), link.is_symlink(), other.exists(), (target / "file").exists()) == (True,) * 4
    assert len(records(tmp_path)) == 1, "of the live one"


def test_a_folder_that_cant_be_made_leaves_no_record(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        temporary.make_folder(tmp_path / "nowhere", "x-")
    assert not records(tmp_path)
