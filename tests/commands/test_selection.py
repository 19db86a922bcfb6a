from __future__ import annotations

from pathlib import Path

import pytest
from stubs.stub_bundle import stub_task, write_stub_bundle

from agent_env.bundle import Bundle, load_bundle
from agent_env.commands.selection import Selection, choose
from agent_env.episode import plan_bundle
from agent_env.errors import ConfigError

EVALS = {"dev": ["b", "a"], "test": ["c", "a"]}


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return load_bundle(write_stub_bundle(tmp_path / "b", tasks={name: stub_task(0) for name in "abcd"}, evals=EVALS))


def chosen(bundle: Bundle, tasks: tuple[str, ...] = (), evals: tuple[str, ...] = ()) -> Selection:
    return choose(bundle, plan_bundle(bundle), tasks=tasks, evals=evals)


def places(selection: Selection) -> list[tuple[str, str, int]]:
    return [(task.name, task.split, task.index) for task in selection.tasks]


def test_with_evals_their_tasks_run_once_and_the_others_are_left(bundle: Bundle) -> None:
    selection = chosen(bundle)
    assert places(selection) == [("b", "dev", 0), ("a", "dev", 1), ("c", "test", 0)]
    assert selection.left == ("d",)


def test_without_evals_every_task_runs(tmp_path: Path) -> None:
    bundle = load_bundle(write_stub_bundle(tmp_path / "b", evals={}))
    assert [task.split for task in chosen(bundle).tasks] == ["all"] * 3
    assert chosen(bundle).left == ()


def test_an_eval_that_is_named_leaves_the_others(bundle: Bundle) -> None:
    selection = chosen(bundle, evals=("test",))
    assert places(selection) == [("c", "test", 0), ("a", "test", 1)]
    assert selection.left == ("b", "d")


def test_a_named_task_runs_alone_at_its_place_in_an_eval_or_in_all(bundle: Bundle) -> None:
    assert places(chosen(bundle, tasks=("d", "a"))) == [("d", "all", 3), ("a", "dev", 1)]
    assert chosen(bundle, tasks=("d",)).left == ()


def test_tasks_and_evals_add_up(bundle: Bundle) -> None:
    assert [name for name, *_ in places(chosen(bundle, tasks=("d",), evals=("dev",)))] == ["d", "b", "a"]


@pytest.mark.parametrize(
    ("tasks", "evals", "words"),
    [
        (("tests",), (), "--task tests: no task 'tests' in this bundle"),
        (("A",), (), "names are case-sensitive"),
        ((), ("tes",), "did you mean 'test'"),
        ((), ("zzz",), "it has dev, test"),
    ],
)
def test_what_there_is_not_is_named(bundle: Bundle, tasks: tuple[str, ...], evals: tuple[str, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        chosen(bundle, tasks, evals)
