from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_env.bundle import Artifact, load_bundle

WriteBundle = Callable[..., Path]


@pytest.fixture
def artifact(write_bundle: WriteBundle) -> Callable[..., Artifact]:
    def read(files: dict[str, Any]) -> Artifact:
        return load_bundle(write_bundle({f"artifacts/a/{path}": text for path, text in files.items()})).artifacts["a"]

    return read


@pytest.mark.parametrize(
    ("files", "type", "held"),
    [
        ({"verify.py": ""}, "file", ("verify.py",)),
        ({"deep/one.txt": ""}, "file", ("deep/one.txt",)),
        ({"x": "", "y/z": ""}, "file_artifact_universe", ("x", "y/z")),
        ({"x": "", ".hidden": ""}, "file_artifact_universe", (".hidden", "x")),
        ({"x": "", ".DS_Store": "", "__pycache__/y": ""}, "file", ("x",)),
        ({"Dockerfile": ""}, "docker_image", ("Dockerfile",)),
        ({"Dockerfile": "", "x": ""}, "docker_image", ("Dockerfile", "x")),
        ({"x": "", "artifact.toml": ""}, "file", ("x",)),
        ({"x": "", "artifact.toml": 'type = "file_artifact_universe"'}, "file_artifact_universe", ("x",)),
    ],
)
def test_the_type_follows_from_the_contents_unless_declared(
    artifact: Callable[..., Artifact], files: dict[str, Any], type: str, held: tuple[str, ...]
) -> None:
    found = artifact(files)
    assert (found.type, found.files) == (type, held)


@pytest.mark.parametrize("declared", ["environment", "service"])
def test_seed_data_names_its_env(artifact: Callable[..., Artifact], declared: str) -> None:
    found = artifact({"orders.json": "", "artifact.toml": f'type = "{declared}"\nenvironment_name = "shop"'})
    assert (found.type, found.config) == ("environment", {"environment_name": "shop"})


def test_seed_data_may_be_a_file_artifact_of_its_own(artifact: Callable[..., Artifact]) -> None:
    found = artifact({"artifact.toml": 'type = "environment"\nenvironment_name = "shop"\nfile = "check"'})
    assert found.config["file"] == "check"


def test_a_universe_holds_a_folder_for_each_env(artifact: Callable[..., Artifact]) -> None:
    found = artifact({"shop/orders.json": "", "mail/inbox.json": "", "artifact.toml": 'type = "environment_universe"'})
    assert found.files == ("mail/inbox.json", "shop/orders.json")


def test_a_command_and_its_entry_are_read(artifact: Callable[..., Artifact]) -> None:
    toml = 'type = "cli"\ncommand_name = "orders"\nentrypoint = "main.py"\nid = "@local/orders"'
    found = artifact({"main.py": "", "artifact.toml": toml})
    assert (found.config, found.id) == ({"command_name": "orders", "entrypoint": "main.py"}, "@local/orders")
