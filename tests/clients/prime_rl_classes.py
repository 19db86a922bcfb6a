"""Holds a config against prime-rl's own classes, in an environment that has them: PYTHON prime_rl_classes.py FILE"""

from __future__ import annotations

import importlib
import sys
import tomllib
from pathlib import Path

if __name__ == "__main__":
    classes = importlib.import_module("prime_rl.configs.rl")
    config = tomllib.loads(Path(sys.argv[1]).read_text("utf-8"))
    try:
        resolved = classes.RLConfig.model_validate(config)
    except ValueError as error:
        sys.exit(f"{sys.argv[1]}: {error}")
    sizes = [source.group_size for source in resolved.orchestrator.train.source]
    if sizes != [8]:
        sys.exit(f"{sys.argv[1]}: the group size comes out as {sizes}")
    print(f"{sys.argv[1]}: accepted")
