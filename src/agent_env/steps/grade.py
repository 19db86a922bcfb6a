"""Steps that score the episode with a `verify.py`, and what all grader steps have in common."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from agent_env.bundle import Artifact, Bundle, Step
from agent_env.env.failures import death, settled_state
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.grading.scores import score_rows
from agent_env.sandbox.base import exposed
from agent_env.steps.context import DeployedEnv, PromptRecord, RunContext, Verification
from agent_env.steps.deploy import not_deployed
from agent_env.steps.prompt import no_prompt
from agent_env.steps.registry import Phase, StepModel, register

Aggregator = Literal["all_pass", "any_pass", "weighted_average"]
Row = dict[str, Any]


class GraderStep(StepModel):
    """A step that records rows and a score, under `verifier_id` or else its own id."""

    phase: ClassVar[Phase] = "verify"
    scores: ClassVar[bool] = True

    score_aggregator: Aggregator = "all_pass"
    verifier_id: str | None = None

    def problems(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        if self.verifier_id == "":
            yield "verifier_id must not be empty"

    def warnings(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        for id, step in earlier.items():
            if isinstance(step, GraderStep) and self.verifier_id is not None and step.verifier_id == self.verifier_id:
                yield f"verifier_id {self.verifier_id!r} is step {id!r}'s too: its score takes the place of that one"

    def recorded_as(self, step_id: str) -> str:
        return self.verifier_id or step_id

    def record(self, step: Step, context: RunContext, rows: list[Row], counted: list[Row] | None = None) -> None:
        """Keep the rows, and the score of those that count (default: all).

        Raises:
            EpisodeFailure: SCORE_NOT_FINITE, or VERIFIER_ERROR where a score is no number.
        """
        try:
            score = score_rows(rows if counted is None else counted, self.score_aggregator)
        except EpisodeFailure as failure:
            raise EpisodeFailure(failure.kind, f"step {step.id!r}: {failure.reason}") from failure
        if not math.isfinite(score):
            reason = f"step {step.id!r}: the score is {score!r}, not a finite number"
            raise EpisodeFailure(FailureKind.SCORE_NOT_FINITE, reason)
        context.verifications[self.recorded_as(step.id)] = Verification(step_id=step.id, results=rows, score=score)


@register
class EnvOutcomeVerifier(GraderStep):
    """Runs the task's `verify.py` against the env and scores the rows it returns."""

    type_name: ClassVar[str] = "env_outcome_verifier"
    references: ClassVar[Mapping[str, str]] = {"env_id": "envs", "file_artifact_id": "artifacts"}
    without_effect: ClassVar[frozenset[str]] = frozenset({"file_artifact_version"})

    env_id: str
    file_artifact_id: str
    prompt_id: str | None = None

    def problems(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        yield from super().problems(bundle, earlier)
        for why in not_deployed(bundle, self.env_id, earlier):
            yield f"env_id: {why}"
        artifact = bundle.artifacts.get(self.file_artifact_id)
        if artifact is not None and artifact.type != "file":
            yield f"file_artifact_id: artifact {artifact.name!r} is a {artifact.type}, not one file"
        if self.prompt_id is not None:
            for why in no_prompt(self.prompt_id, earlier):
                yield f"prompt_id: {why}"

    async def run(self, step: Step, context: RunContext) -> None:
        started = time.monotonic()
        deployed = context.envs[self.env_id]
        try:
            rows = [_dead_row(deployed.dead)] if deployed.dead else await self._verify(step, context, deployed)
        except EpisodeFailure as failure:
            rows = [_dead_row(await _excused(failure, step, deployed))]
        self.record(step, context, rows)
        context.spent("verify_s", time.monotonic() - started)

    async def _verify(self, step: Step, context: RunContext, deployed: DeployedEnv) -> list[Row]:
        async with exposed(deployed.sandbox) as url:
            return await context.grader_of(deployed.env).verify(
                grader_file(context.bundle.artifacts[self.file_artifact_id]),
                f"{url}/mcp",
                run_record(context.prompts, self.prompt_id),
                step_id=step.id,
                timeout=context.deadlines.verify,
            )


async def _excused(failure: EpisodeFailure, step: Step, deployed: DeployedEnv) -> str:
    """Why a failed grader is a score all the same; else raises, with the env's end where that is the cause."""
    if failure.kind is not FailureKind.VERIFIER_ERROR:
        raise failure
    scored = deployed.env.settings.on_oom == "score"
    state = await (settled_state(deployed.sandbox) if scored else deployed.sandbox.state())
    if state.running:
        raise failure
    ended = await death(deployed.sandbox, state, f"step {step.id!r}: graded")
    if ended.kind is FailureKind.PROVIDER_OOM_KILLED and scored:
        return ended.reason
    raise ended from failure


def _dead_row(why: str) -> Row:
    return {"id": "out_of_memory", "result": False, "score": 0.0, "description": why}


def grader_file(artifact: Artifact) -> Path:
    return artifact.path / artifact.files[0]


def run_record(prompts: list[PromptRecord], prompt_id: str | None) -> dict[str, Any] | None:
    """What a grader's parameter `run` is made of: the one turn of the graded prompt, by default the last.

    None without a prompt. Other prompts are not part of it (measured on agentenv-framework 0.9.1364).
    """
    if not prompts:
        return None
    record = next((p for p in prompts if p.prompt_id == prompt_id), prompts[-1])
    reply = None if record.reply is None else _message("agent", record.reply, record.agent_name, record.replied_at)
    turn = {"number": 1, "message": _message("user", record.prompt, "user", record.sent_at), "reply": reply}
    return {"prompt_id": record.prompt_id, "turns": [turn]}


def _message(role: str, text: str, author: str, sent_at: float | None) -> dict[str, Any]:
    return {
        "text": text,
        "role": role,
        "author": author,
        "sent_at": sent_at,
        "parts": [{"kind": "text", "text": text}],
    }
