from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from agent_env.errors import ConfigError
from agent_env.training.nemo_gym.folder import FolderConfig, read_folder

BLOCK = {"format": 1, "openenv_url": "http://127.0.0.1:8200", "env": "grid-v1"}


def written(place: Path, document: object, name: str = "grid_v1") -> Path:
    folder = place / name
    (folder / "configs").mkdir(parents=True)
    text = document if isinstance(document, str) else yaml.safe_dump(document)
    (folder / "configs" / "grid_v1.yaml").write_text(text)
    return folder


def config(**block: object) -> dict[str, object]:
    agent = {"grid_v1_simple_agent": {"responses_api_agents": {"simple_agent": {"entrypoint": "app.py"}}}}
    server = {"grid_v1_resources_server": {"resources_servers": {"grid_v1": {"agent_env": block}}}}
    return agent | server


def test_the_block_of_the_resources_server_is_read(tmp_path: Path) -> None:
    folder = written(tmp_path, config(**BLOCK, bundle_digest="abc", aliases={"a_b": "a.b"}, idle_timeout=120))
    assert read_folder(folder) == FolderConfig(
        name="grid_v1",
        openenv_url="http://127.0.0.1:8200",
        env="grid-v1",
        bundle_digest="abc",
        aliases={"a_b": "a.b"},
        idle_timeout=120.0,
    )


def test_a_renamed_folder_is_still_read(tmp_path: Path) -> None:
    folder = written(tmp_path, config(**BLOCK), name="moved")
    (folder / "configs" / "grid_v1_v07.yaml").write_text("{}")
    assert read_folder(folder).name == "grid_v1"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("{", "grid_v1.yaml"),
        ("[]", "agent_env"),
        ("", "agent_env"),
        (config(), "agent_env.format is None"),
        (config(**BLOCK | {"format": 2}), "agent_env.format is 2"),
        (config(**BLOCK | {"openenv_url": None}), "agent_env.openenv_url"),
        (config(**BLOCK | {"env": ""}), "agent_env.env"),
        (config(**BLOCK | {"bundle_digest": 3}), "agent_env.bundle_digest"),
        (config(**BLOCK | {"aliases": ["a"]}), "agent_env.aliases"),
        (config(**BLOCK | {"aliases": {"a": 1}}), "agent_env.aliases"),
        (config(**BLOCK | {"idle_timeout": 0}), "agent_env.idle_timeout"),
        (config(**BLOCK | {"reset_timeout": True}), "agent_env.reset_timeout"),
        (config(**BLOCK | {"reset_timeout": "1"}), "agent_env.reset_timeout"),
    ],
)
def test_what_is_wrong_with_a_config_is_named_in_one_line(tmp_path: Path, document: object, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        read_folder(written(tmp_path, document))
    assert said in str(error.value)
    assert "\n" not in str(error.value)
