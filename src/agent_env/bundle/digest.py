"""Which files a build context consists of, and digests that depend on contents alone, never on where a bundle lies."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from agent_env.bundle.dockerignore import DockerIgnore
from agent_env.bundle.problems import Problems
from agent_env.bundle.tree import Node, Tree


def context_files(context: Path, dockerfile: str = "Dockerfile") -> dict[str, Path]:
    """The files of a build context by relative POSIX path: what the digest covers and an image may be built from.

    Links are followed, `.dockerignore` is honoured, junk (`__pycache__`, `.DS_Store`) is left out, and the Dockerfile
    always belongs to it. `context` is an env's of a bundle that was read, so its links are known to stay inside.
    """
    real = os.path.realpath(context)
    tree = Tree(os.path.dirname(real), Problems())
    root = Node(os.path.basename(real), os.path.basename(real), real, is_dir=True)
    nodes, _ = context_nodes(tree, root, dockerfile)
    return {node.path.removeprefix(f"{root.path}/"): Path(node.real) for node in nodes}


def context_nodes(tree: Tree, context: Node, dockerfile: str = "Dockerfile") -> tuple[list[Node], list[Node]]:
    """A build context's files sorted by path, and those that `.dockerignore` keeps out.

    Folders that it keeps out as a whole (a `.venv`, `node_modules`) are not looked into.
    """
    ignore = _dockerignore(tree, context, dockerfile)
    start = len(context.path) + 1
    inside: list[Node] = []
    outside: list[Node] = []

    def closed(folder: Node) -> bool:
        path = folder.path[start:]
        return not ignore.has_exceptions and not dockerfile.startswith(f"{path}/") and ignore.excludes(path)

    for node in tree.walk(context, closed):
        path = node.path[start:]
        kept = path == dockerfile or not ignore.excludes(path)
        (inside if kept else outside).append(node)
    return sorted(inside, key=lambda node: node.path), outside


def context_digest(tree: Tree, context: Node, nodes: Iterable[Node], extra: Mapping[str, str]) -> str:
    """sha256 over the path, mode and contents of each; `extra` is whatever else decides what is built from them."""
    start = len(context.path) + 1
    records = [(node.path[start:], tree.mode(node), tree.sha256(node)) for node in nodes]
    return _digest(records, extra)


def bundle_digest(tree: Tree, nodes: Iterable[Node]) -> str:
    """sha256 over every file of the bundle. Modes count where images are built from files."""
    records = []
    for node in sorted(nodes, key=lambda node: node.path):
        mode = tree.mode(node) if node.path.startswith(("envs/", "agents/")) else 0
        records.append((node.path, mode, tree.sha256(node)))
    return _digest(records, {})


def _digest(records: Iterable[tuple[str, int, bytes]], extra: Mapping[str, str]) -> str:
    digest = hashlib.sha256(b"agent-env/1\n")
    for path, mode, contents in records:
        digest.update(f"{len(path.encode())}:{path}:{mode:o}:".encode() + contents)
    for key in sorted(extra):
        digest.update(f"{key}={extra[key]}\0".encode())
    return digest.hexdigest()


def _dockerignore(tree: Tree, context: Node, dockerfile: str) -> DockerIgnore:
    """`<Dockerfile's name>.dockerignore` beside the Dockerfile wins over the context's, as in BuildKit."""
    names = (f"{dockerfile}.dockerignore", ".dockerignore")
    found = {node.name: node for node in tree.children(context, names.__contains__) if not node.is_dir}
    for name in names:
        if name in found:
            return DockerIgnore(tree.text(found[name]) or "")
    return DockerIgnore()
