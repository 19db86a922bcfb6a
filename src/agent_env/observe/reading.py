"""Reads episode logs: what each session was counted as, once, and where its line stands."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from agent_env.errors import ConfigError
from agent_env.observe.line import FORMAT
from agent_env.observe.record import Fate, Of

Json = Any
Key = tuple[str, str, int]

_MOST_ROTATED = 1000


@dataclass(slots=True)
class Entry:
    """What a table needs of a session; `load` gives the rest. Attributes as in `Record`."""

    of: Of
    run: str
    n: int
    fate: Fate
    at: str
    seconds: float
    waited: float | None
    session: str | None
    episode: str | None
    task: str | None
    reward: float | None
    kind: str | None
    reason: str | None
    calls_made: int
    path: Path
    offset: int
    length: int

    @property
    def key(self) -> Key:
        return (self.of, self.run, self.n)

    @property
    def name(self) -> str:
        """What people call it."""
        return (self.episode if self.of is Of.EPISODE else self.session) or f"{self.run}/{self.n}"

    def raw(self) -> str:
        """The whole line, as text."""
        with self.path.open("rb") as file:
            file.seek(self.offset)
            return file.read(self.length).decode()

    def load(self) -> dict[str, Json]:
        line: dict[str, Json] = orjson.loads(self.raw())
        return line


@dataclass(slots=True)
class Run:
    """One run of a server, as its own lines tell it."""

    id: str
    begun: dict[str, Json] | None = None
    """Its first line; None when that was rotated away."""
    ended: dict[str, Json] | None = None
    """Its last line; None while it runs, or when it was killed."""


@dataclass(slots=True)
class Log:
    entries: list[Entry] = field(default_factory=list)
    """Each session once, in the order in which they were counted last."""
    runs: dict[str, Run] = field(default_factory=dict)
    notices: list[str] = field(default_factory=list)
    """What of the files could not be read."""


def read(paths: Sequence[Path]) -> Log:
    """Each file stands for those rotated out of it, too. Raises ConfigError for one that can't be read."""
    log, entries = Log(), dict[Key, Entry]()
    for path in with_rotated(paths):
        torn = 0
        for offset, raw in _lines(path):
            try:
                line = orjson.loads(raw)
                if not isinstance(line, dict):
                    raise ValueError
            except ValueError:
                torn += 1
                continue
            if (entry := _take(log, line, path, offset, len(raw))) is not None:
                entries.pop(entry.key, None)
                entries[entry.key] = entry
        if torn:
            log.notices.append(f"{path}: {torn} torn {'line' if torn == 1 else 'lines'} passed over")
    log.entries = list(entries.values())
    return log


def with_rotated(paths: Iterable[Path]) -> list[Path]:
    """The files and those rotated out of them (FILE.1, FILE.2, ...), oldest first, each once."""
    found: dict[Path, None] = {}
    for path in paths:
        numbers = range(1, _MOST_ROTATED)
        rotated = list(_while_there(path.with_name(f"{path.name}.{number}") for number in numbers))
        if not path.is_file() and not rotated:
            raise ConfigError(f"{path}: no such file; --episode-log FILE of a server makes it")
        for one in (*reversed(rotated), *([path] if path.is_file() else [])):
            found[one] = None
    return sorted(found, key=lambda one: _age(one, paths))


def _age(path: Path, given: Iterable[Path]) -> tuple[int, int]:
    """Files as they were given, those of one log from the oldest to the newest."""
    for place, one in enumerate(given):
        stem = _stem(one)
        if _stem(path) == stem:
            number = path.name.removeprefix(stem.name).removeprefix(".")
            return place, -int(number) if number else 0
    raise AssertionError(f"{path} belongs to no given file")


def _stem(path: Path) -> Path:
    """`FILE` of `FILE.3`."""
    return path.with_suffix("") if path.suffix[1:].isdigit() else path


def _while_there(paths: Iterable[Path]) -> Iterator[Path]:
    for path in paths:
        if not path.is_file():
            return
        yield path


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    try:
        with path.open("rb") as file:
            offset = 0
            for line in file:
                if line.strip():
                    yield offset, line
                offset += len(line)
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None


def _take(log: Log, line: dict[str, Json], path: Path, offset: int, length: int) -> Entry | None:
    of, id = line.get("of"), str(line.get("run"))
    run = log.runs.setdefault(id, Run(id))
    if of == "run":
        run.begun = line
        if line.get("format") != FORMAT:
            raise ConfigError(f"{path}: format {line.get('format')!r}; this version reads {FORMAT}")
    elif of == "end":
        run.ended = line
    elif of in (Of.SESSION, Of.EPISODE):
        return _entry(line, path, offset, length)
    return None


def _entry(line: dict[str, Json], path: Path, offset: int, length: int) -> Entry:
    phases = line.get("phases") or {}
    wait = phases.get("wait") or {}
    return Entry(
        of=Of(line["of"]),
        run=str(line.get("run")),
        n=int(line.get("n", 0)),
        fate=Fate(line["fate"]),
        at=str(line.get("at", "")),
        seconds=float(line.get("s", 0.0)),
        waited=wait.get("s") if "start" in phases else None,
        session=line.get("session"),
        episode=line.get("episode"),
        task=line.get("task"),
        reward=line.get("reward"),
        kind=line.get("kind"),
        reason=line.get("reason"),
        calls_made=int(line.get("calls_made", 0)),
        path=path,
        offset=offset,
        length=length,
    )
