"""What a line of the episode log holds: format 1.

Every line is one JSON object with `of` (`session`, `episode`, `run` or `end`), `run` and, for the first two, `n`. A
line of the same `of`, `run` and `n` as an earlier one takes its place. README of the fields: docs/operating.md.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import orjson

from agent_env.cuts import cut
from agent_env.observe.record import Call, Error, Record
from agent_env.observe.redact import Redactor

Json = Any

FORMAT = 1
_NAME = 300
_REASON = 2000
_PROMPT = 16 * 1024


def line_of(record: Record, run: str, redactor: Redactor) -> bytes:
    """One line, with its end."""
    fields = {
        "of": record.of,
        "run": run,
        "n": record.serial,
        "fate": record.fate,
        "before": record.before,
        "at": moment(record.at),
        "s": round(record.seconds, 4),
        "session": record.session,
        "episode": record.episode,
        "server": record.server,
        "bundle": record.bundle,
        "resources_session_id": _short(record.typed_id),
        "rollout": record.rollout,
        "task": _short(record.task),
        "split": _short(record.split),
        "index": record.index,
        "task_id": _short(record.task_id),
        "reward": record.reward,
        "scores": record.scores or None,
        "kind": record.kind,
        "reason": record.reason and cut(record.reason, _REASON),
        "failed_tool": _short(record.failed_tool),
        "phases": {phase.name: {"at": round(phase.at, 4), "s": phase.seconds} for phase in record.phases} or None,
        "timings": record.timings or None,
        "turns_played": record.turns_played,
        "tools_changed": record.tools_changed or None,
        "calls_made": record.calls_made,
        "system_prompt": record.system_prompt and cut(record.system_prompt, _PROMPT),
        "prompt": record.prompt and cut(record.prompt, _PROMPT),
        "calls": [_call(call, redactor) for call in record.calls] or None,
        "final": record.final,
    }
    return redactor.line(dumped({key: value for key, value in fields.items() if value is not None}))


def run_line(run: str, at: float, **facts: Json) -> bytes:
    """The line that a server writes when it starts."""
    return dumped({"of": "run", "run": run, "format": FORMAT, "at": moment(at), **facts})


def end_line(run: str, at: float, summary: str | None, lost: int) -> bytes:
    """The line that a server writes when it ends: its summary, and how many lines are missing."""
    return dumped({"of": "end", "run": run, "at": moment(at), "summary": summary, "lost": lost})


def moment(at: float) -> str:
    """Wall-clock seconds as ISO 8601, UTC, milliseconds."""
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def dumped(fields: dict[str, Json]) -> bytes:
    try:
        return orjson.dumps(fields, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # a lone surrogate that a client's text held
        return json.dumps(fields, default=_unfragmented).encode() + b"\n"


def _call(call: Call, redactor: Redactor) -> dict[str, Json]:
    fields: dict[str, Json] = {"turn": call.turn, "name": call.name[:_NAME]}
    try:
        if call.error == Error.INVALID_ARGS or not call.arguments.endswith("}"):
            orjson.loads(call.arguments)
        fields["arguments"] = redactor.arguments(call.arguments)
    except ValueError:
        fields["raw_arguments"] = call.arguments
    fields |= {"output": call.output, "at": round(call.at, 4), "s": round(call.seconds, 4)}
    if call.error is not None:
        fields["error"] = call.error
    return fields


def _short(text: str | None) -> str | None:
    return text if text is None or len(text) <= _NAME else text[:_NAME] + "..."


def _unfragmented(value: Json) -> Json:
    return orjson.loads(orjson.dumps(value))
