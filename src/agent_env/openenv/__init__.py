"""Serves a bundle by the OpenEnv protocol."""

from agent_env.openenv.app import build_app

__all__ = ["build_app"]
