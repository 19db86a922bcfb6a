"""`agent-env episodes --regrade`: scores logged sessions again and says what differs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agent_env.bundle import Bundle, load_bundle
from agent_env.commands.episodes import Ground, opened, play_task
from agent_env.commands.logged import LoggedTurn, Unusable, logged_turns
from agent_env.commands.offline import OfflineGraders
from agent_env.commands.outcomes import Outcome, Status
from agent_env.commands.seat import Seat
from agent_env.commands.selection import Chosen
from agent_env.episode import EpisodeError, Runtime, TaskPlan, plan_bundle
from agent_env.errors import EpisodeFailure
from agent_env.observe.reading import Entry
from agent_env.tables import align
from agent_env.training.nemo_gym.names import tool_aliases

_SAME = 1e-9
_NAMED = 3
"""sessions that a reason names"""


@dataclass(slots=True)
class Logged:
    """A session that can be scored again."""

    entry: Entry
    plan: TaskPlan
    turns: list[LoggedTurn]
    scores: Mapping[str, float]


@dataclass(slots=True)
class Found:
    """What came of it."""

    same: int = 0
    differing: list[tuple[Logged, str, float | None, float | None]] = field(default_factory=list)
    """session, step, the score then and now"""
    left: dict[str, list[str]] = field(default_factory=dict)
    """sessions, or steps of them, that were not scored again, by the reason"""
    other_bundle: int = 0

    def leave(self, entry: Entry, why: str) -> None:
        self.left.setdefault(why, []).append(entry.name)

    def compare(self, logged: Logged, now: Mapping[str, float], steps: Sequence[str]) -> None:
        """The scores of those steps, then and now."""
        differing = [step for step in steps if not _same(logged.scores.get(step), now.get(step))]
        self.differing += [(logged, step, logged.scores.get(step), now.get(step)) for step in differing]
        self.same += not differing

    def report(self, bundle: str) -> str:
        parts = []
        if self.differing:
            rows = [["session", "task", "step", "then", "now"]]
            rows += [
                [logged.entry.name, logged.plan.task.name, step, _number(then), _number(now)]
                for logged, step, then, now in self.differing
            ]
            parts.append(align(rows, left=(0, 1, 2)))
        for why, names in self.left.items():
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            parts.append(f"not scored again: {', '.join(names[:_NAMED])}{more}: {why}")
        if self.other_bundle:
            parts.append(f"{self.other_bundle} of them were played with another state of the bundle than {bundle} has")
        changed = len({id(logged) for logged, *_ in self.differing})
        left = len({name for names in self.left.values() for name in names})
        parts.append(f"scored again: {self.same + changed}, the same: {self.same}, different: {changed}, left: {left}")
        return "\n".join(parts)


async def regrade_entries(bundle: str, entries: Sequence[Entry], ground: Ground | None) -> bool:
    """Prints what differs; `ground` is where to play the calls again, None grades without. False when a score differs.

    Raises:
        BundleError: the bundle is wrong.
        AgentEnvError: nothing can be played again at all: no sandbox.
    """
    found = Found()
    sessions = _usable(load_bundle(bundle), entries, found)
    if ground is None:
        await _grade(sessions, found)
    else:
        await _replay(sessions, ground, found)
    print(found.report(bundle))
    return not found.differing


def _usable(bundle: Bundle, entries: Sequence[Entry], found: Found) -> list[Logged]:
    plans = plan_bundle(bundle)
    sessions = []
    for entry in entries:
        line = entry.load()
        if not line.get("scores"):
            found.leave(entry, f"it was {entry.fate}: there is no score to compare with")
            continue
        try:
            plan = _plan(bundle, plans, line.get("task"), line.get("split"), line.get("index"))
            turns = logged_turns(line, len(plan.prompts))
        except Unusable as unusable:
            found.leave(entry, str(unusable))
            continue
        except (KeyError, TypeError, ValueError, AttributeError):
            found.leave(entry, "its line is none that this version writes")
            continue
        found.other_bundle += line.get("bundle") not in (None, bundle.digest)
        sessions.append(Logged(entry, plan, turns, line["scores"]))
    return sessions


def _plan(
    bundle: Bundle, plans: Mapping[str, TaskPlan], name: str | None, split: str | None, index: int | None
) -> TaskPlan:
    """A row without a name tells its task's place among those that a server plays. Raises `Unusable`."""
    if name not in plans and split is not None and index is not None:
        playable = [task.name for task in bundle.splits().get(split, ()) if _playable(plans[task.name])]
        name = playable[index] if 0 <= index < len(playable) else name
    plan = plans.get(name or "")
    if plan is None:
        raise Unusable(f"the bundle has no task {name!r}")
    if plan.unsupported:
        raise Unusable("; ".join(plan.unsupported))
    return plan


def _playable(plan: TaskPlan) -> bool:
    return bool(plan.prompts) and not plan.unsupported


async def _grade(sessions: Sequence[Logged], found: Found) -> None:
    async with OfflineGraders.opened() as graders:
        for logged in sessions:
            for why in graders.reasons(logged.plan):
                found.leave(logged.entry, why)
            steps = [planned.step.id for planned in graders.gradable(logged.plan)]
            if not steps:
                continue
            try:
                found.compare(logged, await graders.grade(logged.plan, logged.turns), steps)
            except EpisodeFailure as failure:
                found.leave(logged.entry, str(failure))


async def _replay(sessions: Sequence[Logged], ground: Ground, found: Found) -> None:
    plans = {logged.plan.task.name: logged.plan for logged in sessions}
    if not plans:
        return
    jobs = iter(sessions)
    async with opened(ground, plans.values()) as runtime, asyncio.TaskGroup() as group:
        for _ in range(min(ground.places, len(sessions))):
            group.create_task(_play_all(jobs, runtime, found))


async def _play_all(jobs: Iterator[Logged], runtime: Runtime, found: Found) -> None:
    for logged in jobs:
        ended: list[Outcome] = []
        chosen = Chosen(logged.plan, "replay", logged.entry.n)
        await play_task(chosen, runtime, LoggedPlayer(logged.turns), ended.append)
        (outcome,) = ended
        if outcome.scores or outcome.status is not Status.FAILED:
            found.compare(logged, outcome.scores, sorted({*logged.scores, *outcome.scores}))
        else:
            found.leave(logged.entry, f"it failed now: {outcome.kind}: {outcome.reason}")


class LoggedPlayer:
    """Makes the calls that a session made, and gives its replies."""

    name = "replay"

    def __init__(self, turns: Sequence[LoggedTurn]) -> None:
        self._turns = turns

    async def play(self, seat: Seat, task: Chosen) -> None:
        for turn in self._turns:
            names = {tool.name for tool in seat.turn.list()}
            aliases = tool_aliases(names)
            for call in turn.calls:
                try:
                    await seat.turn.call(aliases.get(call.name, call.name), call.arguments)
                except EpisodeError:  # the turn's time was up, and its env has that scored
                    break
            if await seat.end(turn.reply) is None:
                return

    async def aclose(self) -> None:
        """Holds nothing."""


def _same(then: float | None, now: float | None) -> bool:
    return then is not None and now is not None and abs(then - now) <= _SAME


def _number(score: float | None) -> str:
    return "-" if score is None else f"{score:.9g}"
