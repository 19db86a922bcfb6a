"""`evals/<name>.toml` and `aliases.toml`."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from agent_env.bundle.model import Eval
from agent_env.bundle.names import nfc
from agent_env.bundle.problems import Known, Problems, brief, hint
from agent_env.bundle.toml import Table, read_toml
from agent_env.bundle.tree import Node, Tree

_ALIAS = re.compile(r"[a-z0-9]([a-z0-9-]{0,62}[a-z0-9])?")


def read_eval(tree: Tree, node: Node, tasks: Known, id_root: str, problems: Problems) -> Eval | None:
    """`tasks` are the stems of every task file, those with problems too."""
    if node.stem == "all":
        problems.add(node.path, "the split `all` holds every task, so no eval can be called all; rename it")
    data = read_toml(tree, node, problems)
    if data is None:
        return None
    table = Table(data, node.path, problems)
    type = table.choice("type", ("eval",), "eval")
    declared = table.declared_id()
    listed = table.raw("tasks")
    table.close("an eval")
    if not isinstance(listed, list) or not listed:
        table.problem("needs tasks = [...], a list with at least one task's name")
        return None
    places: dict[str, int] = {}
    for place, item in enumerate(listed):
        name, why = _task_name(item, tasks, id_root)
        if why is None and name in places:
            why = f"{brief(name)} is also tasks[{places[name]}]; an eval lists a task once"
        if why is not None:
            table.problem(f"tasks[{place}]: {why}")
        else:
            places[name] = place
    return Eval(name=node.stem, tasks=tuple(places), type=type, id=declared)


def read_aliases(tree: Tree, node: Node, known: Mapping[str, Collection[str]], problems: Problems) -> dict[str, str]:
    """Short id -> `<kind>/<folder>`; `known` holds the folder names of `agents` and `envs`."""
    data = read_toml(tree, node, problems)
    aliases: dict[str, str] = {}
    for kind, table in (data or {}).items():
        if kind not in known:
            problems.add(node.path, f"unknown table [{kind}]{hint(kind, known)} (it takes [agents] and [envs])")
        elif not isinstance(table, dict):
            problems.add(node.path, f"[{kind}] must be a table of folder names to lists of aliases")
        else:
            for folder, values in table.items():
                for why in _alias_problems(kind, nfc(folder), values, known[kind], aliases):
                    problems.add(node.path, why)
    return aliases


def _task_name(item: Any, tasks: Known, id_root: str) -> tuple[str, str | None]:
    if isinstance(item, dict) and "task" in item:
        return "", f"{brief(item['task'])} is in a store, and there is none here; name a task of this bundle"
    if not isinstance(item, str) or not item:
        return "", f"must be the name of a task, not {brief(item)}"
    name = nfc(item).removeprefix(f"{id_root}/")
    if name in tasks:
        return name, None
    if name.endswith(".json") and name.removesuffix(".json") in tasks:
        return "", f"write {brief(name.removesuffix('.json'))}, without .json"
    return "", tasks.missing(name)


def _alias_problems(
    kind: str, folder: str, values: Any, folders: Collection[str], aliases: dict[str, str]
) -> list[str]:
    """Adds the good ones to `aliases`."""
    where = f"{kind}.{folder}"
    if folder not in folders:
        return [f"{where}: there is no {kind}/{folder} in this bundle{hint(folder, folders)}"]
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
        return [f"{where} must be a list of aliases, not {brief(values)}"]
    problems = []
    for value in values:
        if not _ALIAS.fullmatch(value):
            problems.append(
                f"{where}: {brief(value)} is no alias: lower-case letters, digits and '-', at most 64, "
                "with a letter or digit at both ends"
            )
        elif value in aliases:
            problems.append(f"{where}: {brief(value)} is already the alias of {aliases[value]}")
        else:
            aliases[value] = f"{kind}/{folder}"
    return problems
