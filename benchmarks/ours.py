"""Our own servers for a measurement, and the echo env alone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_env.training.nemo_gym.rows import Row, read_rows
from benchmarks.processes import Process, run, started

GYM = "agent_env.training.nemo_gym"
TEST_BASE = "agent-env-test-base:latest"
"""made by .ci/base-image, where no registry is at hand"""


@dataclass(frozen=True, slots=True)
class Chain:
    openenv: Process
    serve: Process
    rows: list[Row]

    def cpu(self) -> float:
        """CPU seconds of both servers and their helpers. In process sandboxes the envs are among them."""
        return self.openenv.cpu() + self.serve.cpu()


def base_image() -> str | None:
    """`$BASE_IMAGE`, else the one that the tests make; None: as the Dockerfile says."""
    given = os.environ.get("BASE_IMAGE")
    if given:
        return given
    there = subprocess.run(["docker", "image", "inspect", TEST_BASE], capture_output=True, check=False)
    return TEST_BASE if there.returncode == 0 else None


def provider_options() -> dict[str, Any]:
    """For a Docker provider in this process; the servers get the same as flags."""
    base = base_image()
    return {
        "build_args": {"BASE_IMAGE": base} if base else {},
        "build_network": os.environ.get("BUILD_NETWORK", "host"),
    }


def docker_flags() -> list[str]:
    options = provider_options()
    build_args = [word for name, value in options["build_args"].items() for word in ("--build-arg", f"{name}={value}")]
    return [*build_args, "--build-network", options["build_network"]]


@contextmanager
def openenv(
    bundle: Path, work: Path, sandbox: str, places: int, flags: Sequence[str] = (), script: Path | None = None
) -> Iterator[Process]:
    command = [
        *(sys.executable, "-m", "agent_env", "serve", str(bundle), "--port", "0", "--sandbox", sandbox),
        *("--max-concurrent-envs", str(places), "--log-level", "warning"),
        *(docker_flags() if sandbox == "docker" else []),
        *flags,
    ]
    with started(instead(command, script), work / "openenv.log") as process:
        yield process


@contextmanager
def chain(
    bundle: Path,
    work: Path,
    sandbox: str,
    places: int,
    flags: Sequence[str] = (),
    serve: Sequence[str] = (),
    script: Path | None = None,
) -> Iterator[Chain]:
    """Both servers; everything of theirs is in `work`. `script`: what to run in place of their modules."""
    with openenv(bundle, work, sandbox, places, flags, script) as upstream:
        shutil.rmtree(work / "gym-root", ignore_errors=True)
        written = run(sys.executable, "-m", GYM, upstream.url, str(work / "gym-root"))
        folder = Path(written.strip().splitlines()[-1].removeprefix("wrote "))
        rows = [row for path in sorted((folder / "data").glob("[!e]*.jsonl")) for row in read_rows(path)]
        with started(instead(serve_command(folder, *serve), script), work / "serve.log") as server:
            yield Chain(upstream, server, rows)


def serve_command(folder: Path, *flags: str) -> list[str]:
    return [sys.executable, "-m", GYM, "serve", str(folder), "--port", "0", "--log-level", "warning", *flags]


def instead(command: list[str], script: Path | None) -> list[str]:
    """The command with a script in place of the module that it runs (`python -m MODULE`)."""
    if script is None:
        return command
    words = ["agent-env"] if command[2] == "agent_env" else []
    return [command[0], str(script), *words, *command[3:]]
