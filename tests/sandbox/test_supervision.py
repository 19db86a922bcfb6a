from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agent_env.sandbox.keeper import Log, descendants, remove
from agent_env.sandbox.supervision import Keepers, Kept, KeptCommand

pytestmark = pytest.mark.anyio

ENV = {"PATH": os.environ["PATH"]}


@asynccontextmanager
async def keeping() -> AsyncIterator[Keepers]:
    keepers = Keepers()
    try:
        yield keepers
    finally:
        await keepers.aclose()


def shell(script: str, folder: Path, **options: object) -> KeptCommand:
    log = str(folder / "log")
    return KeptCommand(argv=["sh", "-c", script], env=ENV, cwd=str(folder), log=log, **options)  # type: ignore[arg-type]


def command_lines(text: str) -> list[int]:
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                words = Path(f"/proc/{entry}/cmdline").read_bytes()
            except OSError:
                continue
            if text.encode() in words:
                found.append(int(entry))
    return found


async def test_an_exit_code_and_a_signal_are_told_as_they_were(tmp_path: Path) -> None:
    async with keeping() as keepers:
        for script, code in (("exit 3", 3), ("kill -9 $$", -9), ("exit 0", 0)):
            kept = await keepers.keep(shell(script, tmp_path))
            assert (await kept.exited).code == code
            await kept.settled()


async def test_what_a_command_leaves_running_ends_with_it(tmp_path: Path) -> None:
    async with keeping() as keepers:
        kept = await keepers.keep(shell("setsid sleep 4711 & (sleep 4711 &) ; sleep 0.1; exit 2", tmp_path))
        assert (await kept.exited).code == 2
        assert not command_lines("4711")


async def test_a_command_that_can_not_be_run_is_an_error_with_its_name(tmp_path: Path) -> None:
    async with keeping() as keepers:
        with pytest.raises(OSError, match=r"no-such: No such file"):
            await keepers.keep(KeptCommand(argv=["no-such"], env=ENV, cwd=str(tmp_path), log=str(tmp_path / "log")))
        with pytest.raises(OSError, match="No such file"):
            await keepers.keep(KeptCommand(argv=["true"], env=ENV, cwd="/nowhere", log=str(tmp_path / "log")))


async def test_a_timeout_ends_it_and_says_so(tmp_path: Path) -> None:
    async with keeping() as keepers:
        kept = await keepers.keep(shell("trap '' TERM; sleep 4712", tmp_path, timeout=0.2))
        end = await kept.exited
        assert (end.timed_out, end.stopped) == (True, False)
        assert not command_lines("4712")


async def test_paths_are_removed_only_when_told_to_stop(tmp_path: Path) -> None:
    async with keeping() as keepers:
        folder = tmp_path / "folder"
        folder.mkdir()
        kept = await keepers.keep(shell("mkdir a; ln -s /etc a/etc; chmod 0 a", folder, remove=[str(folder)]))
        assert (await kept.exited).code == 0
        assert folder.exists()
        await kept.end(grace=0)
        assert not folder.exists()


async def test_a_start_that_is_cancelled_leaves_nothing_when_it_returns(tmp_path: Path) -> None:
    async with keeping() as keepers:
        await (await keepers.keep(shell("true", tmp_path))).settled()
        for microseconds in range(0, 8000, 400):
            start: asyncio.Task[Kept] = asyncio.create_task(keepers.keep(shell("exec sleep 4713", tmp_path)))
            await asyncio.sleep(microseconds / 1e6)
            start.cancel()
            await asyncio.wait({start})
            if not start.cancelled():
                await start.result().end(grace=0)
            assert not command_lines("4713")


async def test_sleeping_keepers_cost_no_processor(tmp_path: Path) -> None:
    async with keeping() as keepers:
        kept = await keepers.keep(shell("exec sleep 4714", tmp_path))
        await asyncio.sleep(0.3)
        fields = Path(f"/proc/{kept.keeper_pid}/stat").read_text().rpartition(")")[2].split()  # noqa: ASYNC240
        assert int(fields[11]) + int(fields[12]) <= 2
        await kept.end(grace=0)


def test_descendants_are_found_however_deep() -> None:
    reader, writer = os.pipe()
    child = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", "sh -c 'sleep 4715 & echo; wait' & wait"],
        ENV,
        file_actions=[(os.POSIX_SPAWN_DUP2, writer, 1)],
    )
    os.read(reader, 1)
    found = descendants(os.getpid())
    assert child in found
    assert set(command_lines("4715")) <= set(found)
    for pid in descendants(child):
        os.kill(pid, 9)
    os.waitpid(child, 0)
    for fd in (reader, writer):
        os.close(fd)


def test_a_log_holds_the_end_of_the_output_within_its_limit(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    log = Log(reader, str(tmp_path / "log"), limit=1 << 18)
    written = b""
    for number in range(40):
        block = (b"%07d\n" % number) * 4096
        os.write(writer, block[: 1 << 15])
        written += block[: 1 << 15]
        assert log.pump()
    os.close(writer)
    assert not log.pump()
    os.close(reader)
    files = sorted(tmp_path.iterdir(), key=lambda file: int(file.suffix[1:]))
    kept = b"".join(file.read_bytes() for file in files)
    assert len(files) == 2
    assert len(kept) <= 1 << 18
    assert written.endswith(kept)
    assert int(files[0].suffix[1:]) == len(written) - len(kept)


def test_removing_follows_no_link_and_gives_up_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept"
    kept.write_text("x")
    tree = tmp_path / "tree"
    (tree / "deep" / "er").mkdir(parents=True)
    (tree / "deep" / "link").symlink_to(tmp_path)
    (tree / "deep" / "er").chmod(0)
    remove(str(tree))
    assert not tree.exists()
    assert kept.read_text() == "x"
    remove(str(tree))
    monkeypatch.setattr("agent_env.sandbox.keeper.REMOVE_FOR", 0.1)
    started = time.monotonic()
    remove("/proc/self/stat")
    assert time.monotonic() - started < 2
