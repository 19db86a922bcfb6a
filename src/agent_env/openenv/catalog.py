"""The tasks that an OpenEnv server serves, by split and index, and how their scores become one reward."""

from __future__ import annotations

import hashlib
import logging
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent_env.bundle import Bundle, Env, load_bundle
from agent_env.episode.plan import TaskPlan, plan_bundle
from agent_env.errors import BundleError, EpisodeFailure, FailureKind

log = logging.getLogger(__name__)

Reward = str | Callable[[dict[str, float]], float] | None


@dataclass(frozen=True, slots=True)
class Entry:
    """One playable task at its place in a split."""

    plan: TaskPlan
    split: str
    index: int

    @property
    def task(self) -> dict[str, Any]:
        name = self.plan.task.name
        return {"id": name, "name": name, "split": self.split, "index": self.index}

    @property
    def row(self) -> dict[str, Any]:
        """What the Task API says of it: shape as agentenv-framework 0.9.1364, plus `toolset` and `turns`."""
        prompt, system_prompt = self.plan.prompts[0]
        return {
            "id": self.plan.task.name,
            "name": self.plan.task.name,
            "index": self.index,
            "prompt": prompt,
            "system_prompt": system_prompt,
            "agent": self.plan.agent,
            "toolset": self.plan.toolset,
            "turns": len(self.plan.prompts),
        }


class Catalog:
    """Every playable task of one bundle, or of one bundle per split."""

    def __init__(self, bundles: Mapping[str, Bundle], splits: Mapping[str, tuple[Entry, ...]], reward: Reward) -> None:
        self.splits = dict(splits)
        self.name = "+".join(dict.fromkeys(bundle.name for bundle in bundles.values())).replace(".", "-")
        self.description = next(iter(bundles.values())).description
        self.digest = _joined_digest(bundles)
        self._reward = reward
        plans = {id(entry.plan): entry.plan for entries in splits.values() for entry in entries}
        self.plans = tuple(plans.values())
        self._check_reward()

    @classmethod
    def load(cls, source: str | Path | Mapping[str, str | Path], reward: Reward = None) -> Catalog:
        """Read the bundle, or one bundle a split, and plan every task.

        Tasks that can't be played are left out with a warning.

        Raises:
            BundleError: a bundle is wrong, or no task of it can be played.
            ValueError: `reward` does not fit the tasks' scoring steps.
        """
        if isinstance(source, Mapping):
            bundles = {split: load_bundle(path) for split, path in source.items()}
            splits = {split: _entries(split, _playable(bundle)) for split, bundle in bundles.items()}
        else:
            bundle = load_bundle(source)
            bundles = {"all": bundle}
            plans = _playable(bundle)
            splits = {
                split: _entries(split, {t.name: plans[t.name] for t in tasks if t.name in plans})
                for split, tasks in bundle.splits().items()
            }
        return cls(bundles, splits, reward)

    @property
    def envs(self) -> tuple[Env, ...]:
        """Every env that a playable task deploys."""
        found: dict[str, Env] = {}
        for plan in self.plans:
            assert plan.task.bundle is not None
            for name in plan.env_names:
                env = plan.task.bundle.envs[name]
                found[env.digest] = env
        return tuple(found.values())

    def entry(self, split: str | None, index: int | None) -> Entry:
        """The task at (split, index); neither given: the first task of the first split that has one.

        Raises:
            ValueError: naming the splits, or the range of indices.
        """
        if split is None and index is None:
            return next(entries[0] for entries in self.splits.values() if entries)
        if split is None or index is None:
            raise ValueError("give both split and index, or neither")
        if not isinstance(split, str) or split not in self.splits:
            raise ValueError(f"no split {split!r}; splits: {', '.join(self.splits)}")
        entries = self.splits[split]
        if isinstance(index, bool) or not isinstance(index, int) or not 0 <= index < len(entries):
            raise ValueError(f"no index {index!r} in split {split!r}: it has tasks 0 to {len(entries) - 1}")
        return entries[index]

    def reward(self, plan: TaskPlan, scores: dict[str, float]) -> float | None:
        """One number of the episode's scores; None when the task records none.

        Raises:
            EpisodeFailure: the number is missing or not finite, or the reward function raised.
        """
        if callable(self._reward):
            try:
                value: Any = self._reward(dict(scores))
            except Exception as error:
                reason = f"the reward function raised {type(error).__name__}: {error}"
                raise EpisodeFailure(FailureKind.VERIFIER_ERROR, reason) from error
        else:
            step = self._reward if self._reward is not None else next(iter(plan.scoring), None)
            if step is None:
                return None
            if step not in scores:
                raise EpisodeFailure(FailureKind.NO_SCORE, f"step {step!r} recorded no score")
            value = scores[step]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise EpisodeFailure(FailureKind.SCORE_NOT_FINITE, f"the reward is {value!r}, not a finite number")
        return float(value)

    def _check_reward(self) -> None:
        for plan in self.plans:
            steps = ", ".join(plan.scoring) or "none"
            if self._reward is None and len(plan.scoring) > 1:
                raise ValueError(f"task {plan.task.name!r} has several scoring steps ({steps}): choose with reward=")
            if isinstance(self._reward, str) and self._reward not in plan.scoring:
                raise ValueError(
                    f"reward={self._reward!r}: task {plan.task.name!r} has no such scoring step (it has: {steps})"
                )


def _playable(bundle: Bundle) -> dict[str, TaskPlan]:
    plans = plan_bundle(bundle)
    playable: dict[str, TaskPlan] = {}
    left_out: list[str] = []
    warned: set[str] = set()
    for name, plan in plans.items():
        reasons = list(plan.unsupported)
        if not plan.prompts and not reasons:
            reasons = [f"{plan.task.source}: it prompts no agent"]
        if reasons:
            left_out += reasons
            log.warning("left out: %s", "; ".join(reasons))
            continue
        playable[name] = plan
        for line in plan.warnings:
            why = line.split(": ", 1)[1]
            if why not in warned:
                warned.add(why)
                log.warning("%s", line)
    if not playable:
        raise BundleError(left_out or [f"{bundle.path}: the bundle has no task"])
    if len(playable) < len(plans):
        log.warning("bundle %s: %d of %d tasks left out", bundle.name, len(plans) - len(playable), len(plans))
    return playable


def _entries(split: str, plans: Mapping[str, TaskPlan]) -> tuple[Entry, ...]:
    return tuple(Entry(plan, split, index) for index, plan in enumerate(plans.values()))


def _joined_digest(bundles: Mapping[str, Bundle]) -> str:
    if len(bundles) == 1:
        return next(iter(bundles.values())).digest
    joined = "\n".join(f"{split} {bundle.digest}" for split, bundle in sorted(bundles.items()))
    return hashlib.sha256(joined.encode()).hexdigest()
