"""The step that scores by what lies in a sandbox."""

from __future__ import annotations

import asyncio
import posixpath
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from pydantic import Field

from agent_env.bundle import Bundle, Step
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.grading.patterns import Search, search
from agent_env.sandbox.base import ExecResult, MapsPaths, Sandbox, path_inside
from agent_env.steps.context import RunContext
from agent_env.steps.deploy import DEFAULT_AGENT
from agent_env.steps.grade import GraderStep, Row
from agent_env.steps.registry import StepModel, register
from agent_env.steps.responses import row_of
from agent_env.steps.sandboxes import no_sandbox

HANDLED = ("probe_file_exists", "probe_dir_exists", "probe_file_contains", "bash_cmd_succeeds")
READ_LIMIT = 4 << 20
"""bytes of a file that are searched"""
_SHOWN = 200

_APP = re.compile(r"(?<![\w./~})$-])/app(?=[/:\s'\";)&|]|$)")
"""`/app` where it begins a path in a shell's text"""


class _Failed(Exception):
    """The criterion is not met; the message says why."""


@register
class VerifySandbox(GraderStep):
    """Looks for files, their text, and commands that succeed. Criteria of other types are left to other steps."""

    type_name: ClassVar[str] = "verify_sandbox"

    criteria: list[dict[str, Any]] = Field(default_factory=list)
    sandbox_name: str | None = None
    agent_name: str | None = None
    base_dir: str = "/app"
    shell_timeout_seconds: float = Field(default=120.0, gt=0)

    @property
    def sandbox(self) -> str | None:
        """A blank name counts as none."""
        return self.sandbox_name if self.sandbox_name and self.sandbox_name.strip() else None

    def problems(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        yield from super().problems(bundle, earlier)
        if self.sandbox is not None:
            for why in no_sandbox(self.sandbox, earlier):
                yield f"sandbox_name: {why}"
            if self.agent_name not in (None, "", DEFAULT_AGENT):
                yield "give either agent_name or sandbox_name"

    def unsupported(self, bundle: Bundle) -> Iterator[str]:
        if self.sandbox is None:
            yield "agents have no sandbox of their own here: probe a deploy_sandbox, named with sandbox_name"

    def warnings(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        yield from super().warnings(bundle, earlier)
        for number, criterion in enumerate(self.criteria):
            if criterion.get("type") not in HANDLED:
                yield f"criteria.{number}: type {criterion.get('type')!r} is skipped (handled: {', '.join(HANDLED)})"

    async def run(self, step: Step, context: RunContext) -> None:
        assert self.sandbox is not None
        started = time.monotonic()
        limit = context.deadlines.verify
        try:
            async with asyncio.timeout(limit):
                probes = _Probes(context, step, context.bare[self.sandbox], self.base_dir, self.shell_timeout_seconds)
                rows = [await self._row(probes, number, criterion) for number, criterion in enumerate(self.criteria)]
        except TimeoutError:
            reason = f"step {step.id!r}: not done after {limit:g} s (--verify-timeout)"
            raise EpisodeFailure(FailureKind.VERIFIER_TIMEOUT, reason) from None
        self.record(step, context, rows, counted=[row for row in rows if not row["skipped"]])
        context.spent("verify_s", time.monotonic() - started)

    async def _row(self, probes: _Probes, number: int, criterion: dict[str, Any]) -> Row:
        type = criterion.get("type")
        if type not in HANDLED:
            why = f"type {type!r} is not handled by verify_sandbox"
            return {**criterion, "criterion_index": number, "skipped": True, "justification": why}
        try:
            why = await probes.check(criterion)
        except _Failed as failed:
            return {**row_of(criterion, number, False, str(failed)), "skipped": False}
        return {**row_of(criterion, number, True, why), "skipped": False}


class _Probes:
    """Checks criteria in one sandbox. `check` says why one is met, and raises `_Failed` for one that is not."""

    def __init__(self, context: RunContext, step: Step, sandbox: Sandbox, base_dir: str, timeout: float) -> None:
        self._context = context
        self._step = step
        self._sandbox = sandbox
        self._base_dir = base_dir
        self._timeout = timeout

    async def check(self, criterion: Mapping[str, Any]) -> str:
        type = criterion["type"]
        if type == "bash_cmd_succeeds":
            return await self._command(_text(criterion, "bash_cmd"))
        paths = criterion.get("paths")
        if not isinstance(paths, list) or not paths or not all(isinstance(path, str) for path in paths):
            raise _Failed("paths must name at least one path")
        if type == "probe_file_contains":
            key = "expected" if criterion.get("expected") else "value"
            return await self._contains(paths[0], _text(criterion, key) if criterion.get(key) else "")
        return await self._exist(paths, "-d" if type == "probe_dir_exists" else "-e")

    async def _exist(self, paths: Sequence[str], flag: str) -> str:
        missing = [path for path in paths if (await self._run(["test", flag, self._inside(path)])).exit_code != 0]
        if missing:
            raise _Failed(f"missing: {missing}")
        return "all are there"

    async def _contains(self, path: str, pattern: str) -> str:
        done = await self._run(["cat", self._inside(path)], output_limit=READ_LIMIT)
        if done.exit_code != 0:
            raise _Failed(f"{path} can't be read: {_excerpt(done.stderr)}")
        if done.cut:
            raise _Failed(f"{path} is longer than {READ_LIMIT} bytes")
        text = done.stdout.decode("utf-8", "replace")
        (found,) = await search(
            self._context.grader, [Search(pattern, text)], step_id=self._step.id, timeout=self._timeout
        )
        if isinstance(found, str):
            raise _Failed(f"{pattern!r} is no regular expression: {found}")
        if not found:
            raise _Failed(f"does not contain {pattern!r}")
        return f"contains {pattern!r}"

    async def _command(self, command: str) -> str:
        if isinstance(self._sandbox, MapsPaths):
            app = self._sandbox.path("/app")
            command = _APP.sub(lambda _: app, command)
        folder = shlex.quote(self._inside(""))
        done = await self._run(["bash", "-c", f"cd {folder} && ({command}\n)"])
        said = f"exit code {done.exit_code}; stderr: {_excerpt(done.stderr)}"
        if done.exit_code != 0:
            raise _Failed(said)
        return said

    async def _run(self, argv: list[str], *, output_limit: int = 1 << 20) -> ExecResult:
        done = await self._sandbox.exec(argv, timeout=self._timeout, output_limit=output_limit)
        if done.timed_out:
            raise _Failed(f"{argv[0]} was not done after {self._timeout:g} s")
        return done

    def _inside(self, path: str) -> str:
        absolute = posixpath.join(self._base_dir, path)
        try:
            return path_inside(self._sandbox, absolute)
        except EpisodeFailure as failure:
            if failure.kind is not FailureKind.LOAD_FAILED:
                raise
            raise _Failed(failure.reason) from failure


def _text(criterion: Mapping[str, Any], key: str) -> str:
    value = criterion.get(key)
    if not isinstance(value, str) or not value:
        raise _Failed(f"{key} must be a text that is not empty")
    return value


def _excerpt(output: bytes) -> str:
    return output.decode("utf-8", "replace").strip()[:_SHOWN]
