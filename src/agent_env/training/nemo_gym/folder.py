"""The folder that the writer wrote: where its bundle is served, and what its rows call the tools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from agent_env.errors import ConfigError

FORMAT = 1
_WRITER = "python -m agent_env.training.nemo_gym URL OUT"


@dataclass(frozen=True, slots=True)
class FolderConfig:
    """The `agent_env` block of `configs/<name>.yaml`. `aliases` maps a row's tool name to the env's."""

    name: str
    openenv_url: str
    env: str
    bundle_digest: str | None = None
    aliases: Mapping[str, str] = field(default_factory=dict)
    reset_timeout: float | None = None
    idle_timeout: float | None = None


def read_folder(folder: Path) -> FolderConfig:
    """Raises ConfigError, one line that names what is missing."""
    if not folder.is_dir():
        raise ConfigError(f"{folder}: no such folder; the writer makes it: {_WRITER}")
    path = _config_file(folder)
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}") from error
    name, block = _agent_env_block(path, document)
    return folder_config(path, name, block)


def _config_file(folder: Path) -> Path:
    configs = folder / "configs"
    expected = configs / f"{folder.resolve().name}.yaml"
    if expected.is_file():
        return expected
    others = sorted(path for path in configs.glob("*.yaml") if not path.stem.endswith("_v07"))
    if len(others) == 1:
        return others[0]
    raise ConfigError(f"{folder}: configs/{expected.name} is missing; the writer writes it: {_WRITER}")


def _agent_env_block(path: Path, document: Any) -> tuple[str, Mapping[str, Any]]:
    for instance in document.values() if isinstance(document, dict) else ():
        servers = instance.get("resources_servers") if isinstance(instance, dict) else None
        for name, server in servers.items() if isinstance(servers, dict) else ():
            if isinstance(server, dict) and isinstance(server.get("agent_env"), dict):
                return str(name), server["agent_env"]
    raise ConfigError(f"{path}: no `agent_env` block in a resources server; the writer writes it: {_WRITER}")


def folder_config(path: Path, name: str, block: Mapping[str, Any]) -> FolderConfig:
    """Reads an `agent_env` block; a ConfigError says that it stands in `path`."""
    if block.get("format") != FORMAT:
        raise ConfigError(
            f"{path}: agent_env.format is {block.get('format')!r}, this version reads {FORMAT}; write the folder again"
        )
    aliases = block.get("aliases") or {}
    if not isinstance(aliases, dict) or not all(isinstance(v, str) for pair in aliases.items() for v in pair):
        raise ConfigError(f"{path}: agent_env.aliases must map tool names to tool names")
    return FolderConfig(
        name=name,
        openenv_url=_text(path, block, "openenv_url"),
        env=_text(path, block, "env"),
        bundle_digest=_text(path, block, "bundle_digest") if block.get("bundle_digest") is not None else None,
        aliases=aliases,
        reset_timeout=_seconds(path, block, "reset_timeout"),
        idle_timeout=_seconds(path, block, "idle_timeout"),
    )


def _text(path: Path, block: Mapping[str, Any], key: str) -> str:
    value = block.get(key)
    if not isinstance(value, str) or not value:
        raise ConfigError(f"{path}: agent_env.{key} must be a text that is not empty, got {value!r}")
    return value


def _seconds(path: Path, block: Mapping[str, Any], key: str) -> float | None:
    value = block.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ConfigError(f"{path}: agent_env.{key} must be a number of seconds above 0, got {value!r}")
    return float(value)
