"""Which tasks of a bundle a command plays."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from agent_env.bundle import Bundle, refs
from agent_env.episode import TaskPlan
from agent_env.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Chosen:
    """A task at its place in a split."""

    plan: TaskPlan
    split: str
    index: int

    @property
    def name(self) -> str:
        return self.plan.task.name


@dataclass(frozen=True, slots=True)
class Selection:
    tasks: tuple[Chosen, ...]
    left: tuple[str, ...]
    """tasks that are in no chosen eval"""


def choose(
    bundle: Bundle, plans: Mapping[str, TaskPlan], *, tasks: Sequence[str] = (), evals: Sequence[str] = ()
) -> Selection:
    """The named tasks and the tasks of the named evals, each once; with neither, the tasks of every eval, or every
    task where there is no eval.

    Raises:
        ConfigError: the bundle has no such task or eval, or no task at all.
    """
    for name in evals:
        if name not in bundle.evals:
            raise ConfigError(f"--eval {name}: {_unknown('eval', name, bundle.evals)}")
    named = [_task(bundle, name) for name in tasks]
    splits = list(evals) if evals or tasks else list(bundle.evals) or ["all"]
    chosen = {name: _chosen(bundle, plans, name) for name in named}
    for split in splits:
        for index, task in enumerate(bundle.splits()[split]):
            chosen.setdefault(task.name, Chosen(plans[task.name], split, index))
    if not chosen:
        raise ConfigError(f"{bundle.path}: the bundle has no task")
    left = () if tasks else tuple(name for name in bundle.tasks if name not in chosen)
    return Selection(tuple(chosen.values()), left)


def _task(bundle: Bundle, reference: str) -> str:
    name = refs.resolve(bundle, "tasks", reference)
    if name is None:
        raise ConfigError(f"--task {reference}: {refs.missing(bundle, 'tasks', reference)}")
    return name


def _chosen(bundle: Bundle, plans: Mapping[str, TaskPlan], name: str) -> Chosen:
    splits = bundle.splits()
    for split in (*bundle.evals, "all"):
        for index, task in enumerate(splits[split]):
            if task.name == name:
                return Chosen(plans[name], split, index)
    raise AssertionError(f"the split `all` lacks {name}")


def _unknown(noun: str, name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1)
    there = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(names) or 'none'}"
    return f"no {noun} of that name in this bundle; {there}"
