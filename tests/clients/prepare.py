"""Installs the clients that tests/clients plays with, before any test: python tests/clients/prepare.py"""

from __future__ import annotations

import sys
import time

from verifiers_venv import ClientMissing, ensure_client

if __name__ == "__main__":
    started = time.monotonic()
    try:
        client = ensure_client()
    except ClientMissing as error:
        sys.exit(str(error))
    print(f"{client.vf_eval} ({time.monotonic() - started:.1f} s)")
