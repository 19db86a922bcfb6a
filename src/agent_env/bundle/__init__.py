"""Folder -> Bundle, Task, Eval, with every problem named. Pure: no I/O but reading."""

from __future__ import annotations

from agent_env.bundle.folder import load_bundle
from agent_env.bundle.model import Agent, Artifact, Bundle, Env, EnvSettings, Eval, Skill, Step, Task

__all__ = ["Agent", "Artifact", "Bundle", "Env", "EnvSettings", "Eval", "Skill", "Step", "Task", "load_bundle"]
