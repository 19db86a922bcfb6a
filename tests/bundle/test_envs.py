from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_env.bundle import Env, EnvSettings, load_bundle

WriteBundle = Callable[..., Path]
CARD = '@environment_card(name="shop")\nclass Shop: ...\n'


@pytest.fixture
def shop(write_bundle: WriteBundle) -> Callable[..., Env]:
    """The env of a bundle with files of its folder changed."""

    def read(files: dict[str, Any] | None = None, **others: Any) -> Env:
        return load_bundle(
            write_bundle({f"envs/shop/{path}": text for path, text in (files or {}).items()} | others)
        ).envs["shop"]

    return read


@pytest.mark.parametrize(
    "source",
    [
        '@environment_card(name="till")\nclass A: ...',
        "from agentenv_protocol import environment_card\n\n@environment_card(version=2, name='till')\nclass A: ...",
        '@agentenv_protocol.environment_card(name="till")\nclass A: ...',
        '@other\n@environment_card(name="ti" "ll")\nclass A: ...',
        'PATTERN = "\\d"\n@environment_card(name="till")\nclass A: ...',
        'def make():\n    @environment_card(name="till")\n    class A: ...\n    return A',
    ],
)
def test_the_name_is_read_from_the_card_in_the_sources(shop: Callable[..., Env], source: str) -> None:
    assert shop({"server.py": source}).environment_name == "till"


def test_the_same_card_in_two_files_is_one_name(shop: Callable[..., Env]) -> None:
    assert shop({"copy/server.py": CARD}).environment_name == "shop"


def test_a_source_that_is_no_python_does_not_matter_when_another_has_the_card(shop: Callable[..., Env]) -> None:
    assert shop({"template.py": "@environment_card(name={{ name }}"}).environment_name == "shop"


def test_a_card_that_docker_would_not_see_does_not_count(shop: Callable[..., Env]) -> None:
    files = {"old/server.py": '@environment_card(name="old")\nclass A: ...', ".dockerignore": "old\n"}
    assert shop(files).environment_name == "shop"


def test_a_declared_name_wins_over_the_sources(shop: Callable[..., Env]) -> None:
    assert shop({"env.toml": 'environment_name = "till"\n'}).environment_name == "till"


def test_a_registry_image_needs_no_dockerfile(shop: Callable[..., Env]) -> None:
    env = shop({"env.toml": 'environment_name = "till"\nimage = {ref = "ghcr.io/a/b:1"}\n', "Dockerfile": None})
    assert (env.image_ref, env.environment_name) == ("ghcr.io/a/b:1", "till")


def test_the_dockerfile_may_have_another_name(shop: Callable[..., Env]) -> None:
    env = shop({"env.toml": 'image = {dockerfile = "docker/Main"}\n', "docker/Main": "FROM x", "Dockerfile": None})
    assert env.dockerfile == "docker/Main"


def test_an_image_artifact_gives_the_build_context(shop: Callable[..., Env]) -> None:
    files = {"artifacts/base/Dockerfile": "FROM x"}
    env = shop({"env.toml": 'environment_name = "till"\nimage = "base"\n'}, **files)
    assert env.context is not None
    assert env.context.parts[-2:] == ("artifacts", "base")


def test_an_image_artifact_with_a_reference_gives_the_image(shop: Callable[..., Env]) -> None:
    files = {"artifacts/base/artifact.toml": 'type = "docker_image"\nref = "ghcr.io/a/b:1"\n'}
    env = shop({"env.toml": 'environment_name = "till"\nimage = {artifact = "base"}\n'}, **files)
    assert (env.context, env.image_ref) == (None, "ghcr.io/a/b:1")


@pytest.mark.parametrize(
    ("toml", "config"),
    [
        ('type = "multi"\nmcp_server_envs = ["a"]\nname = "n"', {"mcp_server_envs": ("a",), "name": "n"}),
        ('type = "computer_driver"\nmodule = "d.py:D"', {"module": "d.py:D"}),
        ('type = "website"\nbackend_image = "x"', {"backend_image": "x"}),
    ],
)
def test_types_that_can_not_be_deployed_are_read_all_the_same(
    shop: Callable[..., Env], toml: str, config: dict[str, Any]
) -> None:
    env = shop({"env.toml": toml})
    assert (env.type, env.config) == (toml.split('"')[1], config)


def test_settings_are_read_with_their_types(shop: Callable[..., Env]) -> None:
    toml = """
command = ["python", "server.py"]
requirements = "requirements.txt"
isolation = "fork"
preload = ["mcp.server.fastmcp", "uvicorn"]
start_timeout = 30
memory = "512m"
cpus = 0.5
pids = 64
network = "egress"
user = 10001
cap_add = ["NET_ADMIN"]
read_only = true
on_tool_timeout = "score"
on_oom = "score"
on_turn_timeout = "score"
[build_args]
BASE_IMAGE = "python:3.11-slim"
[env]
KEY = "env:SHOP_KEY"
"""
    assert shop({"agent-env.toml": toml, "requirements.txt": ""}).settings == EnvSettings(
        command=("python", "server.py"),
        requirements="requirements.txt",
        isolation="fork",
        preload=("mcp.server.fastmcp", "uvicorn"),
        start_timeout=30.0,
        memory=512 << 20,
        cpus=0.5,
        pids=64,
        network="egress",
        build_args={"BASE_IMAGE": "python:3.11-slim"},
        env={"KEY": "env:SHOP_KEY"},
        user="10001",
        cap_add=("NET_ADMIN",),
        read_only=True,
        on_tool_timeout="score",
        on_oom="score",
        on_turn_timeout="score",
    )


def test_without_settings_every_default_holds(shop: Callable[..., Env]) -> None:
    assert shop().settings == EnvSettings()


@pytest.mark.parametrize(
    ("written", "size"), [("268435456", 256 << 20), ('"2g"', 2 << 30), ('"1 GiB"', 1 << 30), ('"4096k"', 4 << 20)]
)
def test_memory_is_bytes_or_a_size(shop: Callable[..., Env], written: str, size: int) -> None:
    assert shop({"agent-env.toml": f"memory = {written}\n"}).settings.memory == size
