"""`tasks/<name>.json`: a JSON array of steps. Step types and their own fields are checked by `agent_env.steps`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from agent_env.bundle.model import Step, Task
from agent_env.bundle.problems import Problems, brief, hint
from agent_env.bundle.tree import Node, Tree

_COMMON = frozenset({"id", "type", "version", "depends_on", "fail_task_on_error", "retry_config"})
_RETRY_KEYS = frozenset({"retry_from_step_id", "go_to_step_id", "max_retries"})
_INT64 = range(-(2**63), 2**64)


def read_task(tree: Tree, node: Node, problems: Problems) -> Task | None:
    """None, and the problems, when the file can't be used."""
    text = tree.text(node)
    if text is None:
        return None
    try:
        data = parse_json(text)
    except ValueError as error:
        problems.add(node.path, f"not valid JSON: {error}")
        return None
    if not isinstance(data, list) or not all(isinstance(step, dict) for step in data):
        problems.add(node.path, f"a task is a JSON array of step objects, not {_kind(data)}")
        return None
    if not data:
        problems.add(node.path, "has no steps")
        return None
    before = len(problems)
    steps = _Steps(node.path, data, problems).read()
    return Task(name=node.stem, steps=steps, source=node.path) if len(problems) == before else None


def parse_json(text: str) -> Any:
    """Strict JSON: duplicate keys, NaN, numbers out of range and unpaired surrogates raise ValueError."""
    try:
        data = json.loads(
            text, object_pairs_hook=_object, parse_constant=_refuse_constant, parse_float=_float, parse_int=_int
        )
    except json.JSONDecodeError as error:
        raise ValueError(f"{error.msg} (line {error.lineno}, column {error.colno})") from None
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if "\\ud" in text or "\\uD" in text:
        _refuse_surrogates(data)
    return data


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {brief(twice)} appears twice in one object")
    return made


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _float(text: str) -> float:
    value = float(text)
    if value - value != 0:
        raise ValueError(f"the number {brief(text)} is out of range")
    return value


def _int(text: str) -> int:
    if len(text) > 18 and (len(text) > 20 or int(text) not in _INT64):
        raise ValueError(f"the number {brief(text)} is out of range")
    return int(text)


def _refuse_surrogates(value: Any) -> None:
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"the string {brief(value)} has half of a surrogate pair") from None
    elif isinstance(value, list):
        for item in value:
            _refuse_surrogates(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            _refuse_surrogates(key)
            _refuse_surrogates(item)


class _Steps:
    """Reads one task's steps, in order: a step may depend on earlier ones only."""

    def __init__(self, path: str, data: Sequence[Mapping[str, Any]], problems: Problems) -> None:
        self._path = path
        self._data = data
        self._problems = problems
        self._all = {step["id"] for step in data if isinstance(step.get("id"), str)}
        self._ancestors: dict[str, frozenset[str]] = {}
        self._label = ""

    def read(self) -> tuple[Step, ...]:
        steps: list[Step] = []
        for number, data in enumerate(self._data, 1):
            if (step := self._step(number, data)) is not None:
                steps.append(step)
        return tuple(steps)

    def _step(self, number: int, data: Mapping[str, Any]) -> Step | None:
        id = data.get("id")
        if not isinstance(id, str) or not id.strip():
            self._label = f"step {number}"
            self._problem(f"id must be a non-empty string{_not(data, 'id')}")
            return None
        self._label = f"step {id!r}"
        if id in self._ancestors:
            self._problem(f"the id is used twice (again by step {number}); ids are unique in a task")
            return None
        type = data.get("type")
        if not isinstance(type, str) or not type:
            self._problem(f"type must be a non-empty string{_not(data, 'type')}")
            type = ""
        version = data.get("version")
        if version is not None and (not isinstance(version, int) or isinstance(version, bool)):
            self._problem(f"version must be a whole number or null, not {brief(version)}")
        fatal = data.get("fail_task_on_error")
        if fatal is not None and not isinstance(fatal, bool):
            self._problem(f"fail_task_on_error must be true or false, not {brief(fatal)}")
        depends_on = self._depends_on(id, data.get("depends_on"))
        self._ancestors[id] = frozenset(depends_on).union(*(self._ancestors[before] for before in depends_on))
        return Step(
            id=id,
            type=type,
            depends_on=depends_on,
            fields={key: value for key, value in data.items() if key not in _COMMON},
            fail_task_on_error=fatal,
            retry_config=self._retry(id, data.get("retry_config")),
        )

    def _depends_on(self, id: str, value: Any) -> tuple[str, ...]:
        if value is None:
            return tuple(self._ancestors)
        if not isinstance(value, list):
            self._problem(f"depends_on must be a list of step ids, not {brief(value)}")
            return ()
        found: dict[str, None] = {}
        for item in value:
            if (before := self._dependency(id, item)) is not None:
                found[before] = None
        return tuple(found)

    def _dependency(self, id: str, item: Any) -> str | None:
        before = item.get("task_step_id") if isinstance(item, dict) else item
        if not isinstance(before, str) or (isinstance(item, dict) and len(item) > 1):
            self._problem(f'depends_on takes step ids or {{"task_step_id": "<step id>"}}, not {brief(item)}')
        elif before in self._ancestors:
            return before
        elif before == id:
            self._problem("depends_on names the step itself")
        elif before in self._all:
            self._problem(f"depends_on {brief(before)} comes later; a step may depend only on steps before it")
        else:
            self._problem(f"depends_on {brief(before)} names no step of this task{hint(before, self._all - {id})}")
        return None

    def _retry(self, id: str, value: Any) -> Mapping[str, Any] | None:
        if value is None:
            return None
        if not isinstance(value, dict):
            self._problem(f"retry_config must be an object, not {brief(value)}")
            return None
        for key in value:
            if key not in _RETRY_KEYS:
                self._problem(f"retry_config has an unknown key {brief(key)}{hint(key, _RETRY_KEYS)}")
        if "retry_from_step_id" in value and "go_to_step_id" in value:
            self._problem("retry_config takes retry_from_step_id or go_to_step_id, not both")
        target = value.get("retry_from_step_id", value.get("go_to_step_id"))
        if not isinstance(target, str):
            self._problem("retry_config needs retry_from_step_id, the id of an earlier step")
        elif target != id and target not in self._ancestors[id]:
            self._problem(f"retry_config.retry_from_step_id {brief(target)} is no step that this one depends on")
        retries = value.get("max_retries", 1)
        if not isinstance(retries, int) or isinstance(retries, bool) or retries < 0:
            self._problem(f"retry_config.max_retries must be a whole number, 0 or more, not {brief(retries)}")
        return {"retry_from_step_id": target, "max_retries": retries}

    def _problem(self, why: str) -> None:
        self._problems.add(self._path, f"{self._label}: {why}")


def _not(data: Mapping[str, Any], key: str) -> str:
    return f", not {brief(data[key])}" if key in data else ""


def _kind(data: Any) -> str:
    if isinstance(data, list):
        odd = next(item for item in data if not isinstance(item, dict))
        return f"one that holds {brief(odd)}"
    return {dict: "an object", str: "a string", bool: "a boolean", type(None): "null"}.get(type(data), "a number")
