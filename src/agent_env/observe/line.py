"""What a line of the episode log holds: format 1.

Every line is one JSON object with `of` (`session`, `episode`, `run` or `end`), `run` and, for the first two, `n`. A
line of the same `of`, `run` and `n` as an earlier one takes its place. README of the fields: docs/operating.md.
"""

from __future__ import annotations

import functools
import json
from datetime import UTC, datetime
from typing import Any

import orjson

from agent_env.cuts import cut
from agent_env.observe.record import Call, Error, Phase, Record
from agent_env.observe.redact import Redactor

Json = Any

FORMAT = 1
_NAME = 300
_REASON = 2000
_PROMPT = 16 * 1024


def line_of(record: Record, run: str, redactor: Redactor) -> bytes:
    """One line, with its end. Fields without a value are left out."""
    # Each field by itself, and enums by their plain text: a table that is filled and then weeded costs twice as much.
    fields: dict[str, Json] = {"of": record.of._value_, "run": run, "n": record.serial, "fate": record.fate._value_}
    if record.before is not None:
        fields["before"] = record.before
    fields["at"] = moment(record.at)
    fields["s"] = _rounded(record.seconds)
    if record.session is not None:
        fields["session"] = record.session
    if record.episode is not None:
        fields["episode"] = record.episode
    if record.server is not None:
        fields["server"] = record.server
    if record.bundle is not None:
        fields["bundle"] = record.bundle
    if record.typed_id is not None:
        fields["resources_session_id"] = _short(record.typed_id)
    if record.rollout is not None:
        fields["rollout"] = record.rollout
    _place(fields, record)
    _worth(fields, record)
    if record.phases:
        fields["phases"] = {phase.name: _phase(phase) for phase in record.phases}
    if record.timings:
        fields["timings"] = record.timings
    fields["turns_played"] = record.turns_played
    if record.tools_changed:
        fields["tools_changed"] = True
    fields["calls_made"] = record.calls_made
    if record.system_prompt is not None:
        fields["system_prompt"] = cut(record.system_prompt, _PROMPT)
    if record.prompt is not None:
        fields["prompt"] = cut(record.prompt, _PROMPT)
    if record.calls:
        fields["calls"] = [_call(call, redactor) for call in record.calls]
    if record.final is not None:
        fields["final"] = record.final
    return redactor.line(dumped(fields))


def _place(fields: dict[str, Json], record: Record) -> None:
    """What the row said."""
    if record.task is not None:
        fields["task"] = _short(record.task)
    if record.split is not None:
        fields["split"] = _short(record.split)
    if record.index is not None:
        fields["index"] = record.index
    if record.task_id is not None:
        fields["task_id"] = _short(record.task_id)


def _worth(fields: dict[str, Json], record: Record) -> None:
    """What the rollout was worth, or why it was not."""
    if record.reward is not None:
        fields["reward"] = record.reward
    if record.scores:
        fields["scores"] = record.scores
    if record.kind is not None:
        fields["kind"] = record.kind
    if record.reason is not None:
        fields["reason"] = cut(record.reason, _REASON)
    if record.failed_tool is not None:
        fields["failed_tool"] = _short(record.failed_tool)


def run_line(run: str, at: float, **facts: Json) -> bytes:
    """The line that a server writes when it starts."""
    return dumped({"of": "run", "run": run, "format": FORMAT, "at": moment(at), **facts})


def end_line(run: str, at: float, summary: str | None, lost: int) -> bytes:
    """The line that a server writes when it ends: its summary, and how many lines are missing."""
    return dumped({"of": "end", "run": run, "at": moment(at), "summary": summary, "lost": lost})


def moment(at: float) -> str:
    """Wall-clock seconds as ISO 8601, UTC, milliseconds."""
    milliseconds = round(at * 1000)
    return f"{_second(milliseconds // 1000)}.{milliseconds % 1000:03d}Z"


@functools.lru_cache(maxsize=8)
def _second(at: int) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").removesuffix("+00:00")


def _rounded(seconds: float) -> float:
    """To a tenth of a millisecond; much quicker than `round`."""
    return int(seconds * 10_000 + 0.5) / 10_000


def dumped(fields: dict[str, Json]) -> bytes:
    try:
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a lone surrogate that a client's text held
        return json.dumps(fields, default=_unfragmented).encode() + b"\n"


def _phase(phase: Phase) -> dict[str, float]:
    """The wait is told to the last digit, so that the longest one is what the summary says."""
    return {"at": _rounded(phase.at), "s": phase.seconds if phase.name == "wait" else _rounded(phase.seconds)}


def _call(call: Call, redactor: Redactor) -> dict[str, Json]:
    key, arguments = "arguments", call.arguments
    if call.error == Error.INVALID_ARGS or arguments[-1:] != "}":
        key = "arguments" if _is_json(arguments) else "raw_arguments"
    return {
        "turn": call.turn,
        "name": call.name[:_NAME],
        key: redactor.arguments(arguments) if key == "arguments" else arguments,
        "output": call.output,
        "at": _rounded(call.at),
        "s": _rounded(call.seconds),
        **({} if call.error is None else {"error": call.error}),
    }


def _is_json(text: str) -> bool:
    try:
        orjson.loads(text)
    except ValueError:
        return False
    return True


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= _NAME else text[:_NAME] + "..."


def _unfragmented(value: Json) -> Json:
    return orjson.loads(orjson.dumps(value))
