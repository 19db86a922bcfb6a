from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent_env.errors import ConfigError, EpisodeFailure, FailureKind
from agent_env.sandbox import venvs
from agent_env.sandbox.venvs import ensure_venv, requirements_of


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AGENT_ENV_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "venvs"


@pytest.fixture
def package(tmp_path: Path) -> str:
    """A requirement that needs no index: a wheel made here."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "tiny_probe-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny_probe.py", "answer = 42\n")
        info = "tiny_probe-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-probe\nVersion: 1.0\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: x\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    return f"tiny-probe @ file://{wheel}"


def answer_of(python: Path) -> str:
    code = "import tiny_probe, sys; print(tiny_probe.answer, sys.prefix != sys.base_prefix)"
    return subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.anyio
@pytest.mark.integration
@pytest.mark.parametrize("installer", ["uv", "pip"])
async def test_a_venv_holds_its_requirements_and_is_built_once(
    cache: Path, package: str, installer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if installer == "pip":
        monkeypatch.setattr(venvs, "_uv", lambda: None)
    monkeypatch.setenv("PYTHONPATH", "/nowhere")
    monkeypatch.setenv("PIP_TARGET", "/nowhere")
    pythons = await asyncio.gather(*(ensure_venv([f" {package} ", ""]) for _ in range(3)))
    assert len(set(pythons)) == 1
    assert answer_of(pythons[0]) == "42 True"
    assert list(pythons[0].parent.parent.glob("lib/python*/site-packages/__pycache__/tiny_probe.*.pyc"))
    made = pythons[0].stat().st_ino, (pythons[0].parent.parent / "agent-env.json").stat().st_mtime_ns
    assert await ensure_venv([package]) == pythons[0]
    assert made == (pythons[0].stat().st_ino, (pythons[0].parent.parent / "agent-env.json").stat().st_mtime_ns)


@pytest.mark.anyio
@pytest.mark.integration
async def test_the_order_of_requirements_does_not_matter_and_their_text_does(cache: Path, package: str) -> None:
    one = await ensure_venv([])
    assert await ensure_venv(["  "]) == one
    assert await ensure_venv([package]) != one


@pytest.mark.anyio
@pytest.mark.integration
async def test_a_venv_without_its_mark_is_built_anew(cache: Path, package: str) -> None:
    python = await ensure_venv([package])
    folder = python.parent.parent
    (folder / "agent-env.json").unlink()
    # uv links files from its cache: never write into one.
    next(folder.glob("lib/python*/site-packages/tiny_probe.py")).unlink()
    assert await ensure_venv([package]) == python
    assert answer_of(python) == "42 True"


@pytest.mark.anyio
@pytest.mark.integration
async def test_the_installers_last_lines_are_in_the_error_and_nothing_stays(cache: Path) -> None:
    with pytest.raises(EpisodeFailure, match=r"exit code \d.*\n(.*\n)*.*no-such-file") as raised:
        await ensure_venv(["tiny-probe @ file:///no-such-file-1.0-py3-none-any.whl"])
    assert raised.value.kind is FailureKind.DEPLOY_FAILED
    assert suffixes(cache) == [".lock"]


BUILDER = """
import asyncio, sys
from agent_env.sandbox import venvs

real = venvs._commands
def slow(*args, **options):
    print("building", flush=True)
    return [["sh", "-c", "sleep 2"], *real(*args, **options)]
venvs._commands = slow
print(asyncio.run(venvs.ensure_venv(sys.argv[1:])))
"""


@contextmanager
def building(package: str) -> Iterator[subprocess.Popen[str]]:
    """Another process in the middle of a build."""
    command = [sys.executable, "-c", BUILDER, package]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as builder:
        assert builder.stdout is not None
        assert builder.stdout.readline() == "building\n"
        yield builder


def suffixes(cache: Path) -> list[str]:
    return sorted(entry.suffix for entry in cache.iterdir())


@pytest.mark.anyio
@pytest.mark.integration
async def test_a_build_that_is_killed_is_never_taken_for_good(cache: Path, package: str) -> None:
    with building(package) as builder:
        os.kill(builder.pid, signal.SIGKILL)
    assert suffixes(cache) == ["", ".lock"]
    assert answer_of(await ensure_venv([package])) == "42 True"


@pytest.mark.anyio
@pytest.mark.integration
async def test_two_processes_build_one_venv(cache: Path, package: str) -> None:
    with building(package) as builder:
        mine = await ensure_venv([package])
        assert builder.communicate()[0].strip() == str(mine)


@pytest.mark.anyio
@pytest.mark.integration
async def test_a_build_that_is_cancelled_kills_its_installer(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(venvs, "_commands", lambda *args, **options: [["sh", "-c", "sleep 300 & wait"]])
    build = asyncio.create_task(ensure_venv(["x"]))
    waiting = asyncio.create_task(ensure_venv(["x"]))
    await asyncio.sleep(0.3)
    for task in (waiting, build):
        task.cancel()
        await asyncio.wait({task})
        assert task.cancelled()
    assert suffixes(cache) == [".lock"]
    monkeypatch.undo()


def test_requirements_are_read_with_what_they_include(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "more.txt").write_text("b>=1  # why\n-r deeper.txt\n")
    (tmp_path / "sub" / "deeper.txt").write_text("c @ https://example.com/c.whl#sha256=abc\n")
    file = tmp_path / "requirements.txt"
    file.write_text(
        "\ufeff# head\n\na==1 \\\n  --hash=sha256:0\n-r sub/more.txt\n--no-binary :all:\n", encoding="utf-8"
    )
    assert requirements_of(file) == [
        "a==1    --hash=sha256:0",
        "b>=1",
        "c @ https://example.com/c.whl#sha256=abc",
        "--no-binary :all:",
    ]


@pytest.mark.parametrize("line", ["-e .", "-c limits.txt", "./local", "/abs/pkg.whl", "../up", "--constraint=x"])
def test_lines_that_name_files_beside_them_are_refused(tmp_path: Path, line: str) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text(f"a\n{line}\n")
    with pytest.raises(ConfigError, match=r"requirements\.txt"):
        requirements_of(file)


def test_files_that_are_missing_or_include_themselves_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.txt"):
        requirements_of(tmp_path / "none.txt")
    (tmp_path / "loop.txt").write_text("-r loop.txt\n")
    with pytest.raises(ConfigError, match="includes itself"):
        requirements_of(tmp_path / "loop.txt")


def test_pips_settings_reach_uv_and_what_bends_a_python_reaches_nobody() -> None:
    ours = {
        "PATH": "/bin",
        "PIP_INDEX_URL": "https://mirror.example/simple",
        "PIP_FIND_LINKS": "/wheels",
        "UV_FIND_LINKS": "/uv-wheels",
        "HTTPS_PROXY": "http://proxy",
        "SSL_CERT_FILE": "/ca.pem",
        "PYTHONPATH": "/x",
        "PYTHONHOME": "/x",
        "VIRTUAL_ENV": "/x",
        "PIP_USER": "1",
    }
    assert venvs._installer_environment(ours) == {
        "PATH": "/bin",
        "PIP_INDEX_URL": "https://mirror.example/simple",
        "UV_DEFAULT_INDEX": "https://mirror.example/simple",
        "PIP_FIND_LINKS": "/wheels",
        "UV_FIND_LINKS": "/uv-wheels",
        "HTTPS_PROXY": "http://proxy",
        "SSL_CERT_FILE": "/ca.pem",
    }
