"""Grades a logged session without an env: by the graders that look at what was said and called, and at nothing else."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any, cast

from agent_env.bundle import Bundle
from agent_env.commands.logged import LoggedTurn
from agent_env.episode import TaskPlan
from agent_env.episode.calls import excerpt
from agent_env.episode.plan import PlannedStep
from agent_env.grading.judge import Judge
from agent_env.grading.pools import GraderPools
from agent_env.limits import Deadlines
from agent_env.steps.context import PromptRecord, RunContext
from agent_env.steps.grade import GraderStep
from agent_env.steps.prompt import PromptAgent
from agent_env.steps.responses import AgentPromptResponseVerifier, AggregateVerifiers
from agent_env.steps.rubrics import RubricsVerifier

_OF_WHAT_WAS_SAID = (AgentPromptResponseVerifier, RubricsVerifier)


class OfflineGraders:
    """The graders' processes and the judge, shared by all sessions."""

    def __init__(self) -> None:
        self._pools = GraderPools()
        self.judge = Judge()

    @classmethod
    @contextlib.asynccontextmanager
    async def opened(cls) -> AsyncIterator[OfflineGraders]:
        made = cls()
        try:
            yield made
        finally:
            await made._pools.aclose()
            await made.judge.aclose()

    async def grade(self, plan: TaskPlan, turns: Sequence[LoggedTurn]) -> dict[str, float]:
        """Scores by step id, of the steps that can be graded so. Raises EpisodeFailure."""
        bundle = plan.task.bundle
        assert bundle is not None
        context = self._context(bundle)
        prompts = [planned for planned in plan.steps if isinstance(planned.model, PromptAgent)]
        for planned, turn in zip(prompts, turns, strict=True):
            context.prompts.append(_prompt_record(planned, turn))
        for planned in self.gradable(plan):
            await planned.model.run(planned.step, context)
        return {v.step_id: v.score for v in context.verifications.values()}

    def gradable(self, plan: TaskPlan) -> Iterator[PlannedStep]:
        recorded: set[str] = set()
        for planned in plan.steps:
            model = planned.model
            if isinstance(model, GraderStep) and self._why_not(planned, recorded) is None:
                recorded.add(model.recorded_as(planned.step.id))
                yield planned

    def reasons(self, plan: TaskPlan) -> list[str]:
        """Why each other grader can't be run again."""
        gradable = list(self.gradable(plan))
        recorded = {p.model.recorded_as(p.step.id) for p in gradable if isinstance(p.model, GraderStep)}
        return [
            why
            for planned in plan.steps
            if isinstance(planned.model, GraderStep) and (why := self._why_not(planned, recorded)) is not None
        ]

    def _why_not(self, planned: PlannedStep, recorded: set[str]) -> str | None:
        model, id = planned.model, planned.step.id
        if isinstance(model, RubricsVerifier) and (problem := model.judge_problem(self.judge)):
            return f"step {id!r}: {problem}"
        if isinstance(model, AggregateVerifiers):
            missing = [name for name in model.verifier_ids if name not in recorded]
            return f"step {id!r} needs {', '.join(missing)}" if missing else None
        if isinstance(model, _OF_WHAT_WAS_SAID):
            return None
        return f"step {id!r} reads the env's state: --replay plays the calls again"

    def _context(self, bundle: Bundle) -> RunContext:
        """With nothing in it that only a running env has: no grader that gets here asks for that."""
        nothing = cast(Any, None)
        return RunContext(
            episode_id="offline",
            bundle=bundle,
            provider=nothing,
            prepared={},
            pool=nothing,
            starting=nothing,
            grader=self._pools.default,
            grader_of=self._pools.of,
            judge=self.judge,
            deadlines=Deadlines(),
            hand_out=nothing,
            stop=nothing,
        )


def _prompt_record(planned: PlannedStep, turn: LoggedTurn) -> PromptRecord:
    model = cast(PromptAgent, planned.model)
    return PromptRecord(
        step_id=planned.step.id,
        prompt_id=model.prompt_id or planned.step.id,
        agent_name=model.agent_name,
        prompt=model.prompt or "",
        system_prompt=model.system_prompt,
        sent_at=0.0,
        reply=turn.reply,
        replied_at=0.0,
        tool_calls=len(turn.calls),
        events=[
            {
                "tool": call.name,
                "arguments": excerpt(call.arguments),
                "answer": excerpt(call.output),
                "is_error": call.error is not None,
            }
            for call in turn.calls
        ],
    )
