from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_env.bundle import Task, load_bundle
from agent_env.bundle.task import parse_json

WriteBundle = Callable[..., Path]

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.fixture
def read_task(write_bundle: WriteBundle) -> Callable[..., Task]:
    return lambda *steps: load_bundle(write_bundle({"tasks/t.json": list(steps)})).tasks["t"]


@given(JSON)
def test_every_good_json_is_read_as_it_is(value: Any) -> None:
    assert parse_json(json.dumps(value)) == value
    assert parse_json(json.dumps(value, ensure_ascii=False)) == value


@given(st.dictionaries(st.text(), st.integers(0, 9), min_size=1), st.data())
def test_a_key_given_twice_is_always_refused(value: dict[str, int], data: st.DataObject) -> None:
    again = data.draw(st.sampled_from(sorted(value)))
    text = json.dumps([{"deep": value}])[:-3] + f", {json.dumps(again)}: 0}}}}]"
    with pytest.raises(ValueError, match="appears twice in one object"):
        parse_json(text)


@given(st.text())
def test_any_text_is_read_or_refused_with_a_value_error(text: str) -> None:
    with contextlib.suppress(ValueError):
        parse_json(text)


def test_a_surrogate_pair_is_a_character() -> None:
    assert parse_json(r'"\ud83d\ude00"') == "\U0001f600"


def test_without_depends_on_a_step_depends_on_every_earlier_one(read_task: Callable[..., Task]) -> None:
    steps = [{"id": name, "type": "x"} for name in "abc"]
    assert [step.depends_on for step in read_task(*steps).steps] == [(), ("a",), ("a", "b")]


@pytest.mark.parametrize(
    ("value", "expected"),
    [([], ()), (["a"], ("a",)), ([{"task_step_id": "b"}], ("b",)), (["b", "a", "b"], ("b", "a")), (None, ("a", "b"))],
)
def test_depends_on_takes_ids_in_both_spellings(
    read_task: Callable[..., Task], value: Any, expected: tuple[str, ...]
) -> None:
    steps = [{"id": "a", "type": "x"}, {"id": "b", "type": "x"}, {"id": "c", "type": "x", "depends_on": value}]
    assert read_task(*steps).steps[2].depends_on == expected


def test_a_types_own_fields_are_kept_as_they_are(read_task: Callable[..., Task]) -> None:
    own = {"env_id": "shop", "directives": [{"args": {"x": 1.5}}], "odd": None}
    common = {"id": "a", "type": "x", "version": 3, "fail_task_on_error": False, "depends_on": []}
    step = read_task({**common, **own}).steps[0]
    assert step.fields == own
    assert (step.fail_task_on_error, step.retry_config) == (False, None)


def test_retry_is_read_in_both_spellings(read_task: Callable[..., Task]) -> None:
    steps = read_task(
        {"id": "a", "type": "x"},
        {"id": "b", "type": "x", "retry_config": {"go_to_step_id": "a"}},
        {"id": "c", "type": "x", "retry_config": {"retry_from_step_id": "c", "max_retries": 3}},
    ).steps
    assert steps[1].retry_config == {"retry_from_step_id": "a", "max_retries": 1}
    assert steps[2].retry_config == {"retry_from_step_id": "c", "max_retries": 3}


def test_a_retry_may_go_back_through_what_its_dependencies_depend_on(read_task: Callable[..., Task]) -> None:
    steps = read_task(
        {"id": "a", "type": "x"},
        {"id": "b", "type": "x", "depends_on": ["a"]},
        {"id": "c", "type": "x", "depends_on": ["b"], "retry_config": {"retry_from_step_id": "a"}},
    ).steps
    assert steps[2].retry_config is not None
