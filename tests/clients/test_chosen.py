"""A client's version is the pinned one, or what a variable asks for, with everything beside it at one version."""

from __future__ import annotations

from pathlib import Path

import pytest
from clients.chosen import Chosen, _version, chosen
from clients.nemo_gym_venv import REQUIREMENTS as NEMO_GYM
from clients.verifiers_venv import REQUIREMENTS as VERIFIERS

from agent_env.errors import ConfigError


@pytest.mark.parametrize(
    ("package", "pinned", "version"), [("verifiers", VERIFIERS, "0.4.0"), ("nemo-gym", NEMO_GYM, "0.7.0")]
)
def test_without_a_wish_it_is_the_pinned_one(
    monkeypatch: pytest.MonkeyPatch, package: str, pinned: Path, version: str
) -> None:
    monkeypatch.delenv(f"AGENT_ENV_{package.upper().replace('-', '_')}", raising=False)
    client = chosen(package, pinned, [], "3.13")
    assert client.version == version
    assert len(client.requirements) > 90


@pytest.mark.integration
def test_a_wish_is_resolved_to_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_IDNA", "idna<3.11")
    assert chosen("idna", VERIFIERS, ["sniffio==1.3.1"], "3.11") == Chosen("3.10", ("idna==3.10", "sniffio==1.3.1"))
    monkeypatch.setenv("AGENT_ENV_IDNA", "idna==0.0.0.1")
    with pytest.raises(ConfigError, match=r"idna==0\.0\.0\.1"):
        chosen("idna", VERIFIERS, [], "3.11")


def test_a_commit_is_told_by_its_first_digits() -> None:
    lines = ["verifiers-hub==1.0", "verifiers @ git+https://github.com/PrimeIntellect-ai/verifiers@0a1b2c3d4e5f"]
    assert _version("verifiers", lines) == "0a1b2c3"
