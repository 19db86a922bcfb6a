"""Episode logs for people: which sessions are asked for, a line for each, and what all of them add up to."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from fnmatch import fnmatchcase

from agent_env.errors import ConfigError, FailureKind
from agent_env.observe.line import moment
from agent_env.observe.reading import Entry, Log
from agent_env.observe.record import Fate, Of
from agent_env.observe.totals import episodes_summary
from agent_env.tables import align, plain
from agent_env.training.nemo_gym.tally import Tally

_NOTE = 100
_AGO = re.compile(r"(\d+(?:\.\d+)?)([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which sessions to show. Every condition that is set must hold."""

    tasks: Sequence[str] = ()
    """names, or patterns with `*`"""
    kinds: Sequence[str] = ()
    fates: Sequence[str] = ()
    below: float | None = None
    above: float | None = None
    since: str | None = None
    """as `Entry.at`"""

    def __call__(self, entry: Entry) -> bool:
        return (
            (not self.tasks or any(fnmatchcase(entry.task or "", task) for task in self.tasks))
            and (not self.kinds or entry.kind in self.kinds)
            and (not self.fates or entry.fate in self.fates)
            and (self.below is None or (entry.reward is not None and entry.reward < self.below))
            and (self.above is None or (entry.reward is not None and entry.reward > self.above))
            and (self.since is None or entry.at >= self.since)
        )


def since(text: str, now: datetime | None = None) -> str:
    """A moment, or a time ago such as `90m` or `2h`, as the log writes moments. Raises ConfigError."""
    wrong = ConfigError(f"--since {text}: write a moment (2026-11-30T20:00) or a time ago (90m, 2h, 1d)")
    try:
        if match := _AGO.fullmatch(text.strip()):
            ago = timedelta(**{_UNITS[match[2]]: float(match[1])})
            return moment(((now or datetime.now(UTC)) - ago).timestamp())
        given = datetime.fromisoformat(text)
        return moment((given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp())
    except (ValueError, OverflowError):
        raise wrong from None


def check_names(flag: str, given: Iterable[str], known: type[Fate] | type[FailureKind]) -> None:
    """Raises ConfigError for a name that no session can have."""
    names = [member.value for member in known]
    for name in given:
        if name not in names:
            raise ConfigError(f"{flag} {name}: choose from {', '.join(names)}")


def table(entries: Sequence[Entry]) -> str:
    rows = [["at", "session", "task", "fate", "reward", "calls", "s", "why"]]
    rows += [
        [
            entry.at.removesuffix("Z"),
            plain(entry.name if entry.of is Of.SESSION else entry.name[:12]),
            plain(_one_line(entry.task or "-")),
            entry.fate,
            "-" if entry.reward is None else f"{entry.reward:.4f}",
            str(entry.calls_made),
            f"{entry.seconds:.2f}",
            _why(entry),
        ]
        for entry in entries
    ]
    return align(rows, left=(0, 1, 2, 3, 7))


def totals(log: Log, entries: Sequence[Entry]) -> list[str]:
    """What a server's summary line says, for these sessions: a line for each run, and one in all where there are more.

    A run whose own summary differs, though all its sessions are here, lacks lines.
    """
    runs: dict[str, list[Entry]] = {}
    for entry in entries:
        runs.setdefault(entry.run, []).append(entry)
    if len(runs) < 2:
        return summaries(entries)
    lines = [f"run {run}: {line}" for run, those in runs.items() for line in summaries(those)]
    return lines + [f"in all: {line}" for line in summaries(entries)]


def summaries(entries: Iterable[Entry]) -> list[str]:
    """One of the sessions, one of the episodes, where there are any."""
    sessions, episodes = Sessions(), Counter[Fate]()
    failed: Counter[FailureKind] = Counter()
    for entry in entries:
        if entry.of is Of.SESSION:
            sessions.add(entry)
        else:
            episodes[entry.fate] += 1
            if entry.fate is not Fate.SCORED and entry.kind is not None:
                failed[FailureKind(entry.kind)] += 1
    lines = [sessions.summary()] if sessions.seen else []
    if episodes:
        lines.append(episodes_summary(episodes.total(), episodes[Fate.SCORED], failed))
    return lines


class Sessions:
    """Counts sessions as their server did."""

    def __init__(self) -> None:
        self.seen = 0
        self._open = 0
        self._tally = Tally(lambda: 0.0)

    def add(self, entry: Entry) -> None:
        tally, fate = self._tally, entry.fate
        self.seen += 1
        if entry.waited is not None:
            tally.waited(entry.waited)
        if fate in (Fate.VERIFIED, Fate.MASKED, Fate.RECLAIMED, Fate.CLOSED, Fate.OPEN):
            tally.seeded += 1
        if fate is Fate.MASKED and entry.kind is not None:
            tally.masked[FailureKind(entry.kind)] += 1
        tally.verified += fate is Fate.VERIFIED
        tally.reclaimed += fate is Fate.RECLAIMED
        tally.closed += fate is Fate.CLOSED
        tally.refused += fate is Fate.REFUSED
        tally.abandoned += fate is Fate.ABANDONED
        tally.unknown += fate is Fate.UNKNOWN
        self._open += fate is Fate.OPEN

    def summary(self) -> str:
        return self._tally.summary(self._open)


def gaps(log: Log) -> list[str]:
    """What the runs themselves say is missing from the log."""
    lines = list(log.notices)
    for run in log.runs.values():
        lost = (run.ended or {}).get("lost")
        if lost:
            lines.append(f"run {run.id}: {lost} records could not be written")
        if run.begun is None:
            lines.append(f"run {run.id}: its beginning was rotated away")
        elif run.ended is None:
            lines.append(f"run {run.id}: it has no end: it still runs, or was killed")
    return lines


def _why(entry: Entry) -> str:
    text = plain(_one_line(": ".join(filter(None, [entry.kind, entry.reason]))))
    return text if len(text) <= _NOTE else f"{text[: _NOTE - 3]}..."


def _one_line(text: str) -> str:
    return " ".join(text.split())
