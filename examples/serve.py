"""Serves the GridSim bundle to trainers, as an OpenEnv server on port 8200.

`agent-env example gridsim bundles/gridsim-v1` writes the bundle. prime-rl's inference router takes port 8000 and its
engines 8100, so this server keeps away from both. 96 episodes at once are enough for a trainer with
`max_inflight = 64` and the rollouts that it abandons within one idle timeout.
"""

import uvicorn

from agent_env.openenv import build_app

if __name__ == "__main__":
    app = build_app("bundles/gridsim-v1", max_concurrent_envs=96)
    uvicorn.run(app, host="127.0.0.1", port=8200)
