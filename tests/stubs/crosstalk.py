"""Many forks that leave secrets, at once and one after another; what any of them saw of another's."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import uuid
from collections import Counter
from dataclasses import replace
from pathlib import Path

from agent_env.bundle.model import Env, EnvSettings
from agent_env.sandbox.base import Prepared, SandboxSpec
from agent_env.sandbox.conformance_checks import answers, ask
from agent_env.sandbox.fork import Isolating

NOT_ISOLATED = {"/tmp", "/var/tmp", "process cmdline"}
"""docs/isolation.md lists them: files of everybody's, and command lines"""
SERVER = Path(__file__).with_name("secret_env.py")
_DOCKERFILE = """\
ARG BASE_IMAGE=python:3.12-slim
FROM ${BASE_IMAGE}
WORKDIR /app
COPY server.py .
RUN useradd --uid 10001 runner
USER runner
CMD ["python", "server.py"]
"""


def secret_env(folder: Path, *, own_only: bool = False) -> Env:
    """`own_only`: leave out the places that all processes of a machine share."""
    if not folder.exists():
        folder.mkdir(parents=True)
        shutil.copy(SERVER, folder / "server.py")
        (folder / "Dockerfile").write_text(_DOCKERFILE)
    settings = EnvSettings(command=("python", "server.py"), preload=("json", "tempfile", "sqlite3"), pids=32)
    if own_only:
        settings = replace(settings, pids=None, env={"OWN_ONLY": "1"})
    digest = hashlib.sha256(SERVER.read_bytes()).hexdigest()
    return Env(name="secret", path=folder, environment_name="secret", digest=digest, settings=settings)


class Crosstalk:
    """Places where an episode saw the secret of one that ran at the same time, and of one that was over."""

    def __init__(self, provider: Isolating, prepared: Prepared) -> None:
        self.at_once: Counter[str] = Counter()
        self.afterwards: Counter[str] = Counter()
        self.own: Counter[str] = Counter()
        self._provider = provider
        self._prepared = prepared
        self._over: set[str] = set()

    async def play(self, episodes: int, at_once: int) -> None:
        left = iter(range(episodes))

        async def player() -> None:
            for _ in left:
                await self._episode()

        async with asyncio.TaskGroup() as group:
            for _ in range(at_once):
                group.create_task(player())

    async def _episode(self) -> None:
        secret = f"SECRET-{uuid.uuid4().hex}"
        over = set(self._over)
        sandbox = await self._provider.start(SandboxSpec(prepared=self._prepared, episode=secret))
        try:
            await answers(sandbox)
            before = await ask(sandbox, "/look")
            await ask(sandbox, f"/plant?secret={secret}")
            after = await ask(sandbox, "/look")
        finally:
            await sandbox.stop(grace=0)
            self._over.add(secret)
        self.own.update(after.pop(secret, ()))
        for found in (before, after):
            for other, places in found.items():
                (self.afterwards if other in over else self.at_once).update(places)
