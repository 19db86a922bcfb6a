"""`envs/<name>/` and `agents/<name>/`."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_env.bundle.digest import context_digest, context_nodes
from agent_env.bundle.model import Agent, Artifact, Env, EnvSettings
from agent_env.bundle.names import nfc
from agent_env.bundle.problems import Known, Problems, brief, hint, listed
from agent_env.bundle.settings import FILE as SETTINGS
from agent_env.bundle.settings import read_settings
from agent_env.bundle.toml import Table, read_toml
from agent_env.bundle.tree import Node, Tree

ENV_TOML = "env.toml"
AGENT_TOML = "agent.toml"
DOCKERFILE = "Dockerfile"
TYPES = ("mcp_server", "multi", "website", "computer_driver")

_INFRASTRUCTURE = ("service_db", "gateway_server")
_PROVIDERS = ("gateway", "server")
_TAKEN_NAMES = frozenset({"gateway", "servicedb", "pgweb", "db-mcp", "website-browser"})
_METADATA = {"default_model": str, "min_disk_size_gb": int, "takes_credentials": bool}


class EnvReader:
    """Reads one env folder."""

    def __init__(self, tree: Tree, folder: Node, artifacts: Mapping[str, Artifact], problems: Problems) -> None:
        self._tree = tree
        self._folder = folder
        self._artifacts = artifacts
        self._problems = problems
        self._names: set[str] = set()
        self.nodes: list[Node] = []
        """every file of the folder that belongs to the bundle"""

    def read(self) -> Env | None:
        top = {node.name: node for node in self._tree.children(self._folder) if not node.is_dir}
        if DOCKERFILE not in top and ENV_TOML not in top:
            self._problems.add(self._folder.path, "needs a Dockerfile or an env.toml")
            return None
        data = read_toml(self._tree, top[ENV_TOML], self._problems) if ENV_TOML in top else {}
        if data is None:
            return None
        table = Table(data, f"{self._folder.path}/{ENV_TOML}", self._problems)
        type = self._type(table)
        if type is None:
            return None
        declared = table.declared_id()
        provider = table.choice("env_provider_type", _PROVIDERS, "gateway")
        if type != "mcp_server":
            config = _other_config(type, table)
            return self._made(top, table, type=type, provider_type=provider, config=config, id=declared)
        image = Image(table, self._artifacts)
        name = table.string("environment_name")
        table.close("an mcp_server env")
        return self._made(top, table, image=image, name=name, type=type, provider_type=provider, id=declared)

    def _made(
        self,
        top: Mapping[str, Node],
        table: Table,
        *,
        type: str,
        image: Image | None = None,
        name: str | None = None,
        **rest: Any,
    ) -> Env:
        image = image or Image(Table({}, self._folder.path, self._problems), {})
        dockerfile = image.dockerfile
        inside, outside = context_nodes(self._tree, self._folder, dockerfile)
        self.nodes = inside + outside
        start = len(self._folder.path) + 1
        files = {node.path[start:] for node in self.nodes}
        settings = EnvSettings()
        if SETTINGS in top:
            settings = read_settings(self._tree, top[SETTINGS], files, self._problems)
        built_here = image.ref is None and image.artifact is None
        if type == "mcp_server":
            if built_here and dockerfile not in files:
                table.problem(f"image: there is no {brief(dockerfile)} in the env's folder to build from")
            if name is None and "environment_name" not in table:
                name = self._declared_name(inside if built_here else [])
        name = self._folder.name if name is None else name
        if type == "mcp_server" and name in _TAKEN_NAMES:
            self._problems.add(
                self._folder.path, f"environment_name {name!r} is taken by a gateway's own service; choose another"
            )
        extra = self._build_settings(image, settings)
        digest = context_digest(self._tree, self._folder, inside, extra)
        return Env(
            name=self._folder.name,
            path=Path(self._folder.real),
            environment_name=name,
            digest=digest,
            dockerfile=dockerfile,
            image_ref=image.ref,
            settings=settings,
            type=type,
            context=image.artifact.path if image.artifact else None,
            **rest,
        )

    def _build_settings(self, image: Image, settings: EnvSettings) -> dict[str, str]:
        """What decides the image beside the folder's files; empty in the plain case."""
        extra = {f"build_args.{key}": value for key, value in settings.build_args.items()}
        if image.ref is not None:
            extra["ref"] = image.ref
        if image.dockerfile != DOCKERFILE:
            extra["dockerfile"] = image.dockerfile
        if image.artifact is not None:
            path = f"artifacts/{image.artifact.name}"
            folder = Node(image.artifact.name, path, str(image.artifact.path), is_dir=True)
            extra["context"] = context_digest(self._tree, folder, context_nodes(self._tree, folder)[0], {})
        return extra

    def _type(self, table: Table) -> str | None:
        type = table.raw("type")
        if type is None:
            return "mcp_server"
        if type in _INFRASTRUCTURE:
            table.problem(f"type {type!r} is infrastructure of a deploy, not something a bundle writes")
        elif not isinstance(type, str):
            table.problem(f"type must be a string, not {brief(type)}")
        elif type not in TYPES:
            table.problem(f"{brief(type)} is no env type{hint(type, TYPES)} (known: {listed(TYPES)})")
        else:
            return type
        return None

    def _declared_name(self, context: Sequence[Node]) -> str | None:
        """The one name that `@environment_card(name="...")` gives in the sources; read, never run."""
        names: set[str] = set()
        unread: list[tuple[Node, str]] = []
        for node in context:
            data = self._tree.read(node) if node.suffix == ".py" else None
            if data is None or b"environment_card" not in data:
                continue
            try:
                names |= card_names(_parsed(data))
            except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
                unread.append((node, f" (line {error.lineno})" if isinstance(error, SyntaxError) else ""))
        if len(names) == 1:
            return nfc(names.pop())
        for node, line in unread:
            self._problems.add(node.path, f"isn't valid Python{line}, so its @environment_card can't be read")
        if names or not unread:
            self._problems.add(self._folder.path, _unnamed(names, built_here=bool(context)))
        return None


class Image:
    """The `image` key of an env.toml: which image the env runs."""

    def __init__(self, table: Table, artifacts: Mapping[str, Artifact]) -> None:
        self.dockerfile = DOCKERFILE
        self.ref: str | None = None
        self.artifact: Artifact | None = None
        """a docker_image artifact whose folder is the build context"""
        self._table = table
        value = table.raw("image")
        if isinstance(value, str) and value:
            self._artifact(nfc(value), artifacts)
        elif (
            isinstance(value, dict)
            and len(value) == 1
            and all(isinstance(item, str) and item for item in value.values())
        ):
            self._keyed(*next(iter(value.items())), artifacts)
        elif value is not None:
            table.problem(
                'image must be the name of a docker_image artifact, {ref = "<registry image>"} or '
                f'{{dockerfile = "<path>"}}, not {brief(value)}'
            )

    def _keyed(self, key: str, value: str, artifacts: Mapping[str, Artifact]) -> None:
        if key == "ref":
            self.ref = value
        elif key == "dockerfile":
            self.dockerfile = value
        elif key == "artifact":
            self._artifact(nfc(value), artifacts)
        else:
            self._table.problem(f"image: unknown key {brief(key)}{hint(key, ('ref', 'dockerfile', 'artifact'))}")

    def _artifact(self, name: str, artifacts: Mapping[str, Artifact]) -> None:
        target = artifacts.get(name) or next((one for one in artifacts.values() if one.id == name), None)
        if target is None:
            self._table.problem(f"image: {Known('artifact', artifacts).missing(name)}")
        elif target.type != "docker_image":
            self._table.problem(f"image: {brief(name)} is a {target.type} artifact, and this takes a docker_image")
        elif "ref" in target.config:
            self.ref = target.config["ref"]
        else:
            self.artifact = target


def card_names(module: ast.Module) -> set[str]:
    """Literal names given to `environment_card` as a class decorator."""
    names: set[str] = set()
    for node in ast.walk(module):
        for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else ():
            if isinstance(decorator, ast.Call) and _last_name(decorator.func) == "environment_card":
                names |= {
                    keyword.value.value
                    for keyword in decorator.keywords
                    if keyword.arg == "name"
                    and isinstance(keyword.value, ast.Constant)
                    and isinstance(keyword.value.value, str)
                }
    return names


def read_agent(
    tree: Tree, folder: Node, nodes: Sequence[Node], artifacts: Mapping[str, Artifact], problems: Problems
) -> Agent | None:
    """`nodes` are the folder's files."""
    start = len(folder.path) + 1
    files = {node.path[start:]: node for node in nodes}
    if DOCKERFILE not in files and AGENT_TOML not in files:
        problems.add(folder.path, "needs a Dockerfile or an agent.toml")
        return None
    data = read_toml(tree, files[AGENT_TOML], problems) if AGENT_TOML in files else {}
    if data is None:
        return None
    table = Table(data, f"{folder.path}/{AGENT_TOML}", problems)
    table.choice("type", ("a2a_agent",), "a2a_agent")
    image = Image(table, artifacts)
    if image.ref is None and image.artifact is None and image.dockerfile not in files:
        table.problem(f"image: there is no {brief(image.dockerfile)} in the agent's folder to build from")
    agent = Agent(
        name=folder.name,
        path=Path(folder.real),
        image_ref=image.ref,
        default_env_vars=table.string_table("default_env_vars"),
        metadata=_metadata(table),
        id=table.declared_id(),
    )
    table.close("an agent.toml")
    return agent


def _metadata(table: Table) -> dict[str, Any]:
    value = table.raw("metadata")
    if value is None:
        return {}
    if not isinstance(value, dict):
        table.problem(f"metadata must be a table, not {brief(value)}")
        return {}
    for key, item in value.items():
        if key not in _METADATA:
            table.problem(f"unknown key {brief(f'metadata.{key}')} (metadata takes {listed(_METADATA)})")
        elif type(item) is not _METADATA[key]:
            table.problem(f"metadata.{key} must be of type {_METADATA[key].__name__}, not {brief(item)}")
    return dict(value)


def _other_config(type: str, table: Table) -> dict[str, Any]:
    """The keys of the types that can be read and not deployed."""
    config: dict[str, Any]
    if type == "multi":
        config = {key: table.strings(key) for key in ("mcp_server_envs", "website_envs")}
        config["name"] = table.string("name")
        if not config["mcp_server_envs"] and not config["website_envs"]:
            table.problem("a multi env needs at least one env in mcp_server_envs or website_envs")
    elif type == "website":
        config = {key: table.raw(key) for key in ("backend_image", "frontend_image")}
        config["environment_name"] = table.string("environment_name")
    else:
        config = {"module": table.string("module", required='the driver, as "<file>:<class>"')}
    table.close(f"a {type} env")
    return {key: value for key, value in config.items() if value}


def _parsed(data: bytes) -> ast.Module:
    with warnings.catch_warnings():
        # Such as an invalid escape sequence in the author's strings: nothing to us.
        warnings.simplefilter("ignore")
        return ast.parse(data)


def _unnamed(names: Collection[str], *, built_here: bool) -> str:
    if names:
        found = f"its sources name several ({listed(map(brief, sorted(names)))})"
    else:
        found = "its sources have none" if built_here else "its image isn't built from this folder"
    return f'needs environment_name in env.toml: it is read from @environment_card(name="..."), and {found}'


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
