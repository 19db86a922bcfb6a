"""Rollouts in the order and number in which prime-rl's orchestrator starts, cancels and abandons them.

What it imitates of prime-rl 0.8.1.dev67: evals are dispatched before any train rollout; rollouts in flight grow by a
group (or a tenth of the cap) every few seconds, and one that ends is replaced at once, by the next of its group's
eight; a step is a batch of clean rollouts of whole groups; after it, groups that began too many steps ago are
cancelled; an overloaded engine has the youngest cancelled; at the last step whatever is in flight is dropped, evals
excepted. A cancelled rollout goes silent: an open request loses its connection, and nobody closes the session.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from agent_env.policies import Policy
from agent_env.training.nemo_gym.client import RolloutClient, RolloutResult
from agent_env.training.nemo_gym.rows import Row


@dataclass(eq=False)
class Group:
    """Rollouts of one row; of a train row, those whose rewards are compared."""

    row: Row
    version: int
    """steps that had been made when it began"""
    split: str
    left: int
    clean: int = 0


@dataclass(frozen=True)
class Pace:
    """The settings of a run; the published ones, with seconds to be scaled by whoever has less time."""

    steps: int = 40
    max_inflight: int = 64
    group_size: int = 8
    batch_size: int = 32
    max_off_policy: int = 8
    eval_interval: int = 20
    ramp_every: float = 5.0
    overload_at: tuple[int, ...] = (10,)
    """steps after which the youngest quarter is cancelled"""


@dataclass
class Orchestrator:
    """`policy(split)` makes the policy of a rollout. After `run`, `results` holds every rollout that came to an end."""

    client: RolloutClient
    train: Sequence[Row]
    evals: Sequence[Row]
    policy: Callable[[str], Policy]
    pace: Pace
    results: dict[str, list[RolloutResult]] = field(default_factory=lambda: {"train": [], "eval": []})
    begun: Counter[str] = field(default_factory=Counter)
    """rollouts by split"""
    cancelled: Counter[str] = field(default_factory=Counter)
    """by why: stale, overload, the end"""
    step: int = 0

    def __post_init__(self) -> None:
        self._flying: dict[asyncio.Task[None], Group] = {}
        self._waiting: dict[str, list[Group]] = {"train": [], "eval": []}
        self._rows: Iterator[Row] = itertools.cycle(self.train)
        self._allowed = self.pace.group_size
        self._clean = 0
        self._landed = asyncio.Event()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            ramp = tasks.create_task(self._ramp())
            self._queue_evals()
            while self.step < self.pace.steps or self._evals_are_out():
                self._landed.clear()
                self._dispatch(tasks)
                await self._landed.wait()
            ramp.cancel()

    def _evals_are_out(self) -> bool:
        return bool(self._waiting["eval"]) or any(group.split == "eval" for group in self._flying.values())

    async def _ramp(self) -> None:
        while self._allowed < self.pace.max_inflight:
            await asyncio.sleep(self.pace.ramp_every)
            growth = max(self.pace.group_size, self.pace.max_inflight // 10)
            self._allowed = min(self.pace.max_inflight, self._allowed + growth)
            self._landed.set()

    def _queue_evals(self) -> None:
        self._waiting["eval"] += [Group(row, self.step, "eval", 1) for row in self.evals]

    def _dispatch(self, tasks: asyncio.TaskGroup) -> None:
        while len(self._flying) < self._allowed and (group := self._next()):
            self.begun[group.split] += 1
            task = tasks.create_task(self._play(group))
            self._flying[task] = group
            task.add_done_callback(self._forget)

    def _next(self) -> Group | None:
        if self._waiting["eval"]:
            return self._waiting["eval"].pop(0)
        if self.step >= self.pace.steps:
            return None
        if not self._waiting["train"]:
            group = Group(next(self._rows), self.step, "train", self.pace.group_size)
            self._waiting["train"] = [group] * self.pace.group_size
        return self._waiting["train"].pop()

    async def _play(self, group: Group) -> None:
        result = await self.client.play(group.row, self.policy(group.split), name=group.split)
        self.results[group.split].append(result)
        group.left -= 1
        group.clean += result.measured
        if group.split == "train" and group.left == 0:
            self._clean += group.clean
            if self._clean >= self.pace.batch_size and self.step < self.pace.steps:
                self._clean -= self.pace.batch_size
                self._update()

    def _forget(self, task: asyncio.Task[None]) -> None:
        del self._flying[task]
        self._landed.set()

    def _update(self) -> None:
        """The weights of one more step are there."""
        self.step += 1
        train = [(task, group) for task, group in self._flying.items() if group.split == "train"]
        stale = [task for task, group in train if self.step - group.version > self.pace.max_off_policy]
        self._cancel("stale", stale)
        if self._waiting["train"] and self.step - self._waiting["train"][0].version > self.pace.max_off_policy:
            self._waiting["train"] = []
        if self.step in self.pace.overload_at:
            youngest = [task for task, _ in train if task not in stale][-self.pace.max_inflight // 4 :]
            self._cancel("overload", youngest)
        if self.step == self.pace.steps:
            self._waiting["train"] = []
            self._cancel("the end", [task for task, _ in train])
        if self.step % self.pace.eval_interval == 0:
            self._queue_evals()

    def _cancel(self, why: str, tasks: Sequence[asyncio.Task[None]]) -> None:
        current = asyncio.current_task()
        chosen = [task for task in tasks if task is not current and not task.cancelling()]
        self.cancelled[why] += sum(task.cancel() for task in chosen)
