"""The example of a prime-rl config, key by key against what each version of prime-rl takes."""

from __future__ import annotations

import copy
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stubs.prime_rl_schema import GROUP_SIZE, TABLES, general, leaves, problems

FILE = Path(__file__).parents[3] / "examples" / "prime_rl_gridsim.toml"
VERSION = "0.10"

Json = Any


def config() -> dict[str, Json]:
    return tomllib.loads(FILE.read_text("utf-8"))


PATHS = [path for path, _ in leaves(config(), TABLES[VERSION])]


def holder(document: Json, path: str) -> tuple[dict[str, Json], str]:
    """The table that holds the path's last key, and that key."""
    *parents, last = path.replace("[", ".[").split(".")
    for part in parents:
        document = document[int(part[1:-1])] if part.startswith("[") else document[part]
    return document, last


def changed(path: str, value: Json) -> dict[str, Json]:
    document = copy.deepcopy(config())
    table, key = holder(document, path)
    table[key] = value
    return document


def without(path: str) -> dict[str, Json]:
    document = copy.deepcopy(config())
    table, key = holder(document, path)
    del table[key]
    return document


def test_every_key_is_one_of_v0_10_0_and_fits() -> None:
    assert problems(config(), VERSION) == []
    assert len(PATHS) > 35


def test_prime_rl_0_8_differs_in_where_the_group_size_stands_alone() -> None:
    assert problems(config(), "0.8") == ["orchestrator.train.group_size: there is no such key"]
    older = without(GROUP_SIZE["0.10"])
    older["orchestrator"]["group_size"] = 8
    assert problems(older, "0.8") == []
    assert problems(older, "0.10") == ["orchestrator.group_size: there is no such key"]
    assert "up to prime-rl 0.8 this key stands under [orchestrator]" in FILE.read_text("utf-8")


@pytest.mark.parametrize("path", [path for path in PATHS if not path.startswith("inference.vllm.")])
def test_a_misspelt_key_is_named(path: str) -> None:
    document = copy.deepcopy(config())
    table, key = holder(document, path)
    table[f"{key}_"] = table.pop(key)
    assert f"{path}_: there is no such key" in problems(document, VERSION)


def wrong_values() -> Iterator[tuple[str, Json]]:
    for path, value in leaves(config(), TABLES[VERSION]):
        match value:
            case bool():
                yield path, "false"
            case int():
                yield path, str(value)
                yield path, True
            case float():
                yield path, str(value)
            case str():
                yield path, 5
            case dict():
                yield path, "text"


@pytest.mark.parametrize(("path", "value"), list(wrong_values()))
def test_a_value_of_the_wrong_type_is_named(path: str, value: Json) -> None:
    kind = TABLES[VERSION][general(path)].kind.__name__
    assert f"{path}: {value!r} is no {kind}" in problems(changed(path, value), VERSION)


@pytest.mark.parametrize("path", [path for path in PATHS if TABLES[VERSION][general(path)].required])
def test_a_key_that_is_missing_is_named(path: str) -> None:
    assert problems(without(path), VERSION) == [f"{path}: is missing"]


def test_each_key_that_must_be_there_is_there() -> None:
    here = {general(path) for path in PATHS}
    assert {name for name, key in TABLES[VERSION].items() if key.required} <= here


@pytest.mark.parametrize(
    ("path", "value", "told"),
    [
        ("orchestrator.train.sampling.temperature", 2.1, "must be from 0 to 2"),
        ("orchestrator.eval.interval", 0, "must be from 1 to inf"),
        ("orchestrator.train.source[0].env.taskset.id", "nemo_gym", "must be one of nemo-gym"),
        ("orchestrator.train.source[0].env.taskset.task.request_timeout", 0, "must be above 0"),
        ("orchestrator.train.source[0].name", "agg", "none is 'agg'"),
        ("orchestrator.batch_size", 36, "is no multiple of orchestrator.train.group_size, 8"),
        ("orchestrator.concurrency.max_inflight", 4, "is less than orchestrator.train.group_size, 8"),
        ("deployment.num_infer_gpus", 8, "9 GPUs are more than"),
    ],
)
def test_a_value_that_does_not_fit_is_named(path: str, value: Json, told: str) -> None:
    (problem,) = problems(changed(path, value), VERSION)
    assert problem.startswith(path.partition("[")[0].partition(".num_")[0])
    assert told in problem


def test_evals_without_a_source_are_refused_as_prime_rl_does() -> None:
    assert problems(without("orchestrator.eval.source"), VERSION) == ["orchestrator.eval.source: is missing"]
