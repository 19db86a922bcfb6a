# ruff: noqa: E501 - problem lines are shown as they are
"""Malformed bundles: faults of envs and agents, and the exact lines they give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

CARD = '@environment_card(name="shop")\nclass Shop: ...\n'


def env_toml(text: str) -> dict[str, Any]:
    return {"envs/shop/env.toml": text}


def agent(text: str, dockerfile: str = "FROM x") -> dict[str, Any]:
    return {"agents/g/agent.toml": text, "agents/g/Dockerfile": dockerfile}


ROWS = [
    pytest.param(
        env_toml('isolation = "fork"'),
        [
            "envs/shop/env.toml: unknown key 'isolation' (an mcp_server env takes env_provider_type, environment_name, id, image and type)"
        ],
        id="key",
    ),
    pytest.param(
        env_toml('enviroment_name = "shop"'),
        [
            "envs/shop/env.toml: unknown key 'enviroment_name'; did you mean 'environment_name'? (an mcp_server env takes env_provider_type, environment_name, id, image and type)"
        ],
        id="near",
    ),
    pytest.param(env_toml("x = "), ["envs/shop/env.toml: not valid TOML: ..."], id="syntax"),
    pytest.param(env_toml('image = "a"\nimage = "b"'), ["envs/shop/env.toml: not valid TOML: ..."], id="dup"),
    pytest.param(
        env_toml('type = "mcp_sever"'),
        [
            "envs/shop/env.toml: 'mcp_sever' is no env type; did you mean 'mcp_server'? (known: mcp_server, multi, website and computer_driver)"
        ],
        id="type",
    ),
    pytest.param(env_toml("type = 1"), ["envs/shop/env.toml: type must be a string, not 1"], id="typeint"),
    pytest.param(
        env_toml('type = "service_db"'),
        ["envs/shop/env.toml: type 'service_db' is infrastructure of a deploy, not something a bundle writes"],
        id="infra",
    ),
    pytest.param(
        env_toml("image = 1"),
        [
            'envs/shop/env.toml: image must be the name of a docker_image artifact, {ref = "<registry image>"} or {dockerfile = "<path>"}, not 1'
        ],
        id="imgint",
    ),
    pytest.param(
        env_toml('image = {ref = "a/b:1", dockerfile = "x"}\nenvironment_name = "shop"'),
        [
            "envs/shop/env.toml: image must be the name of a docker_image artifact, {ref = \"<registry image>\"} or {dockerfile = \"<path>\"}, not {'ref': 'a/b:1', 'dockerfile': 'x'}"
        ],
        id="imgtbl",
    ),
    pytest.param(
        env_toml('image = {refs = "a"}'),
        ["envs/shop/env.toml: image: unknown key 'refs'; did you mean 'ref'?"],
        id="imgkey",
    ),
    pytest.param(
        env_toml('image = {dockerfile = "docker/Dockerfile"}'),
        ["envs/shop/env.toml: image: there is no 'docker/Dockerfile' in the env's folder to build from"],
        id="imgdf",
    ),
    pytest.param(
        env_toml('image = "nope"\nenvironment_name = "shop"'),
        ["envs/shop/env.toml: image: no artifact 'nope' in this bundle"],
        id="imgart",
    ),
    pytest.param(
        env_toml('image = "check"\nenvironment_name = "shop"'),
        ["envs/shop/env.toml: image: 'check' is a file artifact, and this takes a docker_image"],
        id="imgartkind",
    ),
    pytest.param(
        env_toml('image = {ref = "ghcr.io/a/b:1"}'),
        [
            'envs/shop: needs environment_name in env.toml: it is read from @environment_card(name="..."), and its image isn\'t built from this folder'
        ],
        id="imgref-noname",
    ),
    pytest.param(
        env_toml("environment_name = 1"),
        ["envs/shop/env.toml: environment_name must be a non-empty string, not 1"],
        id="nameint",
    ),
    pytest.param(
        env_toml('environment_name = ""'),
        ["envs/shop/env.toml: environment_name must be a non-empty string, not ''"],
        id="nameempty",
    ),
    pytest.param(
        env_toml('environment_name = "gateway"'),
        ["envs/shop: environment_name 'gateway' is taken by a gateway's own service; choose another"],
        id="gateway",
    ),
    pytest.param(
        env_toml('env_provider_type = "docker"'),
        ["envs/shop/env.toml: env_provider_type must be one of gateway, server, not 'docker'"],
        id="provider",
    ),
    pytest.param(env_toml('id = "shop"'), ["envs/shop/env.toml: id 'shop' must begin with '@local/'"], id="id"),
    pytest.param(
        env_toml('id = "@local/a:b"'),
        [
            "envs/shop/env.toml: id '@local/a:b' contains ':'; allowed are letters, digits, spaces and . _ - ~ / @ ( ) + , &"
        ],
        id="idchar",
    ),
    pytest.param(
        env_toml('id = "@local/a//b"'),
        ["envs/shop/env.toml: id '@local/a//b' has an empty, '.' or '..' segment"],
        id="idseg",
    ),
    pytest.param(
        env_toml('type = "multi"'),
        ["envs/shop/env.toml: a multi env needs at least one env in mcp_server_envs or website_envs"],
        id="multi",
    ),
    pytest.param(
        env_toml('type = "multi"\nmcp_server_envs = ["x"]\nzip = 1'),
        [
            "envs/shop/env.toml: unknown key 'zip' (a multi env takes env_provider_type, id, mcp_server_envs, name, type and website_envs)"
        ],
        id="multikey",
    ),
    pytest.param(
        env_toml('type = "computer_driver"'),
        ['envs/shop/env.toml: module is required: the driver, as "<file>:<class>"'],
        id="driver",
    ),
    pytest.param(
        env_toml('type = "website"\nimage = "x"'),
        [
            "envs/shop/env.toml: unknown key 'image' (a website env takes backend_image, env_provider_type, environment_name, frontend_image, id and type)"
        ],
        id="web",
    ),
    pytest.param(
        {"envs/shop/server.py": "x = 1\n"},
        [
            'envs/shop: needs environment_name in env.toml: it is read from @environment_card(name="..."), and its sources have none'
        ],
        id="none",
    ),
    pytest.param(
        {"envs/shop/b.py": '@environment_card(name="store")\nclass A: ...\n'},
        [
            "envs/shop: needs environment_name in env.toml: it is read from @environment_card(name=\"...\"), and its sources name several ('shop' and 'store')"
        ],
        id="two",
    ),
    pytest.param(
        {"envs/shop/server.py": "@environment_card(name=NAME)\nclass A: ...\n"},
        [
            'envs/shop: needs environment_name in env.toml: it is read from @environment_card(name="..."), and its sources have none'
        ],
        id="variable",
    ),
    pytest.param(
        {"envs/shop/server.py": CARD + "def (\n"},
        ["envs/shop/server.py: isn't valid Python (line 3), so its @environment_card can't be read"],
        id="syntax",
    ),
    pytest.param(
        agent("images = 1"),
        [
            "agents/g/agent.toml: unknown key 'images'; did you mean 'image'? (an agent.toml takes default_env_vars, id, image, metadata and type)"
        ],
        id="key",
    ),
    pytest.param(
        agent("[default_env_vars]\nA = 1"),
        ["agents/g/agent.toml: default_env_vars.A must be a string, not 1"],
        id="env",
    ),
    pytest.param(
        agent("[metadata]\nzzz = 1"),
        [
            "agents/g/agent.toml: unknown key 'metadata.zzz' (metadata takes default_model, min_disk_size_gb and takes_credentials)"
        ],
        id="meta",
    ),
    pytest.param(
        agent('[metadata]\nmin_disk_size_gb = "x"'),
        ["agents/g/agent.toml: metadata.min_disk_size_gb must be of type int, not 'x'"],
        id="metatype",
    ),
    pytest.param(agent("metadata = 1"), ["agents/g/agent.toml: metadata must be a table, not 1"], id="metalist"),
    pytest.param(
        {"agents/g/agent.toml": ""},
        ["agents/g/agent.toml: image: there is no 'Dockerfile' in the agent's folder to build from"],
        id="nodf",
    ),
    pytest.param(agent('type = "zz"'), ["agents/g/agent.toml: type must be 'a2a_agent', not 'zz'"], id="type"),
]


@pytest.mark.parametrize(("files", "lines"), ROWS)
def test_each_fault_gives_its_exact_lines(
    files: dict[str, Any], lines: list[str], problems: Callable[[dict[str, Any]], list[str]]
) -> None:
    assert problems(files) == lines
