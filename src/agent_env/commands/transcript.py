"""One logged session as people read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from agent_env.errors import ConfigError
from agent_env.observe.reading import Entry, Log
from agent_env.tables import plain

Json = Any

_MOST_NAMED = 10


def show_session(log: Log, name: str, *, json: bool = False) -> str:
    """The transcript of the session with that id, or whose episode's id begins so. Raises ConfigError."""
    found = [entry for entry in log.entries if name and _called(entry, name)]
    if not found:
        raise ConfigError(f"--show {name}: no session or episode of that id is in the log")
    if len(found) > 1:
        several = ", ".join(f"{entry.run}/{entry.n}" for entry in found[:_MOST_NAMED])
        raise ConfigError(f"--show {name}: {len(found)} sessions are called so; name one of {several}")
    if json:
        return found[0].raw().rstrip()
    try:
        return transcript(found[0].load())
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError(f"--show {name}: its line is none that this version writes; --json prints it") from None


def _called(entry: Entry, name: str) -> bool:
    return name in (entry.session, f"{entry.run}/{entry.n}") or (entry.episode or "").startswith(name)


def transcript(line: Mapping[str, Json]) -> str:
    """A session's line of the episode log as text: how it ended, its times, then what was said and called."""
    return plain("\n".join([*_head(line), "", *_talk(line)])).rstrip()


def _head(line: Mapping[str, Json]) -> Iterator[str]:
    name = line.get("session") or line.get("episode") or f"{line.get('run')}/{line.get('n')}"
    place = f" ({line['split']} {line.get('index')})" if line.get("split") is not None else ""
    yield f"{line['of']} {name} of {line.get('task', '-')}{place}: {_end(line)}"
    if line.get("before"):
        yield f"it was counted as {line['before']} before"
    yield f"{line.get('at')}, {line.get('s', 0):.2f} s{_times(line)}"
    facts = [("episode", line.get("episode")), ("on", line.get("server")), ("bundle", (line.get("bundle") or "")[:16])]
    yield ", ".join([*(f"{what} {value}" for what, value in facts if value), f"run {line.get('run')} {line.get('n')}"])


def _end(line: Mapping[str, Json]) -> str:
    scores = ", ".join(f"{step} {score:.6g}" for step, score in (line.get("scores") or {}).items())
    worth = f", reward {line['reward']:.6g}" if line.get("reward") is not None else ""
    why = ": ".join(filter(None, [line.get("kind"), line.get("reason")]))
    where = f" in the tool {line['failed_tool']}" if line.get("failed_tool") else ""
    return f"{line['fate']}{worth}{f' ({scores})' if scores else ''}{f'; {why}{where}' if why else ''}"


def _times(line: Mapping[str, Json]) -> str:
    timings = line.get("timings") or {}
    within = {"start": ("deploy_s", "load_s"), "verify": ("verify_s",)}
    parts = []
    for name, phase in (line.get("phases") or {}).items():
        inner = [f"{key.removesuffix('_s')} {timings[key]:.2f}" for key in within.get(name, ()) if key in timings]
        parts.append(f"{name} {phase['s']:.2f}" + (f" ({', '.join(inner)})" if inner else ""))
    return f": {', '.join(parts)}" if parts else ""


def _talk(line: Mapping[str, Json]) -> Iterator[str]:
    for who, key in (("system", "system_prompt"), ("user", "prompt")):
        if line.get(key):
            yield from (f"{who}:", *_indented(line[key]), "")
    calls = line.get("calls") or []
    for number, call in enumerate(calls, 1):
        yield from _call(number, call)
    missing = int(line.get("calls_made", 0)) - len(calls)
    if missing > 0:
        yield from (f"({missing} calls are not in the log)", "")
    if line.get("final") is not None:
        yield from ("agent, at the end:", *_indented(line["final"]))


def _call(number: int, call: Mapping[str, Json]) -> Iterator[str]:
    arguments = call["raw_arguments"] if "arguments" not in call else orjson.dumps(call["arguments"]).decode()
    error = f", {call['error']}" if call.get("error") else ""
    times = f"turn {call['turn']}, at {call['at']:.2f} s, {call['s']:.3f} s"
    yield f"{number}. {call['name']} {arguments}  ({times}{error})"
    yield from (*_indented(call.get("output") or ""), "")


def _indented(text: str) -> Iterator[str]:
    return (f"    {line}" for line in text.splitlines())
