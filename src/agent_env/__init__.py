"""Turns a bundle (environments, tasks, graders) into an RL environment that trainers play."""

__version__ = "0.1.0"
