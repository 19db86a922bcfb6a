"""`envs/<name>/agent-env.toml`: how this toolkit runs the env. Other readers of the bundle pass it over."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from agent_env.bundle.model import EnvSettings
from agent_env.bundle.problems import Problems, brief, hint
from agent_env.bundle.toml import Table, read_toml
from agent_env.bundle.tree import Node, Tree

FILE = "agent-env.toml"

_SIZE = re.compile(r"(\d+)\s*([kmgt]?)i?b?", re.IGNORECASE)
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_DEFAULT = EnvSettings()
_ON_FAILURE = ("mask", "score")


def read_settings(tree: Tree, node: Node, files: Collection[str], problems: Problems) -> EnvSettings:
    """`files` are the env folder's, by relative path."""
    data = read_toml(tree, node, problems)
    if data is None:
        return _DEFAULT
    table = Table(data, node.path, problems)
    requirements = table.string("requirements")
    if requirements is not None and requirements not in files:
        table.problem(f"requirements: there is no {brief(requirements)} in the env's folder{hint(requirements, files)}")
    settings = EnvSettings(
        command=table.strings("command"),
        requirements=requirements,
        isolation=table.choice("isolation", ("container", "fork"), _DEFAULT.isolation),
        preload=_modules(table),
        start_timeout=table.positive("start_timeout"),
        memory=_memory(table),
        cpus=table.positive("cpus"),
        pids=table.count("pids"),
        network=table.choice("network", ("none", "egress"), _DEFAULT.network),
        build_args=table.string_table("build_args"),
        env=table.string_table("env"),
        user=_user(table),
        cap_add=table.strings("cap_add"),
        read_only=table.boolean("read_only"),
        on_tool_timeout=table.choice("on_tool_timeout", _ON_FAILURE, _DEFAULT.on_tool_timeout),
        on_oom=table.choice("on_oom", _ON_FAILURE, _DEFAULT.on_oom),
        on_turn_timeout=table.choice("on_turn_timeout", _ON_FAILURE, _DEFAULT.on_turn_timeout),
    )
    table.close(FILE)
    return settings


def _modules(table: Table) -> tuple[str, ...]:
    modules = table.strings("preload")
    for module in modules:
        if not all(part.isidentifier() for part in module.split(".")):
            table.problem(f"preload: {brief(module)} is no module name")
    return modules


def _memory(table: Table) -> int | None:
    """Bytes, as a number or as `512m`."""
    value: Any = table.raw("memory")
    if value is None:
        return None
    if isinstance(value, str) and (match := _SIZE.fullmatch(value.strip())):
        value = int(match[1]) * _UNITS[match[2].lower()]
    if type(value) is int and value >= 4 << 20:
        return value
    table.problem(f'memory must be bytes, or a size such as "512m" or "2g", of at least 4m; not {brief(value)}')
    return None


def _user(table: Table) -> str | None:
    """A name or number, optionally with a group: `10001:10001`."""
    value = table.raw("user")
    if type(value) is int and value >= 0:
        return str(value)
    return table.string("user")
