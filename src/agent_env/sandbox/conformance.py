"""What every sandbox provider must do, as a suite that can be run against any of them.

    subject = Subject(make=MyProvider, leftovers=what_is_there)
    failures = await run(subject)          # {} is what you want

or one test per check, with pytest:

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    async def test_conforms(check, tmp_path):
        await run_check(check, subject, tmp_path)

A check is a coroutine function of a `Case`; its name says what it demands, and it raises AssertionError.
"""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent_env.bundle.model import Env, EnvSettings
from agent_env.sandbox.base import SandboxProvider
from agent_env.sandbox.conformance_checks import CHECKS, Case, Check

__all__ = ["CHECKS", "Case", "Check", "Subject", "conformance_env", "run", "run_check"]

ENV_NAME = "conformance"

_DOCKERFILE = """\
ARG BASE_IMAGE=python:3.12-slim
FROM ${BASE_IMAGE}
WORKDIR /app
COPY server.py .
CMD ["python3", "server.py"]
"""


@dataclass(frozen=True, slots=True)
class Subject:
    """A provider under test."""

    make: Callable[[], SandboxProvider]
    """called in the running loop, once per check"""
    leftovers: Callable[[], Awaitable[Sequence[str]]]
    """names of everything of the provider's that exists now, in this process's name or another's"""
    factory: str | None = None
    """`module:function` that makes one in another process; None: what dead owners leave is not checked"""
    kills_by_memory: bool = False
    """its `memory` limit ends the env, and it can tell"""
    memory: int = 256 << 20
    timeout: float = 60.0
    """seconds for one check"""
    patience: float = 20.0
    """seconds within it for what must be so in the end"""


async def run(subject: Subject) -> dict[str, str]:
    """Run every check; what failed, by the check's name."""
    failures = {}
    for check in CHECKS:
        folder = Path(tempfile.mkdtemp(prefix="conformance-"))
        try:
            await run_check(check, subject, folder)
        except Exception as error:
            failures[check.__name__] = f"{type(error).__name__}: {error}"
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    return failures


async def run_check(check: Check, subject: Subject, folder: Path) -> None:
    """Run one check with a provider of its own, which is closed in the end. `folder` is for the env's sources."""
    provider = subject.make()
    try:
        async with asyncio.timeout(subject.timeout):
            env = conformance_env(folder, memory=subject.memory)
            await check(
                Case(
                    provider=provider,
                    prepared=await provider.prepare(env),
                    leftovers=subject.leftovers,
                    factory=subject.factory,
                    kills_by_memory=subject.kills_by_memory,
                    patience=subject.patience,
                )
            )
    finally:
        await provider.aclose()
    left = await subject.leftovers()
    assert not left, f"left behind after the provider was closed: {left}"


def conformance_env(folder: Path, *, memory: int | None = None) -> Env:
    """Write the suite's env into `folder` / conformance, unless it is there, and describe it."""
    path = folder / ENV_NAME
    if not path.exists():
        path.mkdir(parents=True)
        shutil.copy(Path(__file__).with_name("conformance_server.py"), path / "server.py")
        (path / "Dockerfile").write_text(_DOCKERFILE)
    return Env(
        name=ENV_NAME,
        path=path,
        environment_name=ENV_NAME,
        digest=hashlib.sha256((path / "server.py").read_bytes()).hexdigest(),
        settings=EnvSettings(
            command=("python3", "server.py"), memory=memory, env={"CONFORMANCE_LITERAL": "from the file"}
        ),
    )
