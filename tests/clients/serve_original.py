"""Run by the original's python: its `build_app` on a port. Arguments: bundle, port, step of the reward or nothing."""

import sys

import uvicorn

from agent_env.openenv import build_app

if __name__ == "__main__":
    bundle, port, reward = sys.argv[1:4]
    app = build_app(bundle, reward=reward or None)
    uvicorn.run(app, host="127.0.0.1", port=int(port), log_level="warning")
