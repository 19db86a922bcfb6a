"""Rows: one line of `data/<split>.jsonl` chooses one task and shows the model its prompt and tools.

NeMo RL and NeMo Gym read its `agent_ref`, verifiers its `responses_create_params`, our server `split`, `index` and
`task_id`. The prompt is the user's to change; only those three choose what is played.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from agent_env.errors import ConfigError
from agent_env.training.nemo_gym.names import alias_of
from agent_env.training.nemo_gym.schemas import normalise

Json = Any

END_TURN = "end_turn"
NO_FURTHER_PROMPT = "There is no further prompt: this is the last turn. Reply without a tool call to end it."


@dataclass(frozen=True, slots=True)
class TaskEntry:
    """One task as the OpenEnv server's Task API lists it."""

    split: str
    index: int
    name: str
    prompt: str
    system_prompt: str | None
    toolset: str | None
    """None: the server does not say"""
    turns: int | None
    """turns that the model plays; None: the server does not say"""

    @property
    def label(self) -> str:
        return f"{self.split} {self.index} ({self.name})"


def read_entry(split: str, index: int, row: Json) -> TaskEntry:
    """A TaskEntry from a Task API row. Raises ConfigError for one that can't be played."""
    where = f"task {index} of split {split!r}"
    if not isinstance(row, dict):
        raise ConfigError(f"{where}: the OpenEnv server lists {type(row).__name__}, not an object")
    if row.get("index", index) != index:
        raise ConfigError(f"{where}: the OpenEnv server lists index {row['index']!r} there")
    name = row.get("name") or str(row.get("id") or "").rsplit("/", 1)[-1]
    if not isinstance(name, str) or not name:
        raise ConfigError(f"{where}: the OpenEnv server gives it neither name nor id")
    prompt = row.get("prompt")
    if not isinstance(prompt, str):
        raise ConfigError(f"{where} ({name}): it has no prompt, so no model can play it")
    system, toolset, turns = row.get("system_prompt"), row.get("toolset"), row.get("turns")
    return TaskEntry(
        split=split,
        index=index,
        name=name,
        prompt=prompt,
        system_prompt=system if isinstance(system, str) and system else None,
        toolset=toolset if isinstance(toolset, str) and toolset else None,
        turns=turns if isinstance(turns, int) and not isinstance(turns, bool) else None,
    )


def function_tools(tools: Iterable[Mapping[str, Json]], aliases: Mapping[str, str]) -> list[dict[str, Json]]:
    """An env's tools, `{name, description, input_schema}` each, as the function tools of a row, in the env's order."""
    return [
        {
            "type": "function",
            "name": alias_of(aliases, str(tool["name"])),
            "description": tool.get("description") or "",
            "parameters": normalise(tool.get("input_schema")),
            "strict": False,
        }
        for tool in tools
    ]


def for_task(tools: Sequence[dict[str, Json]], turns: int | None) -> list[dict[str, Json]]:
    """`tools` with `end_turn` only where there is a next prompt to ask for."""
    if turns is None or turns > 1:
        return list(tools)
    return [tool for tool in tools if tool["name"] != END_TURN]


def build_row(task: TaskEntry, tools: Sequence[dict[str, Json]], agent: str) -> dict[str, Json]:
    """The row of `task`; `tools` are function tools, `agent` is the name of the config's agent block."""
    messages = [{"role": "user", "content": task.prompt, "type": "message"}]
    if task.system_prompt is not None:
        messages.insert(0, {"role": "system", "content": task.system_prompt, "type": "message"})
    return {
        "responses_create_params": {"input": messages, "tools": list(tools), "parallel_tool_calls": True},
        "split": task.split,
        "index": task.index,
        "task_id": task.name,
        "agent_ref": {"type": "responses_api_agents", "name": agent},
    }


def write_rows(path: Path, rows: Iterable[Mapping[str, Json]]) -> int:
    """Writes JSON Lines (UTF-8, LF, no BOM); how many."""
    count = 0
    with path.open("wb") as file:
        for row in rows:
            file.write(orjson.dumps(row, option=orjson.OPT_APPEND_NEWLINE))
            count += 1
    return count


@dataclass(frozen=True, slots=True)
class Row:
    """A row as a client reads it."""

    number: int
    """its place among the file's rows, from 0"""
    data: dict[str, Json]
    body: bytes
    """`data` as compact JSON, as it is posted"""

    @property
    def id(self) -> str:
        return str(self.data.get("task_id", self.number))

    @property
    def tools(self) -> list[dict[str, Json]]:
        tools = self.data["responses_create_params"].get("tools") or []
        return [tool for tool in tools if isinstance(tool, dict) and tool.get("type") == "function"]

    @property
    def prompt(self) -> str:
        """The text of the user's messages, joined by blank lines."""
        messages = self.data["responses_create_params"].get("input") or ""
        if isinstance(messages, str):
            return messages
        user = [item for item in messages if isinstance(item, dict) and item.get("role") == "user"]
        return "\n\n".join(_text(item.get("content")) for item in user)


def _text(content: Json) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


def read_rows(path: Path, limit: int | None = None) -> list[Row]:
    """The first `limit` rows of a JSON Lines file. A byte order mark, CRLF and blank lines are passed over.

    Raises ConfigError that names the file, and the line that can't be used.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: can't read the rows: {error.strerror or error}") from None
    rows: list[Row] = []
    for number, line in enumerate(content.removeprefix(b"\xef\xbb\xbf").split(b"\n"), start=1):
        if limit is not None and len(rows) >= limit:
            break
        if line.strip():
            data = _parse(path, number, line)
            rows.append(Row(len(rows), data, orjson.dumps(data)))
    if not rows and limit != 0:
        raise ConfigError(f"{path}: the file holds no row")
    return rows


def _parse(path: Path, number: int, line: bytes) -> dict[str, Json]:
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"{path}, line {number}: not JSON: {error.msg}") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{path}, line {number}: a row is a JSON object, this is {type(data).__name__}")
    if not isinstance(data.get("responses_create_params"), dict):
        raise ConfigError(f"{path}, line {number}: the row has no object 'responses_create_params'")
    return data
