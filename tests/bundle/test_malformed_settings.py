# ruff: noqa: E501 - problem lines are shown as they are
"""Malformed bundles: faults of agent-env.toml, and the exact lines they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def settings(text: str) -> dict[str, Any]:
    return {"envs/shop/agent-env.toml": text}


ROWS = [
    pytest.param(
        settings("isolaton = 1"),
        [
            "envs/shop/agent-env.toml: unknown key 'isolaton'; did you mean 'isolation'? (agent-env.toml takes build_args, cap_add, command, cpus, env, isolation, memory, network, on_oom, on_tool_timeout, on_turn_timeout, pids, preload, read_only, requirements, start_timeout and user)"
        ],
        id="key",
    ),
    pytest.param(
        settings('command = "python server.py"'),
        ["envs/shop/agent-env.toml: command must be a list of non-empty strings, not 'python server.py'"],
        id="typed",
    ),
    pytest.param(
        settings('command = ["python", 1]'),
        ["envs/shop/agent-env.toml: command must be a list of non-empty strings, not ['python', 1]"],
        id="cmd",
    ),
    pytest.param(
        settings('requirements = "reqs.txt"'),
        ["envs/shop/agent-env.toml: requirements: there is no 'reqs.txt' in the env's folder"],
        id="req",
    ),
    pytest.param(
        settings('requirements = "../x.txt"'),
        ["envs/shop/agent-env.toml: requirements: there is no '../x.txt' in the env's folder"],
        id="reqescape",
    ),
    pytest.param(
        settings('isolation = "thread"'),
        ["envs/shop/agent-env.toml: isolation must be one of container, fork, not 'thread'"],
        id="iso",
    ),
    pytest.param(
        settings('start_timeout = "10s"'),
        ["envs/shop/agent-env.toml: start_timeout must be a number above 0, not '10s'"],
        id="start",
    ),
    pytest.param(
        settings("start_timeout = 0"),
        ["envs/shop/agent-env.toml: start_timeout must be a number above 0, not 0"],
        id="start0",
    ),
    pytest.param(
        settings("start_timeout = inf"),
        ["envs/shop/agent-env.toml: start_timeout must be a number above 0, not inf"],
        id="startinf",
    ),
    pytest.param(
        settings('memory = "lots"'),
        [
            'envs/shop/agent-env.toml: memory must be bytes, or a size such as "512m" or "2g", of at least 4m; not \'lots\''
        ],
        id="mem",
    ),
    pytest.param(
        settings("memory = 5"),
        ['envs/shop/agent-env.toml: memory must be bytes, or a size such as "512m" or "2g", of at least 4m; not 5'],
        id="mem0",
    ),
    pytest.param(settings("cpus = -1"), ["envs/shop/agent-env.toml: cpus must be a number above 0, not -1"], id="cpus"),
    pytest.param(
        settings("pids = 1.5"), ["envs/shop/agent-env.toml: pids must be a whole number above 0, not 1.5"], id="pids"
    ),
    pytest.param(
        settings('network = "host"'),
        ["envs/shop/agent-env.toml: network must be one of none, egress, not 'host'"],
        id="net",
    ),
    pytest.param(
        settings("build_args = [1]"),
        ["envs/shop/agent-env.toml: build_args must be a table of strings, not [1]"],
        id="args",
    ),
    pytest.param(
        settings("[build_args]\nX = 1"),
        ["envs/shop/agent-env.toml: build_args.X must be a string, not 1"],
        id="argval",
    ),
    pytest.param(settings("[env]\nX = true"), ["envs/shop/agent-env.toml: env.X must be a string, not true"], id="env"),
    pytest.param(
        settings('preload = ["a-b"]'), ["envs/shop/agent-env.toml: preload: 'a-b' is no module name"], id="preload"
    ),
    pytest.param(
        settings('read_only = "yes"'),
        ["envs/shop/agent-env.toml: read_only must be true or false, not 'yes'"],
        id="ro",
    ),
    pytest.param(
        settings('on_oom = "zero"'),
        ["envs/shop/agent-env.toml: on_oom must be one of mask, score, not 'zero'"],
        id="oom",
    ),
    pytest.param(
        settings('cap_add = "NET_ADMIN"'),
        ["envs/shop/agent-env.toml: cap_add must be a list of non-empty strings, not 'NET_ADMIN'"],
        id="cap",
    ),
    pytest.param(
        settings("user = -1"), ["envs/shop/agent-env.toml: user must be a non-empty string, not -1"], id="user"
    ),
    pytest.param(settings("= 1"), ["envs/shop/agent-env.toml: not valid TOML: ..."], id="syntax"),
]


@pytest.mark.parametrize(("files", "lines"), ROWS)
def test_each_fault_gives_its_exact_lines(
    files: dict[str, Any], lines: list[str], problems: Callable[[dict[str, Any]], list[str]]
) -> None:
    assert problems(files) == lines
