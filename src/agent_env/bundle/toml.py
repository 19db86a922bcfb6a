"""TOML files read with every key's type checked and unknown keys refused."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from agent_env.bundle.names import declared_id_problem, nfc
from agent_env.bundle.problems import Problems, brief, hint, listed
from agent_env.bundle.tree import Node, Tree

T = TypeVar("T")


def read_toml(tree: Tree, node: Node, problems: Problems) -> dict[str, Any] | None:
    """None, and a problem, when the file is not TOML."""
    text = tree.text(node)
    if text is None:
        return None
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        problems.add(node.path, f"not valid TOML: {error}")
    except RecursionError:
        problems.add(node.path, "not valid TOML: nested too deeply")
    return None


class Table:
    """Takes keys out of a TOML table one by one; `close` reports what nobody took."""

    def __init__(self, data: Mapping[str, Any], where: str, problems: Problems) -> None:
        self._data = data
        self._where = where
        self._problems = problems
        self._taken: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._data

    def raw(self, key: str) -> Any:
        self._taken.add(key)
        return self._data.get(key)

    def problem(self, why: str) -> None:
        self._problems.add(self._where, why)

    def string(self, key: str, *, required: str | None = None) -> str | None:
        """A non-empty string; `required` says what it is for."""
        if required and key not in self._data:
            self._taken.add(key)
            self.problem(f"{key} is required: {required}")
            return None
        value = self._checked(key, lambda value: isinstance(value, str) and value.strip() != "", "a non-empty string")
        return None if value is None else str(value)

    def choice(self, key: str, options: Sequence[str], default: str) -> str:
        expected = f"one of {', '.join(options)}" if len(options) > 1 else repr(options[0])
        value = self._checked(key, lambda value: value in options, expected)
        return default if value is None else str(value)

    def boolean(self, key: str, default: bool = False) -> bool:
        value = self._checked(key, lambda value: isinstance(value, bool), "true or false")
        return default if value is None else bool(value)

    def positive(self, key: str) -> float | None:
        value = self._checked(key, lambda value: _is_number(value) and 0 < value < float("inf"), "a number above 0")
        return None if value is None else float(value)

    def count(self, key: str) -> int | None:
        value = self._checked(key, lambda value: type(value) is int and value > 0, "a whole number above 0")
        return None if value is None else int(value)

    def strings(self, key: str) -> tuple[str, ...]:
        value = self._checked(key, _are_strings, "a list of non-empty strings")
        return tuple(value) if value is not None else ()

    def string_table(self, key: str) -> dict[str, str]:
        value = self._checked(key, lambda value: isinstance(value, dict), "a table of strings")
        wrong = [name for name, text in (value or {}).items() if not isinstance(text, str)]
        for name in wrong:
            self.problem(f"{key}.{name} must be a string, not {brief(value[name])}")
        return {} if wrong else dict(value or {})

    def declared_id(self) -> str | None:
        value = self.string("id")
        if value is None:
            return None
        value = nfc(value)
        if why := declared_id_problem(value):
            self.problem(f"id {brief(value)} {why}")
            return None
        return value

    def close(self, what: str) -> None:
        """Report keys that nobody took. `what` takes them: `a file artifact`."""
        for key in self._data:
            if key not in self._taken:
                known = sorted(self._taken)
                self.problem(f"unknown key {brief(key)}{hint(key, known)} ({what} takes {listed(known)})")

    def _checked(self, key: str, fits: Callable[[Any], bool], expected: str) -> Any:
        value = self.raw(key)
        if value is None or fits(value):
            return value
        self.problem(f"{key} must be {expected}, not {brief(value)}")
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) and item for item in value)
