"""What clients send: the requests of NeMo Gym's resources-server protocol (nemo-gym 0.7.0).

Bodies are read here and nowhere else. Everything that can be wrong with one is a `WireError`, whose text names the
field.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from agent_env.env.jsontext import MAX_DEPTH, deeper_than
from agent_env.errors import AgentEnvError
from agent_env.training.nemo_gym.schemas import normalise
from agent_env.training.nemo_gym.spans import NotJson, spans

Json = Any

_ROLLOUT_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_ATTEMPT_SUFFIX = re.compile(r"-a[0-9]+$")
_TYPED_KEYS = frozenset({"resources_session_id", "episode_id", "task_id", "task_data"})
_CLOSE_KEYS = frozenset({"resources_session_id", "episode_id"})


class WireError(AgentEnvError):
    """A request that can't be served as it stands. `status` is the HTTP status of the answer."""

    def __init__(self, message: str, status: int = 422) -> None:
        self.status = status
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Row:
    """What a row says about the task that it plays. Its prompt is the user's to change and is not looked at."""

    split: str
    index: int
    task_id: str | None = None
    tools: bytes | None = None
    """Digest of the tools' names and schemas that the row shows the model."""

    @property
    def name(self) -> str | None:
        """The name that the row gives its task. Older rows hold a path, of which the last segment counts."""
        return None if self.task_id is None else self.task_id.rsplit("/", 1)[-1]


@dataclass(frozen=True, slots=True)
class TypedSeed:
    """The seed of NeMo Gym's environment servers: the caller names the session, so repeating it is harmless."""

    session_id: str
    episode: tuple[str, int]
    row: Row


@dataclass(frozen=True, slots=True)
class VerifyRequest:
    """`params` and `response` are the request's own JSON text, to be echoed as it came."""

    params: str
    response: str
    final_text: str


def parse_seed(body: bytes) -> Row | TypedSeed:
    data = _object(body, "the seed")
    if "resources_session_id" not in data:
        return _row(data, "the row")
    _only(data, _TYPED_KEYS, "the seed")
    task = data.get("task_id")
    if not isinstance(task, dict) or not all(isinstance(task.get(key), str) for key in ("taskset", "task_id")):
        raise WireError("task_id: must be an object with the texts taskset and task_id")
    session_id, episode = _session_id(data), _episode(data)
    if not isinstance(data.get("task_data"), dict):
        raise WireError("task_data: must be an object, the row's fields")
    return TypedSeed(session_id, episode, _row(data["task_data"], "task_data"))


def parse_close(body: bytes) -> str | None:
    """The id of the session to close; None for an empty object, which closes the cookie's."""
    data = _object(body or b"{}", "the request")
    if not data:
        return None
    _only(data, _CLOSE_KEYS, "the request")
    session_id = _session_id(data)
    _episode(data)
    return session_id


def parse_arguments(body: bytes) -> str:
    """A tool call's arguments as the JSON text that the client sent. No body at all is `{}`."""
    if not body.strip():
        return "{}"
    arguments = _object(body, "the arguments")
    # Few of them can't be deep. What goes deeper is refused by the OpenEnv library or by envs, with the whole session.
    if body.count(b"[") + body.count(b"{") > MAX_DEPTH and deeper_than(arguments, MAX_DEPTH):
        raise WireError(f"the arguments: nested more than {MAX_DEPTH} deep")
    return body.decode()


def parse_verify(body: bytes) -> VerifyRequest:
    """Reads a verify request with the place of each field, so that `response` can be echoed byte for byte.

    `response` may lack ids and usage, be empty or end in a call without an answer: clients differ there.
    """
    try:
        fields = spans(body)
    except NotJson as fault:
        raise WireError(f"the request: {fault}") from None
    if "response" not in fields:
        raise WireError("response: missing")
    response, text = fields["response"]
    if not isinstance(response, dict):
        raise WireError(f"response: must be an object, got {_kind(response)}")
    params = fields.get("responses_create_params", ({}, "{}"))[1]
    return VerifyRequest(params=params, response=text, final_text=final_text(response.get("output")))


def final_text(output: Json) -> str:
    """The text of the last assistant message, the reply that ends an open turn. What an earlier `end_turn` handed in
    belongs to the turn before and is passed over."""
    text = ""
    for item in output if isinstance(output, list) else ():
        if not isinstance(item, dict):
            continue
        if item.get("type") == "function_call" and item.get("name") == "end_turn":
            text = ""
        elif item.get("type", "message") == "message" and item.get("role") == "assistant":
            text = _message_text(item.get("content"))
    return text.encode("utf-8", "replace").decode()


def tools_digest(tools: Iterable[Mapping[str, Json]]) -> bytes:
    """Of the names and schemas alone: descriptions are the user's to change, clients add keys of their own."""
    shown = sorted(
        ([str(tool.get("name")), normalise(tool.get("parameters"))] for tool in tools), key=lambda tool: str(tool[0])
    )
    return hashlib.blake2b(orjson.dumps(shown, option=orjson.OPT_SORT_KEYS), digest_size=16).digest()


def _row(data: dict[str, Json], where: str) -> Row:
    split, index, task_id = data.get("split"), data.get("index"), data.get("task_id")
    if not isinstance(split, str) or not split:
        raise WireError(f"split: {where} must name the split as a text, got {_kind(split)}")
    if not isinstance(index, int) or isinstance(index, bool) or index < 0:
        raise WireError(f"index: {where} must hold a whole number from 0 on, got {_kind(index)} {_short(index)}")
    if task_id is not None and not isinstance(task_id, str):
        raise WireError(f"task_id: must be a text, got {_kind(task_id)}")
    return Row(split, index, task_id, _row_tools(data.get("responses_create_params")))


def _row_tools(params: Json) -> bytes | None:
    tools = params.get("tools") if isinstance(params, dict) else None
    if not isinstance(tools, list):
        return None
    return _shown_digest(orjson.dumps(tools))


@functools.lru_cache(maxsize=256)
def _shown_digest(tools: bytes) -> bytes:
    """Rows by the thousand show the same few toolsets."""
    shown = orjson.loads(tools)
    return tools_digest(tool for tool in shown if isinstance(tool, dict) and tool.get("type") == "function")


def _session_id(data: dict[str, Json]) -> str:
    value = data.get("resources_session_id")
    if not isinstance(value, str) or not value:
        raise WireError(f"resources_session_id: must be a text that is not empty, got {_kind(value)}")
    if len(value) > 512:
        raise WireError("resources_session_id: longer than 512 characters")
    return value


def _episode(data: dict[str, Json]) -> tuple[str, int]:
    episode = data.get("episode_id")
    if not isinstance(episode, dict):
        raise WireError(f"episode_id: must be an object with rollout_id and attempt, got {_kind(episode)}")
    _only(episode, {"rollout_id", "attempt"}, "episode_id")
    rollout, attempt = episode.get("rollout_id"), episode.get("attempt", 0)
    if not isinstance(rollout, str) or not _ROLLOUT_ID.fullmatch(rollout) or _ATTEMPT_SUFFIX.search(rollout):
        raise WireError("episode_id.rollout_id: letters, digits, '.', '_', '-' only, and no -a<number> at its end")
    if not isinstance(attempt, int) or isinstance(attempt, bool) or attempt < 0:
        raise WireError("episode_id.attempt: must be a whole number from 0 on")
    return rollout, attempt


def _only(data: Mapping[str, Json], known: Iterable[str], where: str) -> None:
    if unknown := sorted(set(data) - set(known)):
        raise WireError(f"{unknown[0]}: {where} has no such field; it takes {', '.join(sorted(known))}")


def _object(body: bytes, what: str) -> dict[str, Json]:
    try:
        data = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise WireError(f"{what}: not valid JSON: {error}") from None
    if not isinstance(data, dict):
        raise WireError(f"{what}: must be a JSON object, got {_kind(data)}")
    return data


def _message_text(content: Json) -> str:
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else ()
    return "".join(
        part["text"]
        for part in parts
        if isinstance(part, dict) and part.get("type") in ("output_text", "text") and isinstance(part.get("text"), str)
    )


def _kind(value: Json) -> str:
    names = {dict: "an object", list: "a list", str: "a text", bool: "a boolean", type(None): "nothing"}
    return names.get(type(value), "a number")


def _short(value: Json) -> str:
    text = "" if value is None else repr(value)
    return text if len(text) <= 40 else text[:40] + "..."
