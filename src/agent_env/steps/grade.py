"""Steps that score the episode."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from agent_env.bundle import Artifact, Bundle, Step
from agent_env.grading.scores import score_rows
from agent_env.steps.context import PromptRecord, RunContext, Verification
from agent_env.steps.deploy import not_deployed
from agent_env.steps.prompt import PromptAgent
from agent_env.steps.registry import Phase, StepModel, register

Aggregator = Literal["all_pass", "any_pass", "weighted_average"]


@register
class EnvOutcomeVerifier(StepModel):
    """Runs the task's `verify.py` against the env and scores the rows it returns."""

    type_name: ClassVar[str] = "env_outcome_verifier"
    phase: ClassVar[Phase] = "verify"
    scores: ClassVar[bool] = True
    references: ClassVar[Mapping[str, str]] = {"env_id": "envs", "file_artifact_id": "artifacts"}
    without_effect: ClassVar[frozenset[str]] = frozenset({"file_artifact_version"})

    env_id: str
    file_artifact_id: str
    score_aggregator: Aggregator = "all_pass"
    verifier_id: str | None = None
    prompt_id: str | None = None

    def problems(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        for why in not_deployed(bundle, self.env_id, earlier):
            yield f"env_id: {why}"
        artifact = bundle.artifacts.get(self.file_artifact_id)
        if artifact is not None and artifact.type != "file":
            yield f"file_artifact_id: artifact {artifact.name!r} is a {artifact.type}, not one file"
        if self.prompt_id is not None and not any(
            isinstance(step, PromptAgent) and step.prompt_id == self.prompt_id for step in earlier.values()
        ):
            yield f"prompt_id: no earlier prompt_agent step has prompt_id {self.prompt_id!r}"

    async def run(self, step: Step, context: RunContext) -> None:
        started = time.monotonic()
        artifact = context.bundle.artifacts[self.file_artifact_id]
        rows = await context.grader.verify(
            grader_file(artifact),
            f"{context.envs[self.env_id].sandbox.url}/mcp",
            run_record(context.prompts, self.prompt_id),
            step_id=step.id,
            timeout=context.deadlines.verify,
        )
        context.verifications[self.verifier_id or step.id] = Verification(
            step_id=step.id, results=rows, score=score_rows(rows, self.score_aggregator)
        )
        context.spent("verify_s", time.monotonic() - started)


def grader_file(artifact: Artifact) -> Path:
    return artifact.path / artifact.files[0]


def run_record(prompts: list[PromptRecord], prompt_id: str | None) -> dict[str, Any] | None:
    """What a grader's second argument is made of: the turns of the prompt's conversation; None without a prompt."""
    if not prompts:
        return None
    last = next((p for p in prompts if p.prompt_id == prompt_id), prompts[-1])
    turns = [p for p in prompts if p.agent_name == last.agent_name]
    return {
        "prompt_id": last.prompt_id,
        "turns": [
            {
                "number": number,
                "message": _message("user", record.prompt, "user", record.sent_at),
                "reply": None
                if record.reply is None
                else _message("agent", record.reply, record.agent_name, record.replied_at),
            }
            for number, record in enumerate(turns, start=1)
        ],
    }


def _message(role: str, text: str, author: str, sent_at: float | None) -> dict[str, Any]:
    return {
        "text": text,
        "role": role,
        "author": author,
        "sent_at": sent_at,
        "parts": [{"kind": "text", "text": text}],
    }
