"""The `[env]` table of agent-env.toml: literal values, and secrets that are named instead of written."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping

from agent_env.errors import ConfigError

_REFERENCE = "env:"


def resolve_variables(values: Mapping[str, str], *, env_name: str) -> tuple[dict[str, str], tuple[str, ...]]:
    """The variables to set, and those values that are secrets and must not reach a log.

    A value `env:NAME` is taken from the server's own environment.

    Raises:
        ConfigError: NAME is not set.
    """
    resolved: dict[str, str] = {}
    secrets: list[str] = []
    for name, value in values.items():
        if value.startswith(_REFERENCE):
            source = value.removeprefix(_REFERENCE)
            if source not in os.environ:
                raise ConfigError(
                    f"envs/{env_name}/agent-env.toml: env.{name} = {value!r}: {source} is not set in the server's "
                    "environment"
                )
            value = os.environ[source]
            secrets.append(value)
        resolved[name] = value
    return resolved, tuple(secrets)


def secrets_of(settings: Iterable[Mapping[str, str]]) -> tuple[str, ...]:
    """The secrets that several `[env]` tables name, of those that are set."""
    names = [
        value.removeprefix(_REFERENCE) for table in settings for value in table.values() if value.startswith(_REFERENCE)
    ]
    return tuple(dict.fromkeys(os.environ[name] for name in names if os.environ.get(name)))


def redact(text: str, secrets: Iterable[str]) -> str:
    """`text` with every secret replaced by `***`."""
    for secret in secrets:
        if secret:
            text = text.replace(secret, "***")
    return text
