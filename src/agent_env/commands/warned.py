"""Warnings of a bundle's plans."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from agent_env.episode import TaskPlan

log = logging.getLogger(__name__)


def say_warnings(plans: Iterable[TaskPlan]) -> None:
    """Log each kind of warning once, with the first task that has it: two thousand tasks may share one."""
    said: set[str] = set()
    for plan in plans:
        for line in plan.warnings:
            why = line.split(": ", 1)[1]
            if why not in said:
                said.add(why)
                log.warning("%s", line)
