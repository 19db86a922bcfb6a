"""Steps that score by what was said, and by what other steps recorded."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from agent_env.bundle import Bundle, Step
from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.grading.patterns import Search, flags_of, search
from agent_env.steps.context import PromptRecord, RunContext
from agent_env.steps.grade import Aggregator, GraderStep, Row
from agent_env.steps.prompt import no_prompt
from agent_env.steps.registry import StepModel, register


class Criterion(BaseModel):
    """What a reply must hold: every needle, or a match of the pattern. Its other keys go into its row."""

    model_config = ConfigDict(extra="allow", frozen=True, strict=True)

    type: Literal["response_contains", "response_regex_present"]
    needles: list[str] = Field(default_factory=list)
    pattern: str = ""
    flags: list[str] | None = None
    """names of `re`'s flags; without them `.` matches line ends too"""

    def problems(self) -> Iterator[str]:
        if self.type == "response_contains":
            if not self.needles:
                yield "response_contains needs needles"
            return
        if not self.pattern:
            yield "response_regex_present needs a pattern"
        try:
            re.compile(self.pattern, flags_of(self.flags))
        except (re.error, ValueError) as error:
            yield f"pattern {self.pattern!r}: {error}"
        except KeyError as error:
            yield f"flags: {error} is no flag of Python's re"


@register
class AgentPromptResponseVerifier(GraderStep):
    """Looks for words and patterns in the reply to a prompt."""

    type_name: ClassVar[str] = "agent_prompt_response_verifier"

    prompt_id: str
    criteria: list[Criterion] = Field(default_factory=list)

    def problems(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        yield from super().problems(bundle, earlier)
        for why in no_prompt(self.prompt_id, earlier):
            yield f"prompt_id: {why}"
        for number, criterion in enumerate(self.criteria):
            for why in criterion.problems():
                yield f"criteria.{number}: {why}"

    def warnings(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        yield from super().warnings(bundle, earlier)
        if not self.criteria:
            yield "has no criteria, so its score is always 0"

    async def run(self, step: Step, context: RunContext) -> None:
        started = time.monotonic()
        record = replied(context, self.prompt_id, step)
        if record.failure is not None:
            self.record(step, context, [prompt_error(record.failure)])
            return
        reply = record.reply or ""
        patterns = [
            Search(criterion.pattern, reply, flags_of(criterion.flags))
            for criterion in self.criteria
            if criterion.type == "response_regex_present"
        ]
        found = iter(await search(context.grader, patterns, step_id=step.id, timeout=context.deadlines.verify))
        rows = []
        for number, criterion in enumerate(self.criteria):
            if criterion.type == "response_contains":
                missing = [needle for needle in criterion.needles if needle not in reply]
                passed, why = not missing, f"missing: {missing}" if missing else "all needles are there"
            else:
                passed = next(found) is True
                why = "the pattern matches" if passed else f"no match of {criterion.pattern!r}"
            rows.append(row_of(criterion.model_dump(exclude_unset=True), number, passed, why))
        self.record(step, context, rows)
        context.spent("verify_s", time.monotonic() - started)


@register
class AggregateVerifiers(GraderStep):
    """Scores the rows of other grader steps as if they were of one."""

    type_name: ClassVar[str] = "aggregate_verifiers"

    verifier_ids: list[str] = Field(min_length=1)
    score_aggregator: Aggregator = "weighted_average"

    def problems(self, bundle: Bundle, earlier: Mapping[str, StepModel]) -> Iterator[str]:
        yield from super().problems(bundle, earlier)
        known = [step.recorded_as(id) for id, step in earlier.items() if isinstance(step, GraderStep)]
        for name in self.verifier_ids:
            if name not in known:
                yield f"verifier_ids: no earlier grader records {name!r} (there are: {', '.join(known) or 'none'})"

    async def run(self, step: Step, context: RunContext) -> None:
        missing = [name for name in self.verifier_ids if name not in context.verifications]
        if missing:
            reason = f"step {step.id!r}: nothing was recorded for {', '.join(missing)}: did that step fail?"
            raise EpisodeFailure(FailureKind.NO_SCORE, reason)
        rows = [row for name in self.verifier_ids for row in context.verifications[name].results]
        self.record(step, context, [], counted=[row for row in rows if not row.get("skipped")])


def replied(context: RunContext, prompt_id: str, step: Step) -> PromptRecord:
    """The prompt with that id. One that the environment failed fails the step as well; one out of time does not.

    Raises:
        EpisodeFailure: the prompt's own failure, or NO_SCORE when it was never sent.
    """
    record = next((item for item in context.prompts if item.prompt_id == prompt_id), None)
    if record is None:
        raise EpisodeFailure(FailureKind.NO_SCORE, f"step {step.id!r}: prompt {prompt_id!r} was not sent")
    if record.failure is not None and record.failure.kind is not FailureKind.TURN_EXPIRED:
        raise record.failure
    return record


def prompt_error(failure: EpisodeFailure) -> Row:
    """The row in place of all criteria when the prompt got no reply in time."""
    return {"id": "prompt_error", "score": 0.0, "result": False, "message": str(failure)}


def row_of(criterion: Mapping[str, Any], number: int, passed: bool, why: str) -> Row:
    return {
        **criterion,
        "criterion_index": number,
        "score": float(passed),
        "result": passed,
        "justification": why,
    }
