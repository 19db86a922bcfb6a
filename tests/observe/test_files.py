from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from agent_env.observe import files
from agent_env.observe.files import RotatingFile, Unwritten


def test_files_are_rotated_and_the_oldest_goes(tmp_path: Path) -> None:
    path = tmp_path / "e.jsonl"
    file = RotatingFile(path, most_bytes=20, files=3)
    for number in range(10):
        file.write([b"line %03d\n" % number])
    file.close()
    assert sorted(each.name for each in tmp_path.iterdir()) == ["e.jsonl", "e.jsonl.1", "e.jsonl.2"]
    assert path.read_bytes() == b"line 008\nline 009\n"
    assert (tmp_path / "e.jsonl.2").read_bytes() == b"line 004\nline 005\n"


def test_many_lines_at_once_fill_one_file_after_the_other(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "e", most_bytes=20, files=5)
    file.write([b"line %03d\n" % number for number in range(7)])
    file.close()
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == [9, 18, 18, 18]


def test_a_line_longer_than_a_file_has_one_of_its_own(tmp_path: Path) -> None:
    file = RotatingFile(tmp_path / "e", most_bytes=10, files=5)
    file.write([b"a\n", b"b" * 30 + b"\n", b"c\n"])
    file.close()
    assert [path.read_bytes()[:1] for path in sorted(tmp_path.iterdir())] == [b"c", b"b", b"a"]


def test_a_torn_line_of_a_killed_process_is_closed(tmp_path: Path) -> None:
    path = tmp_path / "e"
    path.write_bytes(b'{"whole":1}\n{"to')
    file = RotatingFile(path)
    file.write([b'{"next":2}\n'])
    file.close()
    assert path.read_bytes() == b'{"whole":1}\n{"to\n{"next":2}\n'


def test_two_servers_cannot_write_one_file(tmp_path: Path) -> None:
    first = RotatingFile(tmp_path / "e")
    with pytest.raises(BlockingIOError):
        RotatingFile(tmp_path / "e")
    first.close()
    RotatingFile(tmp_path / "e").close()


def test_lines_before_a_full_disk_count_as_written_and_a_torn_one_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = RotatingFile(tmp_path / "e")
    room = [12]
    real = os.write

    def write(fd: int, data: bytes) -> int:
        if room[0] == 0:
            raise OSError(28, "No space left on device")
        done = real(fd, bytes(data)[: room[0]])
        room[0] -= done
        return done

    monkeypatch.setattr(files.os, "write", write)
    with pytest.raises(Unwritten, match="No space left") as refused:
        file.write([b"aaaa\n", b"bbbb\n", b"cccc\n", b"dddd\n"])
    assert refused.value.lost == 2
    with pytest.raises(Unwritten):
        file.write([b"eeee\n"])
    room[0] = 100
    file.write([b"ffff\n", b"gggg\n"])
    file.close()
    assert (tmp_path / "e").read_bytes() == b"aaaa\nbbbb\ncc\nffff\ngggg\n"


def test_a_new_file_that_cannot_be_opened_costs_no_older_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = RotatingFile(tmp_path / "e", most_bytes=10, files=3)
    file.write([b"line a\n", b"line b\n"])
    with monkeypatch.context() as patched:
        patched.setattr(files.os, "open", lambda *_: (_ for _ in ()).throw(OSError(24, "Too many open files")))
        for _ in range(5):
            with pytest.raises(Unwritten, match="Too many open files"):
                file.write([b"line c\n"])
    file.write([b"line d\n"])
    file.close()
    assert [path.read_bytes()[5:6] for path in sorted(tmp_path.iterdir())] == [b"d", b"b", b"a"]


@pytest.mark.parametrize("gone", [Path.unlink, lambda path: path.rename(path.with_name("moved"))])
def test_a_file_that_somebody_took_away_is_made_anew(tmp_path: Path, gone: Callable[[Path], object]) -> None:
    path = tmp_path / "e"
    file = RotatingFile(path)
    file.write([b"a\n"])
    gone(path)
    file.write([b"b\n"])
    file.close()
    assert path.read_bytes() == b"b\n"


def test_what_is_no_file_is_written_and_never_moved(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    file = RotatingFile(pipe, most_bytes=10)
    file.write([b"line a\n", b"line b\n", b"line c\n"])
    assert os.read(file._fd, 100) == b"line a\nline b\nline c\n"
    file.close()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
