from __future__ import annotations

import errno
from pathlib import Path

import pytest

from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.layout import Layout, storage_failure


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    source = tmp_path / "source"
    (source / "pkg" / "__pycache__").mkdir(parents=True)
    (source / ".git").mkdir()
    (source / "server.py").write_text("x = 1\n")
    (source / "pkg" / "m.py").write_text("y = 2\n")
    made = Layout(tmp_path / "sandboxes", "abc")
    made.parent.mkdir()
    made.make(source, owner="me", deadline=1.0, episode="e")
    return made


def test_the_env_gets_a_copy_of_its_own_and_folders_to_write_in(layout: Layout) -> None:
    assert (layout.app / "server.py").read_text() == "x = 1\n"
    assert sorted(p.name for p in layout.app.rglob("*")) == ["m.py", "pkg", "server.py"]
    assert {p.name for p in layout.root.iterdir()} == {"app", "home", "tmp", "data"}
    assert '"owner": "me"' in layout.owner_file.read_text()


@pytest.mark.parametrize(
    ("path", "lies_at"),
    [
        ("/data/day.json", "data/day.json"),
        ("/app/server.py", "app/server.py"),
        ("x/y", "app/x/y"),
        (".", "app"),
        ("/", ""),
        ("../data/z", "data/z"),
    ],
)
def test_paths_are_meant_from_the_sandboxes_root(layout: Layout, path: str, lies_at: str) -> None:
    assert layout.inside(path) == (layout.root / lies_at).resolve()


def test_a_path_that_the_sandbox_itself_sees_stays_what_it_is(layout: Layout) -> None:
    assert layout.inside(str(layout.root / "data" / "x")) == layout.root / "data" / "x"


@pytest.mark.parametrize("path", ["../../../x", "/../x", "/app/../../x", "/link/passwd", "/app/out"])
def test_paths_that_lead_out_are_refused(layout: Layout, path: str) -> None:
    (layout.root / "link").symlink_to("/etc")
    (layout.app / "out").symlink_to("/etc/passwd")
    for use in (lambda: layout.read(path, 10), lambda: layout.write(path, b"x", 0o644)):
        with pytest.raises(EpisodeFailure, match="leads out") as raised:
            use()
        assert raised.value.kind is FailureKind.LOAD_FAILED


def test_what_is_written_can_be_read_with_its_mode_and_within_the_limit(layout: Layout) -> None:
    layout.write("/data/deep/er/x", b"12345", 0o755)
    assert layout.read("/data/deep/er/x", 5) == b"12345"
    assert (layout.root / "data/deep/er/x").stat().st_mode & 0o777 == 0o755
    with pytest.raises(EpisodeFailure, match="larger than 4"):
        layout.read("/data/deep/er/x", 4)
    with pytest.raises(EpisodeFailure, match="No such file"):
        layout.read("/data/none", 4)


def test_the_logs_tail_says_what_it_left_out(layout: Layout) -> None:
    assert layout.log_tail(10) == ""
    (layout.folder / "output.0").write_bytes(b"a" * 90)
    (layout.folder / "output.90").write_bytes(b"b" * 10)
    assert layout.log_tail(100) == "a" * 90 + "b" * 10
    assert layout.log_tail(12) == "[88 earlier bytes left out]\naa" + "b" * 10
    (layout.folder / "output.0").unlink()
    assert layout.log_tail(100) == "[90 earlier bytes left out]\n" + "b" * 10


def test_a_full_disk_has_a_kind_of_its_own() -> None:
    full = storage_failure(OSError(errno.ENOSPC, "No space left on device"), "x", FailureKind.LOAD_FAILED)
    other = storage_failure(OSError(errno.EACCES, "Permission denied"), "x", FailureKind.LOAD_FAILED)
    assert (full.kind, other.kind) == (FailureKind.DISK_FULL, FailureKind.LOAD_FAILED)
