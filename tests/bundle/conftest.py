from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from agent_env.bundle import load_bundle
from agent_env.errors import BundleError

CARD = '@environment_card(name="shop")\nclass Shop: ...\n'
STEPS = [
    {"id": "env", "type": "deploy_env", "env_id": "shop"},
    {"id": "agent", "type": "deploy_agent", "env_ids": ["shop"]},
    {"id": "ask", "type": "prompt_agent", "prompt": "Refund order 17."},
    {"id": "grade", "type": "env_outcome_verifier", "env_id": "shop", "file_artifact_id": "check"},
]
BASE: Mapping[str, Any] = {
    "envs/shop/Dockerfile": "FROM python:3.12-slim\n",
    "envs/shop/server.py": CARD,
    "artifacts/check/verify.py": "async def verify(mcp_url):\n    return []\n",
    "tasks/refund.json": STEPS,
    "evals/quick.toml": 'tasks = ["refund"]\n',
    "README.md": "# Shop\n",
}

WriteBundle = Callable[..., Path]


@pytest.fixture
def write_bundle(tmp_path: Path) -> WriteBundle:
    """Writes the small good bundle with files changed (None: left out); lists and dicts become JSON."""

    def write(files: Mapping[str, Any] | None = None, *, name: str = "shop-v1", base: bool = True) -> Path:
        folder = tmp_path / name
        for path, content in {**(BASE if base else {}), **(files or {})}.items():
            if content is None:
                continue
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            if isinstance(content, bytes):
                file.write_bytes(content)
            else:
                file.write_text(content if isinstance(content, str) else json.dumps(content))
        folder.mkdir(exist_ok=True)
        return folder

    return write


@pytest.fixture
def problems(write_bundle: WriteBundle) -> Callable[[Mapping[str, Any]], list[str]]:
    """The problem lines of the good bundle with files changed; what Python's own parsers say is cut to `...`."""

    def load(files: Mapping[str, Any]) -> list[str]:
        with pytest.raises(BundleError) as caught:
            load_bundle(write_bundle(files))
        return [_PARSER.sub(r"\1...", line) for line in caught.value.problems]

    return load


_PARSER = re.compile(r"(not valid (?:TOML: |JSON: (?=Expecting|Extra|Invalid control))).*")
