"""Reads episode logs: what each session was counted as, once, and where its line stands."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import orjson

from agent_env.errors import ConfigError, FailureKind
from agent_env.observe.line import FORMAT
from agent_env.observe.record import Fate, Of

Json = Any
Key = tuple[str, str, int]

_MOST_ROTATED = 1000
_GZIP = b"\x1f\x8b"


@dataclass(frozen=True, slots=True)
class Source:
    """A file as it was read. Its server may have rotated it since, so that another has its name."""

    path: Path
    device: int
    inode: int

    def open(self) -> BinaryIO:
        """Raises ConfigError when it is gone."""
        for path in (self.path, *_rotated(self.path)):
            file = path.open("rb")
            if (self.device, self.inode) == _identity(file):
                return file
            file.close()
        raise ConfigError(f"{self.path}: it was rotated away while it was read: try again")


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
    source: Source
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
        with self.source.open() as file:
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
    for source, file in _opened(paths):
        with file:
            _read(log, entries, source, file)
    if log.notices and not log.runs:
        named = ", ".join(map(str, paths))
        raise ConfigError(f"{named}: not an episode log: what --episode-log FILE of a server writes is one")
    log.entries = list(entries.values())
    return log


def _opened(paths: Sequence[Path]) -> list[tuple[Source, BinaryIO]]:
    """Every file once, opened before any is read: the newest first, so that none is missed when one is rotated
    meanwhile."""
    found: dict[tuple[int, int], tuple[Source, BinaryIO]] = {}
    try:
        for path in reversed(with_rotated(paths)):
            file: BinaryIO = path.open("rb")
            if (identity := _identity(file)) in found:
                file.close()
            else:
                found[identity] = (Source(path, *identity), file)
    except OSError as error:
        for _, file in found.values():
            file.close()
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from None
    return list(reversed(found.values()))


def _identity(file: BinaryIO) -> tuple[int, int]:
    status = os.fstat(file.fileno())
    return status.st_dev, status.st_ino


def _read(log: Log, entries: dict[Key, Entry], source: Source, file: BinaryIO) -> None:
    path, offset, torn, strange = source.path, 0, 0, 0
    for raw in file:
        start, offset = offset, offset + len(raw)
        if start == 0 and raw.startswith(_GZIP):
            raise ConfigError(f"{path}: it is compressed: unpack it first (gunzip -k {path})")
        if not raw.strip():
            continue
        try:
            entry = _take(log, orjson.loads(raw), source, start, len(raw))
        except ConfigError:
            raise
        except orjson.JSONDecodeError:
            torn += 1
        except (ValueError, TypeError, AttributeError):
            strange += 1
        else:
            if entry is not None:
                entries.pop(entry.key, None)
                entries[entry.key] = entry
    if torn:
        log.notices.append(f"{path}: {torn} torn {'line' if torn == 1 else 'lines'} passed over")
    if strange:
        what = "line of a kind" if strange == 1 else "lines of kinds"
        log.notices.append(f"{path}: {strange} {what} that this version does not know passed over")


def with_rotated(paths: Iterable[Path]) -> list[Path]:
    """The files and those rotated out of them (FILE.1, FILE.2, ...), oldest first, each once."""
    found: dict[Path, None] = {}
    for path in paths:
        older = list(_rotated(path))
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path}: it is no file that can be searched: give the log's own file")
        if not path.exists() and not older:
            raise ConfigError(f"{path}: no such file; --episode-log FILE of a server makes it")
        if path in found and not older:
            continue
        for one in (*reversed(older), *([path] if path.exists() else [])):
            found.pop(one, None)
            found[one] = None
    return list(found)


def _rotated(path: Path) -> Iterator[Path]:
    for number in range(1, _MOST_ROTATED):
        older = path.with_name(f"{path.name}.{number}")
        if not older.is_file():
            return
        yield older


def _take(log: Log, line: Json, source: Source, offset: int, length: int) -> Entry | None:
    """Notes a line. Raises ValueError, TypeError or AttributeError for one that is none of a log's."""
    of, id = line.get("of"), line.get("run")
    if not isinstance(id, str):
        raise TypeError("no run")
    if of == "run":
        if line.get("format") != FORMAT:
            raise ConfigError(f"{source.path}: format {line.get('format')!r}; this version reads {FORMAT}")
        log.runs.setdefault(id, Run(id)).begun = line
    elif of == "end":
        log.runs.setdefault(id, Run(id)).ended = line
    else:
        entry = _entry(line, source, offset, length)
        log.runs.setdefault(id, Run(id))
        return entry
    return None


def _entry(line: dict[str, Json], source: Source, offset: int, length: int) -> Entry:
    phases = line.get("phases") or {}
    wait = phases.get("wait") or {}
    kind, reward = line.get("kind"), line.get("reward")
    return Entry(
        of=Of(str(line.get("of"))),
        run=line["run"],
        n=int(line.get("n", 0)),
        fate=Fate(str(line.get("fate"))),
        at=str(line.get("at", "")),
        seconds=float(line.get("s", 0.0)),
        waited=wait.get("s") if "start" in phases else None,
        session=_text(line.get("session")),
        episode=_text(line.get("episode")),
        task=_text(line.get("task")),
        reward=None if reward is None else float(reward),
        kind=None if kind is None else FailureKind(kind).value,
        reason=_text(line.get("reason")),
        calls_made=int(line.get("calls_made", 0)),
        source=source,
        offset=offset,
        length=length,
    )


def _text(value: Json) -> str | None:
    if value is None or isinstance(value, str):
        return value
    raise TypeError("no text")
