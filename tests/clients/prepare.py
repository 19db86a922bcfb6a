"""Installs the clients that tests/clients plays with, before any test: python tests/clients/prepare.py

Which ones: those that AGENT_ENV_REQUIRE names, or all when it names none.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import nemo_gym_venv
import verifiers_venv


def _verifiers() -> Path:
    return verifiers_venv.ensure_client().vf_eval


def _nemo_gym() -> Path:
    return nemo_gym_venv.ensure_nemo_gym().gym


CLIENTS = {"verifiers": _verifiers, "nemo-gym": _nemo_gym}

if __name__ == "__main__":
    required = os.environ.get("AGENT_ENV_REQUIRE", "").replace(" ", "").split(",")
    chosen = [name for name in CLIENTS if name in required] or list(CLIENTS)
    for name in chosen:
        started = time.monotonic()
        try:
            command = CLIENTS[name]()
        except (verifiers_venv.ClientMissing, nemo_gym_venv.ClientMissing) as error:
            sys.exit(f"{name}: {error}")
        print(f"{command} ({time.monotonic() - started:.1f} s)", flush=True)
