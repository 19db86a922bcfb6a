"""What a step's field that names an entity means: a bare name of this bundle, or an id."""

from __future__ import annotations

from typing import Any

from agent_env.bundle.model import Bundle
from agent_env.bundle.names import nfc
from agent_env.bundle.problems import Known, brief

_NOUNS = {"envs": "env", "agents": "agent", "artifacts": "artifact", "skills": "skill", "tasks": "task"}


def resolve(bundle: Bundle, kind: str, reference: str) -> str | None:
    """The name of the entity of that kind (`envs`, `artifacts`, ...) that is meant; None when there is none."""
    entities: Any = getattr(bundle, kind)
    name = nfc(reference)
    if name in entities:
        return name
    for entity in entities.values():
        if getattr(entity, "id", None) == name:
            return str(entity.name)
    bare = name.removeprefix(f"{bundle.id_root}/")
    return bare if bare in entities else None


def missing(bundle: Bundle, kind: str, reference: str) -> str:
    """Why there is none, with a hint: `no env 'shp' in this bundle; did you mean 'shop'?`."""
    for other, noun in _NOUNS.items():
        if other != kind and resolve(bundle, other, reference) is not None:
            return f"{brief(reference)} is this bundle's {noun}, and this names one of its {kind}"
    return Known(_NOUNS[kind], getattr(bundle, kind)).missing(nfc(reference))
