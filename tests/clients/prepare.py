"""Installs the clients that tests/clients plays with, before any test: python tests/clients/prepare.py

Which ones: those that AGENT_ENV_REQUIRE names, or all when it names none. Which versions: the pinned ones, or what
AGENT_ENV_VERIFIERS and AGENT_ENV_NEMO_GYM ask for, such as `verifiers` for its newest release.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from clients import nemo_gym_venv, verifiers_venv


def _verifiers() -> tuple[str, Path]:
    client = verifiers_venv.ensure_client()
    return client.version, client.vf_eval


def _nemo_gym() -> tuple[str, Path]:
    client = nemo_gym_venv.ensure_nemo_gym()
    return client.version, client.gym


CLIENTS = {"verifiers": _verifiers, "nemo-gym": _nemo_gym}

if __name__ == "__main__":
    required = os.environ.get("AGENT_ENV_REQUIRE", "").replace(" ", "").split(",")
    chosen = [name for name in CLIENTS if name in required] or list(CLIENTS)
    for name in chosen:
        started = time.monotonic()
        try:
            version, command = CLIENTS[name]()
        except (verifiers_venv.ClientMissing, nemo_gym_venv.ClientMissing) as error:
            sys.exit(f"{name}: {error}")
        print(f"{name} {version}: {command} ({time.monotonic() - started:.1f} s)", flush=True)
