"""Folder -> Bundle. Everything is read and checked, every fault is collected, and all are raised together."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from agent_env.bundle.artifacts import TOML as ARTIFACT_TOML
from agent_env.bundle.artifacts import check_references, read_artifact, read_skill
from agent_env.bundle.digest import bundle_digest, context_nodes
from agent_env.bundle.envs import AGENT_TOML, DOCKERFILE, ENV_TOML, EnvReader, read_agent
from agent_env.bundle.evals import read_aliases, read_eval
from agent_env.bundle.installed import find_installed
from agent_env.bundle.model import Agent, Artifact, Bundle, Env, Eval, Skill
from agent_env.bundle.names import JUNK, fold, is_ignored, name_problem
from agent_env.bundle.problems import Known, Problems, listed, shown
from agent_env.bundle.readme import description
from agent_env.bundle.settings import FILE as SETTINGS
from agent_env.bundle.task import read_task
from agent_env.bundle.tree import Node, Tree
from agent_env.errors import BundleError

T = TypeVar("T")

FOLDER_KINDS = ("envs", "agents", "artifacts", "skills")
FILE_KINDS = {"tasks": ".json", "evals": ".toml"}
KINDS = (*FOLDER_KINDS, *FILE_KINDS)
ALIASES = "aliases.toml"
RESERVED = "bundle.toml"

_MARKERS = {
    "envs": (DOCKERFILE, ENV_TOML, SETTINGS),
    "agents": (DOCKERFILE, AGENT_TOML),
    "artifacts": (DOCKERFILE, ARTIFACT_TOML),
    "skills": ("SKILL.md",),
}


def load_bundle(path: str | Path) -> Bundle:
    """Read the bundle in a folder, or an installed one by `NAME` or `DIST/NAME`.

    Raises:
        BundleError: with every problem found.
    """
    id_root = None
    if isinstance(path, str) and not os.path.exists(path):
        path, id_root = _installed(path)
    if not os.path.exists(path):
        raise BundleError([f"{shown(str(path))}: there is no such folder, and no installed bundle of that name"])
    if not os.path.isdir(path):
        raise BundleError([f"{shown(str(path))}: is a file; a bundle is a folder with tasks/, envs/, ..."])
    try:
        return _Loader(path, id_root).load()
    except OSError as error:
        raise BundleError([f"{shown(str(error.filename or path))}: can't be read: {error.strerror}"]) from error


class _Loader:
    def __init__(self, path: str | Path, id_root: str | None) -> None:
        self._given = str(path)
        self._id_root = id_root
        self._problems = Problems()
        self._tree = Tree(os.path.abspath(path), self._problems)
        self._ignored: list[str] = []
        self._nodes: list[Node] = []

    def load(self) -> Bundle:
        top = self._top()
        folders = {kind: self._folders(kind, top) for kind in FOLDER_KINDS}
        self._check_shared(folders["artifacts"], folders["skills"])
        artifacts = self._each(folders["artifacts"], self._artifact)
        check_references(artifacts, self._problems)
        skills = self._each(folders["skills"], self._skill)
        envs = self._each(folders["envs"], lambda node: self._env(node, artifacts))
        agents = self._each(folders["agents"], lambda node: self._agent(node, artifacts))
        task_files = self._files("tasks", top)
        tasks = self._each(task_files, lambda node: read_task(self._tree, node, self._problems))
        id_root = self._id_root or _id_root(self._tree.root.real)
        evals = self._evals(top, Known("task", (node.stem for node in task_files)), id_root)
        aliases = self._aliases(top, folders)
        for kind, entities in (("envs", envs), ("agents", agents), ("artifacts", artifacts), ("evals", evals)):
            self._check_ids(kind, entities)
        readme = self._readme()
        self._problems.raise_any()
        digest = bundle_digest(self._tree, self._nodes)
        self._problems.raise_any()
        return Bundle(
            name=self._tree.root.name,
            path=Path(self._tree.root.real),
            description=readme,
            digest=digest,
            envs=envs,
            artifacts=artifacts,
            tasks=tasks,
            evals=evals,
            ignored=tuple(sorted(self._ignored)),
            agents=agents,
            skills=skills,
            aliases=aliases,
            id_root=id_root,
        )

    def _top(self) -> dict[str, Node]:
        """The entries of the bundle itself that the format names."""
        known = {fold(name): name for name in (*KINDS, ALIASES)}
        good = []
        for name in self._tree.names(self._tree.root):
            if is_ignored(name) or name in JUNK:
                continue
            if fold(name) == RESERVED:
                self._problems.add(name, "is reserved: a bundle is named by its folder and described by its README.md")
            elif known.get(fold(name)) == name:
                good.append(name)
            elif spelling := known.get(fold(name)):
                self._problems.add(name, f"spell it {spelling}; names are case-sensitive")
            elif fold(name) != "readme.md":
                self._ignored.append(name)
        top = {node.name: node for node in self._tree.children(self._tree.root, good.__contains__)}
        for name in good:
            if name in top and top[name].is_dir == (name == ALIASES):
                self._problems.add(name, "must be a file" if name == ALIASES else "must be a folder")
                del top[name]
        if not top and not self._problems:
            kinds = ", ".join(f"{kind}/" for kind in KINDS)
            raise BundleError([f"{shown(self._given)}: is no bundle: it has none of {kinds}"])
        return top

    def _folders(self, kind: str, top: Mapping[str, Node]) -> list[Node]:
        """Entities that are folders; loose files are passed over."""
        found = []
        for node in self._entries(kind, top):
            if not node.is_dir:
                self._ignored.append(node.path)
            elif self._named(node, node.name) and self._markers_are_spelled(kind, node):
                found.append(node)
        if kind in {"artifacts", "skills"}:
            for node in found:
                if "__" in node.name:
                    self._problems.add(node.path, "'__' is reserved in names of artifacts and skills; rename it")
        return found

    def _files(self, kind: str, top: Mapping[str, Node]) -> list[Node]:
        """Entities that are files; those with another suffix are passed over."""
        suffix = FILE_KINDS[kind]
        found = []
        for node in self._entries(kind, top):
            if node.is_dir:
                self._problems.add(node.path, f"is a folder; write {kind}/<name>{suffix}")
            elif node.suffix == suffix and node.stem:
                self._named(node, node.stem)
                found.append(node)
            elif fold(node.suffix) == suffix:
                self._problems.add(node.path, f"rename it to {node.stem}{suffix}; names are case-sensitive")
            else:
                self._ignored.append(node.path)
        self._nodes += found
        return found

    def _entries(self, kind: str, top: Mapping[str, Node]) -> list[Node]:
        if kind not in top:
            return []
        nodes = self._tree.children(top[kind], lambda name: not is_ignored(name) and name not in JUNK)
        self._check_case(nodes)
        return nodes

    def _check_case(self, nodes: Iterable[Node]) -> None:
        first: dict[str, Node] = {}
        for node in nodes:
            if (other := first.setdefault(fold(node.name), node)) is not node:
                self._problems.add(
                    node.path, f"differs from {shown(other.path)} only in case or Unicode form; rename one"
                )

    def _named(self, node: Node, name: str) -> bool:
        if why := name_problem(name):
            self._problems.add(node.path, f"rename it: the name {why}")
            return False
        return True

    def _markers_are_spelled(self, kind: str, folder: Node) -> bool:
        markers = {fold(name): name for name in _MARKERS[kind]}
        wrong = [name for name in self._tree.names(folder) if markers.get(fold(name), name) != name]
        for name in wrong:
            self._problems.add(f"{folder.path}/{name}", f"rename it to {markers[fold(name)]}; names are case-sensitive")
        return not wrong

    def _check_shared(self, artifacts: Sequence[Node], skills: Sequence[Node]) -> None:
        taken = {fold(node.name): node for node in artifacts}
        for node in skills:
            if other := taken.get(fold(node.name)):
                self._problems.add(
                    node.path, f"has the name of {other.path}; artifacts and skills share one name space"
                )

    def _check_ids(self, kind: str, entities: Mapping[str, Env | Agent | Artifact | Eval]) -> None:
        first: dict[str, str] = {}
        for name, entity in entities.items():
            if entity.id is not None and (other := first.setdefault(entity.id, name)) != name:
                self._problems.add(f"{kind}/{name}", f"id {entity.id!r} is already the id of {kind}/{other}")

    def _each(self, nodes: Iterable[Node], read: Callable[[Node], T | None]) -> dict[str, T]:
        """By entity name, in name order; what could not be read is left out."""
        made = {}
        for node in nodes:
            if (entity := read(node)) is not None:
                made[node.name if node.is_dir else node.stem] = entity
        return dict(sorted(made.items()))

    def _contents(self, folder: Node) -> list[Node]:
        nodes = list(self._tree.walk(folder))
        self._nodes += nodes
        return nodes

    def _artifact(self, node: Node) -> Artifact | None:
        return read_artifact(self._tree, node, self._contents(node), self._problems)

    def _skill(self, node: Node) -> Skill | None:
        return read_skill(self._tree, node, self._contents(node), self._problems)

    def _env(self, node: Node, artifacts: Mapping[str, Artifact]) -> Env | None:
        reader = EnvReader(self._tree, node, artifacts, self._problems)
        env = reader.read()
        self._nodes += reader.nodes
        return env

    def _agent(self, node: Node, artifacts: Mapping[str, Artifact]) -> Agent | None:
        inside, outside = context_nodes(self._tree, node)
        self._nodes += inside + outside
        return read_agent(self._tree, node, inside + outside, artifacts, self._problems)

    def _evals(self, top: Mapping[str, Node], tasks: Known, id_root: str) -> dict[str, Eval]:
        return self._each(
            self._files("evals", top), lambda node: read_eval(self._tree, node, tasks, id_root, self._problems)
        )

    def _aliases(self, top: Mapping[str, Node], folders: Mapping[str, Sequence[Node]]) -> dict[str, str]:
        if ALIASES not in top:
            return {}
        self._nodes.append(top[ALIASES])
        known = {kind: [node.name for node in folders[kind]] for kind in ("agents", "envs")}
        return read_aliases(self._tree, top[ALIASES], known, self._problems)

    def _readme(self) -> str:
        found = self._tree.children(self._tree.root, lambda name: fold(name) == "readme.md")
        files = [node for node in found if not node.is_dir]
        if not files:
            return ""
        node = next((node for node in files if node.name == "README.md"), files[0])
        self._nodes.append(node)
        data = self._tree.read(node)
        return description((data or b"").decode("utf-8-sig", "replace"))


def _installed(reference: str) -> tuple[str | Path, str | None]:
    """Folder and id root of an installed bundle; the reference itself when there is none."""
    found = find_installed(reference)
    if len(found) > 1:
        names = listed(f"{bundle.distribution}/{bundle.name}" for bundle in found)
        raise BundleError([f"{shown(reference)}: several installed bundles have that name; write {names}"])
    return (found[0].path, found[0].id_root) if found else (reference, None)


def _id_root(real: str) -> str:
    """`@local/` and where the bundle lies: what ids of its entities begin with in files made by other tools."""
    home = os.path.realpath(os.path.expanduser("~"))
    if real.startswith(home.rstrip("/") + "/"):
        return f"@local/~{real.removeprefix(home.rstrip('/'))}"
    return f"@local{real}"
