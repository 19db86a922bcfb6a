"""`artifacts/<name>/` and `skills/<name>/`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_env.bundle.model import Artifact, Skill
from agent_env.bundle.names import fold, nfc
from agent_env.bundle.problems import Known, Problems, brief, hint, listed
from agent_env.bundle.toml import Table, read_toml
from agent_env.bundle.tree import Node, Tree

TYPES = ("file", "file_artifact_universe", "docker_image", "environment", "environment_universe", "cli")
TOML = "artifact.toml"

_SKILL = "SKILL.md"
_COMMAND = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")


def read_artifact(tree: Tree, folder: Node, nodes: Sequence[Node], problems: Problems) -> Artifact | None:
    """`nodes` are the folder's files. References to other artifacts are checked by `check_references`."""
    start = len(folder.path) + 1
    files = sorted(node.path[start:] for node in nodes if node.path[start:] != TOML)
    toml = next((node for node in nodes if node.path[start:] == TOML), None)
    if any(fold(file) == fold(_SKILL) for file in files):
        problems.add(folder.path, "holds a SKILL.md: skills live in skills/<name>/, not in artifacts/")
        return None
    data = read_toml(tree, toml, problems) if toml else {}
    if data is None:
        return None
    table = Table(data, f"{folder.path}/{TOML}", problems)
    type = _type(table, files, folder.path, problems)
    if type is None:
        return None
    declared = table.declared_id()
    config = _KEYS[type](table)
    table.close(f"an artifact of type {type}")
    config = {key: value for key, value in config.items() if value}
    for why in _content_problems(type, config, files):
        problems.add(folder.path, why)
    return Artifact(folder.name, Path(folder.real), type, tuple(files), config, declared)


def check_references(artifacts: Mapping[str, Artifact], problems: Problems) -> None:
    """That what an artifact names is there and of the right type."""
    known = Known("artifact", artifacts)
    for artifact in artifacts.values():
        where = f"artifacts/{artifact.name}/{TOML}"
        if artifact.type == "environment" and "file" in artifact.config:
            _check_reference("file", artifact.config["file"], "file", artifacts, known, where, problems)
        for place, name in enumerate(artifact.config.get("environment_artifacts", ())):
            key = f"environment_artifacts[{place}]"
            _check_reference(key, name, "environment", artifacts, known, where, problems)


def read_skill(tree: Tree, folder: Node, nodes: Sequence[Node], problems: Problems) -> Skill | None:
    start = len(folder.path) + 1
    files = sorted(node.path[start:] for node in nodes)
    if _SKILL not in files:
        problems.add(folder.path, "a skill needs a SKILL.md")
        return None
    return Skill(folder.name, Path(folder.real), tuple(files))


def _type(table: Table, files: Sequence[str], path: str, problems: Problems) -> str | None:
    declared = table.raw("type")
    if declared is None:
        if not files:
            problems.add(path, "has no files; an artifact without a declared type needs at least one")
            return None
        if "Dockerfile" in files:
            return "docker_image"
        return "file" if len(files) == 1 else "file_artifact_universe"
    if declared == "service":
        return "environment"
    if declared in TYPES:
        return str(declared)
    if declared == "skill":
        table.problem("type 'skill' isn't declared: skills live in skills/<name>/ with a SKILL.md")
    elif isinstance(declared, str):
        table.problem(f"{brief(declared)} is no artifact type{hint(declared, TYPES)} (known: {listed(TYPES)})")
    else:
        table.problem(f"type must be a string, not {brief(declared)}")
    return None


def _file_keys(table: Table) -> dict[str, Any]:
    return {"description": table.string("description")}


def _no_keys(table: Table) -> dict[str, Any]:
    return {}


def _image_keys(table: Table) -> dict[str, Any]:
    return {"description": table.string("description"), "ref": table.string("ref")}


def _environment_keys(table: Table) -> dict[str, Any]:
    return {
        "environment_name": table.string("environment_name", required="the env whose data this is"),
        "file": _name(table.string("file")),
        "description": table.string("description"),
    }


def _universe_keys(table: Table) -> dict[str, Any]:
    names = tuple(nfc(name) for name in table.strings("environment_artifacts"))
    if twice := sorted({name for name in names if names.count(name) > 1}):
        table.problem(f"environment_artifacts lists {listed(map(brief, twice))} twice")
    return {"environment_artifacts": names}


def _cli_keys(table: Table) -> dict[str, Any]:
    command = table.string("command_name", required="the name the command is installed under")
    if command and not _COMMAND.fullmatch(command):
        table.problem(f"command_name {brief(command)} isn't a plain name of letters, digits and . _ -")
    return {"command_name": command, "entrypoint": table.string("entrypoint", required="the file that is run")}


_KEYS = {
    "file": _file_keys,
    "file_artifact_universe": _no_keys,
    "docker_image": _image_keys,
    "environment": _environment_keys,
    "environment_universe": _universe_keys,
    "cli": _cli_keys,
}


def _content_problems(type: str, config: Mapping[str, Any], files: Sequence[str]) -> list[str]:
    """What is wrong with the files of an artifact of this type."""
    some = listed(map(brief, files[:3])) + (f" and {len(files) - 3} more" if len(files) > 3 else "") if files else ""
    if type in {"file", "file_artifact_universe", "cli"} and not files:
        return ["has no files"]
    if type == "file" and len(files) > 1:
        return [f"a file artifact holds one file, not {len(files)} ({some})"]
    if type == "docker_image" and "ref" in config and "Dockerfile" in files:
        return ["has a Dockerfile and names a registry image with ref; remove one"]
    if type == "docker_image" and "ref" not in config and "Dockerfile" not in files:
        return ['needs a Dockerfile, or ref = "<registry image>" in artifact.toml']
    if type == "environment" and "file" in config and files:
        return [f"names its file with `file`, so the folder holds artifact.toml only, not {some}"]
    if type == "environment" and "file" not in config and len(files) != 1:
        have = f"not {len(files)} ({some})" if files else "and has none"
        return [f"an environment artifact holds one file, {have}; or name a file artifact with `file`"]
    if type == "environment_universe":
        return _universe_problems(config, files)
    if type == "cli" and config.get("entrypoint") and config["entrypoint"] not in files:
        return [f"entrypoint {brief(config['entrypoint'])} is none of its files"]
    return []


def _universe_problems(config: Mapping[str, Any], files: Sequence[str]) -> list[str]:
    """A universe holds `<environment_name>/<its one file>` folders, or names environment artifacts."""
    if not files and not config.get("environment_artifacts"):
        return ["needs an environment: environment_artifacts, or a folder <environment_name>/ with its file"]
    held: dict[str, int] = {}
    problems = []
    for file in files:
        folder, slash, _ = file.partition("/")
        if slash:
            held[folder] = held.get(folder, 0) + 1
        else:
            problems.append(f"{brief(file)} belongs in a folder <environment_name>/ of this universe")
    crowded = [folder for folder, count in held.items() if count > 1]
    return problems + [f"the folder {brief(folder)} must hold one file, not {held[folder]}" for folder in crowded]


def _check_reference(
    key: str,
    name: str,
    type: str,
    artifacts: Mapping[str, Artifact],
    known: Known,
    where: str,
    problems: Problems,
) -> None:
    target = artifacts.get(name) or next((one for one in artifacts.values() if one.id == name), None)
    if target is None:
        problems.add(where, f"{key}: {known.missing(name)}")
    elif target.type != type:
        problems.add(where, f"{key}: {brief(name)} is a {target.type} artifact, and this takes type {type}")


def _name(text: str | None) -> str | None:
    return None if text is None else nfc(text)
