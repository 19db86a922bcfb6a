"""What a look at a bundle or a machine found: where, what is wrong, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Level(StrEnum):
    ERROR = "error"
    """it would fail in training"""
    WARNING = "warning"
    """it may fail, or something is left out"""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line for people, and what to do."""

    level: Level
    where: str
    """`tasks/x.json: step 'grade'`, `envs/shop`, or a part of the machine"""
    problem: str
    remedy: str
    more: int = 0
    """further places with the same problem"""

    def __str__(self) -> str:
        others = f" (and {self.more:,} more alike)" if self.more else ""
        return f"{self.level}: {self.where}: {self.problem}{others}; {self.remedy}"


def error(where: str, problem: str, remedy: str) -> Finding:
    return Finding(Level.ERROR, where, problem, remedy)


def warning(where: str, problem: str, remedy: str) -> Finding:
    return Finding(Level.WARNING, where, problem, remedy)
