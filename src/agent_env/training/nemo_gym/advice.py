"""From measured levels of load to the settings that go with them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from agent_env.training.nemo_gym.client import RolloutResult

Json = Any

GAIN = 1.1
"""A level is worth going on from when its rate is so many times the best before it."""
ENOUGH = 0.9
"""The share of the best rate that the sustained one has at least, at the fewest rollouts at once."""
PLACES_PER_ROLLOUT = 1.5
"""A rollout that the trainer cancels keeps its place until the idle timeout ends it."""
_HOLD_SECONDS = 60
_AT_ONCE = 0.2
"""seconds in which a container can't start"""
_ROUND_TO = 10
_LEAST_TIMEOUT = 60.0
"""verifiers' default, seconds"""


@dataclass(frozen=True, slots=True)
class Level:
    """Null rollouts, so many at once."""

    concurrency: int
    results: tuple[RolloutResult, ...]
    wall: float
    """seconds"""
    held: bool = False
    """all were kept until the last one was ready, so its rate says nothing"""

    @property
    def rate(self) -> float:
        """Measured rollouts a second."""
        return sum(result.measured for result in self.results) / self.wall

    @property
    def clean(self) -> bool:
        return all(result.measured for result in self.results)

    def seconds(self, phase: str) -> list[float]:
        """Of one phase, as the client saw it, in order of length."""
        return sorted(result.seconds[phase] for result in self.results if phase in result.seconds)

    def timing(self, name: str) -> float:
        """Median seconds of one of the server's own timings; 0 where it tells none."""
        told = [result.timings[name] for result in self.results if name in result.timings]
        return median(told) if told else 0.0

    @property
    def rollout(self) -> float:
        """Median seconds of a whole null rollout."""
        return median(self.seconds("total"))

    @property
    def slowest(self) -> float:
        """Seconds of the longest request."""
        return max(max(self.seconds(phase), default=0.0) for phase in ("seed", "first_call", "verify"))


@dataclass(frozen=True, slots=True)
class Settings:
    """What to set, each with the reason in a few words."""

    rate: float
    """rollouts a second that the box sustains"""
    concurrency: int
    """null rollouts at once from which on it does"""
    max_inflight: int
    places: int
    warm: int
    """spares; 0: `auto` will do"""
    request_timeout: float
    notes: tuple[str, ...]

    def report(self) -> dict[str, Json]:
        return {
            "rollouts_per_s": round(self.rate, 3),
            "from_concurrency": self.concurrency,
            "max_inflight": self.max_inflight,
            "max_concurrent_envs": self.places,
            "warm": self.warm or "auto",
            "request_timeout": self.request_timeout,
            "notes": list(self.notes),
        }


def goes_on(levels: Sequence[Level]) -> bool:
    """Whether a higher level could still tell something: no faults yet, and a gain in one of the last two levels."""
    if not levels[-1].clean:
        return False
    best, late = 0.0, 0
    for level in levels:
        late = 0 if level.rate >= GAIN * best else late + 1
        best = max(best, level.rate)
    return late < 2


def sustained(levels: Sequence[Level]) -> Level | None:
    """The lowest level with nearly the best rate. Levels with faults don't count; None when all have some."""
    clean = [level for level in levels if level.clean]
    best = max((level.rate for level in clean), default=0.0)
    return next((level for level in clean if level.rate >= ENOUGH * best), None)


def to_hold(levels: Sequence[Level], model_seconds: float, group_size: int, places: int | None) -> int | None:
    """How many rollouts to keep open at once, as a proof that the box holds them: what the rate would carry, as far as
    there are places, and no more than a minute's starts. None when no level was without faults."""
    level = sustained(levels)
    if level is None:
        return None
    wanted = max(group_size, min(_wanted(level, model_seconds), math.ceil(_HOLD_SECONDS * level.rate)))
    return min(wanted, places or wanted)


def settings(
    levels: Sequence[Level], held: Level | None, model_seconds: float, group_size: int, places: int | None
) -> Settings | None:
    """`model_seconds`: what the model takes over one rollout, all its turns together. `places`: the servers' now; None
    when they don't tell. None when no level was without faults."""
    level = sustained(levels)
    if level is None:
        return None
    tried = max(each.concurrency for each in [*levels, *([held] if held else [])] if each.clean)
    wanted = _wanted(level, model_seconds)
    inflight = max(group_size, min(wanted, tried))
    notes = []
    if held is not None and not held.clean:
        notes.append(f"{held.concurrency} rollouts open at once were too many; see the faults above")
    elif wanted > tried:
        limit = f"the servers have {places} places" if places is not None and places <= tried else f"{tried} were tried"
        notes.append(f"at this rate {wanted} rollouts could be in flight, and {limit}: memory decides about more")
    arrivals = min(level.rate, inflight / (model_seconds + level.rollout))
    start = levels[0].timing("deploy_s")
    warm = group_size + math.ceil(arrivals * start)
    if start < _AT_ONCE:
        warm = 0
        notes.append(f"a sandbox was there after {start:.3f} s (deploy), so spares are kept already, or not needed")
    slowest = max(each.slowest for each in levels if each.clean)
    return Settings(
        rate=level.rate,
        concurrency=level.concurrency,
        max_inflight=inflight,
        places=math.ceil(PLACES_PER_ROLLOUT * inflight),
        warm=warm,
        request_timeout=max(_LEAST_TIMEOUT, _ROUND_TO * math.ceil(4 * slowest / _ROUND_TO)),
        notes=tuple(notes),
    )


def _wanted(level: Level, model_seconds: float) -> int:
    """Rollouts in flight that keep the box busy."""
    return math.ceil(level.rate * (model_seconds + level.rollout))
