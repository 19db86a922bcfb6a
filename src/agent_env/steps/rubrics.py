"""The step that has a model judge the agent's work."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from agent_env.bundle import Bundle, Step
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.grading.judge import Judge
from agent_env.grading.rubrics import Format, Row, Unusable, judge_prompt, read_verdicts, verdict_schema
from agent_env.steps.context import PromptRecord, RunContext
from agent_env.steps.grade import GraderStep
from agent_env.steps.prompt import no_prompt
from agent_env.steps.registry import StepModel, register
from agent_env.steps.responses import prompt_error, replied

TRIES = 3
"""questions until the judge's answer can be read"""
_SHOWN = 2000
"""characters of an unusable answer that the judge is shown again"""


@register
class RubricsVerifier(GraderStep):
    """Asks a judge for a verdict on each criterion. A judge that fails masks the episode."""

    type_name: ClassVar[str] = "rubrics_verifier"
    without_effect: ClassVar[frozenset[str]] = frozenset(
        {
            "max_thinking_tokens",
            "judge_sandbox_type",
            "judge_batch_size",
            "judge_batch_concurrency",
            "grade_up_to_turn",
        }
    )

    criteria: list[dict[str, Any]] = Field(min_length=1)
    prompt_id: str
    output_format: str = "rubric_binary"
    default_model: str | None = None
    default_model_api_base: str | None = None
    use_trajectory: bool = True
    use_agent_judge: bool | None = None
    judge_timeout_seconds: float = Field(default=1000.0, gt=0)
    grading_policy_prompt: str | None = None
    run_context_for_judge: list[Literal["conversation", "trigger_log"]] | None = None
    effort: str | None = None
    trajectory_filter: dict[str, Any] | None = None
    agent_name: str | None = None
    judge_a2a_agent_id: str | None = None
    context_facts_for_judge: dict[str, str] | None = None

    def problems(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        yield from super().problems(bundle, earlier)
        for why in no_prompt(self.prompt_id, earlier):
            yield f"prompt_id: {why}"
        ids = [criterion.get("id") for criterion in self.criteria]
        if not all(isinstance(id, str) and id for id in ids) or len(set(map(str, ids))) != len(ids):
            yield "criteria: each needs an id of its own, a string that is not empty"

    def unsupported(self, bundle: Bundle) -> Iterator[str]:
        if self.output_format not in ("rubric_binary", "rubric_partial"):
            yield f"output_format {self.output_format!r} is not run here: use rubric_binary or rubric_partial"
        for key in ("agent_name", "judge_a2a_agent_id"):
            if getattr(self, key):
                yield f"{key} is not run here: the judge is a model, asked directly"
        if self.context_facts_for_judge:
            yield "context_facts_for_judge is not run here: write what is known into grading_policy_prompt"
        if (self.trajectory_filter or {}).get("compaction_type") == "screenshot":
            yield "trajectory_filter: screenshots are not run here; turns are text"

    def warnings(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        yield from super().warnings(bundle, earlier)
        if self.use_agent_judge:
            yield "use_agent_judge: the judge is asked directly here, without a sandbox and tools of its own"

    def judge_problem(self, judge: Judge) -> str | None:
        """Why that judge can't be asked."""
        return judge.problem(base_url=self.default_model_api_base, model=self.default_model)

    async def run(self, step: Step, context: RunContext) -> None:
        started = time.monotonic()
        record = replied(context, self.prompt_id, step)
        if record.failure is not None:
            self.record(step, context, [prompt_error(record.failure)])
            return
        try:
            rows = await self._judged(context, record)
        except EpisodeFailure as failure:
            raise EpisodeFailure(failure.kind, f"step {step.id!r}: {failure.reason}") from failure
        self.record(step, context, rows)
        context.spent("verify_s", time.monotonic() - started)

    async def _judged(self, context: RunContext, record: PromptRecord) -> list[Row]:
        format: Format = "rubric_partial" if self.output_format == "rubric_partial" else "rubric_binary"
        question = prompt = judge_prompt(
            prompt=record.prompt,
            reply=record.reply or "",
            criteria=self.criteria,
            format=format,
            transcript=transcript(record) if self.use_trajectory else None,
            conversation=conversation(context, record) if self.run_context_for_judge else None,
            policy=self.grading_policy_prompt,
        )
        deadline = time.monotonic() + min(self.judge_timeout_seconds, context.deadlines.verify)
        why = ""
        for _ in range(TRIES):
            answer = await context.judge.ask(
                question,
                base_url=self.default_model_api_base,
                model=self.default_model,
                schema=verdict_schema(),
                timeout=max(0.001, deadline - time.monotonic()),
                arguments={"reasoning_effort": self.effort} if self.effort else None,
            )
            try:
                return read_verdicts(answer, self.criteria, format)
            except Unusable as unusable:
                why = str(unusable)
                question = (
                    f"{prompt}\n\nYour last answer can't be used: {why}. It was:\n{answer[:_SHOWN]}\n\n"
                    "Answer again, with one verdict for each criterion."
                )
        raise EpisodeFailure(FailureKind.JUDGE_FAILED, f"the judge's answer can't be used, {TRIES} times over: {why}")


def transcript(record: PromptRecord) -> str:
    """What the agent said and called in the turn, and what was answered."""
    lines = []
    for event in record.events or ():
        if "said" in event:
            lines.append(f"agent: {event['said']}")
        else:
            marked = " (error)" if event["is_error"] else ""
            lines.append(f"call: {event['tool']} {json.dumps(event['arguments'], ensure_ascii=False)}")
            lines.append(f"answer{marked}: {event['answer']}")
    return "\n".join(lines) or "(it called no tool)"


def conversation(context: RunContext, record: PromptRecord) -> str:
    """The prompts and replies up to that prompt's."""
    lines = []
    for item in context.prompts:
        if item.agent_name == record.agent_name:
            lines += [f"user: {item.prompt}", f"agent: {item.reply or ''}"]
        if item is record:
            break
    return "\n".join(lines)
