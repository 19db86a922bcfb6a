from __future__ import annotations

from agent_env.training.nemo_gym.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
