"""Bundles that Python distributions bring along: entry points of the group `agent_env.bundles`.

`<name> = "<package>"` stands for the folder `<package>/<name>/`. The package is never imported.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
from dataclasses import dataclass
from pathlib import Path

GROUP = "agent_env.bundles"


@dataclass(frozen=True, slots=True)
class InstalledBundle:
    name: str
    distribution: str
    path: Path

    @property
    def id_root(self) -> str:
        return f"@local/{self.distribution}/{self.name}"


def installed_bundles() -> list[InstalledBundle]:
    """Every one whose folder is there, by name."""
    found = []
    for entry in importlib.metadata.entry_points(group=GROUP):
        distribution = entry.dist.name if entry.dist else ""
        if (path := _folder(entry)) is not None:
            found.append(InstalledBundle(entry.name, distribution, path))
    return sorted(found, key=lambda bundle: (bundle.name, bundle.distribution))


def find_installed(reference: str) -> list[InstalledBundle]:
    """Those that `NAME` or `DIST/NAME` may mean."""
    distribution, slash, name = reference.rpartition("/")
    return [
        bundle
        for bundle in installed_bundles()
        if bundle.name == name and (not slash or bundle.distribution == distribution)
    ]


def _folder(entry: importlib.metadata.EntryPoint) -> Path | None:
    parts = entry.module.split(".")
    if entry.dist is not None:
        path = Path(str(entry.dist.locate_file("/".join([*parts, entry.name]))))
        if path.is_dir():
            return path
    # An editable install keeps its files elsewhere. Finding a package inside another would import that one.
    spec = importlib.util.find_spec(parts[0])
    for place in (spec.submodule_search_locations or []) if spec else []:
        path = Path(place, *parts[1:], entry.name)
        if path.is_dir():
            return path
    return None
