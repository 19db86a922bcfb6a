"""Plays one row over HTTP as verifiers 0.4.0 does: seed, tool calls one at a time, verify.

What it imitates: a new session per rollout, of whose cookies only the seed's count; a tool's answer is the text of the
body, whatever its status; arguments that are no JSON object and unknown tools are answered here and never sent; nothing
is repeated, and nothing closes the session.
"""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import orjson

from agent_env.errors import AgentEnvError
from agent_env.policies import Policy
from agent_env.toolcalls import BadArguments, read_arguments
from agent_env.training.nemo_gym.rows import Row
from agent_env.training.nemo_gym.transport import Answer, Http, TransportError, cookie_header

Json = Any

NO_TOOL = "agent_env_which_tools"
_SHOWN = 300


class RolloutFailed(AgentEnvError):
    """The seed or the verify got no usable answer: the client has no reward."""


class TurnCap(AgentEnvError):
    """The model may take no further turn. Ends a policy; the rollout is verified."""


@dataclass(frozen=True, slots=True)
class RolloutResult:
    policy: str
    number: int
    """place of the row in its file, from 0"""
    row: str
    """the row's task_id"""
    split: str | None
    index: int | None
    repeat: int
    reward: float | None = None
    """None when the rollout failed; 0.0 when masked"""
    masked: bool = False
    kind: str | None = None
    """failure kind of a masked rollout"""
    reason: str | None = None
    error: str | None = None
    """why the rollout failed for the client"""
    scores: Mapping[str, float] = field(default_factory=dict)
    """by step id, as the server tells them"""
    calls: int = 0
    """tool calls that were sent"""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """seed, first_call, calls (the later ones, in sum), verify, total"""
    timings: Mapping[str, float] = field(default_factory=dict)
    """the server's own: wait_s, deploy_s, load_s, turn_s, verify_s"""
    output: Sequence[Mapping[str, Json]] = ()
    """the Responses items of what was said and called"""

    @property
    def measured(self) -> bool:
        return self.error is None and not self.masked


class Rollout:
    """A rollout under way, as a policy sees it."""

    def __init__(self, http: Http, row: Row, cookie: str | None, rng: Random, max_turns: int | None) -> None:
        self.row: dict[str, Json] = row.data
        self.prompt: str = row.prompt
        self.tools: list[dict[str, Json]] = row.tools
        self.rng = rng
        self.output: list[dict[str, Json]] = []
        """the Responses items of what was said and called"""
        self.call_seconds: list[float] = []
        self.cookie = cookie
        self._http = http
        self._names = {str(tool.get("name")) for tool in self.tools}
        self._max_turns = max_turns
        self._turns = 0
        self._trace = uuid.uuid4().hex
        self._one_at_a_time = asyncio.Lock()

    async def call(self, name: str, arguments: dict[str, Json] | str) -> str:
        """One model turn that calls one tool; the text that the model would read. A `str` is the model's raw text."""
        async with self._one_at_a_time:
            self._take_turn()
            raw = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
            call_id = f"call_{len(self.output):x}_{self._trace[:8]}"
            self.output.append({"type": "function_call", "call_id": call_id, "name": name, "arguments": raw})
            text = await self._answer(name, raw)
            self.output.append({"type": "function_call_output", "call_id": call_id, "output": text})
            return text

    async def ready(self) -> str:
        """Waits until the episode can be played, and counts as a call: a name that no tool has is answered with the
        names that there are."""
        started = time.perf_counter()
        try:
            return (await self._http.post(f"/{NO_TOOL}", b"{}", self.cookie)).text
        except TransportError as error:
            return error.text
        finally:
            self.call_seconds.append(time.perf_counter() - started)

    def say(self, text: str) -> None:
        """An assistant message. The last one is the rollout's final reply."""
        if text:
            self.output.append(
                {
                    "id": f"msg_{self._trace}_{len(self.output)}",
                    "type": "message",
                    "role": "assistant",
                    "status": "completed",
                    "content": [{"type": "output_text", "text": text, "annotations": []}],
                }
            )

    def response(self) -> dict[str, Json]:
        """The rollout in the shape that verifiers posts: no usage, calls without id and status."""
        params = self.row["responses_create_params"]
        return {
            "id": f"resp_{self._trace}",
            "created_at": time.time(),
            "model": params.get("model") or "verifiers",
            "object": "response",
            "output": self.output,
            "parallel_tool_calls": params.get("parallel_tool_calls", True),
            "tool_choice": params.get("tool_choice", "auto"),
            "tools": params.get("tools") or [],
            "status": "completed",
        }

    def _take_turn(self) -> None:
        """At the cap the calls of the last turn were run, and their results are in no message."""
        if self._max_turns is not None and self._turns >= self._max_turns:
            if self.output and self.output[-1]["type"] == "function_call_output":
                self.output.pop()
            raise TurnCap(f"the cap of {self._max_turns} turns is reached")
        self._turns += 1

    async def _answer(self, name: str, raw: str) -> str:
        if name not in self._names:
            return f"error: unknown tool {name!r}"
        try:
            _, body = read_arguments(raw)
        except BadArguments as error:
            return str(error)
        started = time.perf_counter()
        try:
            return (await self._http.post(f"/{name}", body, self.cookie)).text
        except TransportError as error:
            return error.text
        finally:
            self.call_seconds.append(time.perf_counter() - started)


class RolloutClient:
    """Plays rows against the resources server at `url`. `seed` seeds each rollout's own random numbers."""

    def __init__(
        self,
        url: str,
        *,
        request_timeout: float = 600.0,
        headers: Mapping[str, str] | None = None,
        pooled: bool = False,
        seed: int = 0,
        max_turns: int | None = None,
    ) -> None:
        self._http = Http(url, timeout=request_timeout, headers=headers, pooled=pooled)
        self._seed = seed
        self._max_turns = max_turns

    async def check(self) -> None:
        """Raises TransportError when no server listens at the URL."""
        await self._http.check()

    async def aclose(self) -> None:
        await self._http.aclose()

    async def play(self, row: Row, policy: Policy, *, name: str = "policy", repeat: int = 0) -> RolloutResult:
        """One rollout. Never raises for what the server or the policy does: the result says it."""
        seconds: dict[str, float] = {}
        started = time.perf_counter()
        rollout: Rollout | None = None
        verdict: dict[str, Json] = {}
        error: str | None = None
        try:
            rollout = await self._start(row, repeat, seconds)
            await self._run(rollout, policy)
            verdict = await self._verify(row, rollout, seconds)
        except RolloutFailed as failed:
            error = str(failed)
        if rollout and rollout.call_seconds:
            seconds["first_call"], seconds["calls"] = rollout.call_seconds[0], sum(rollout.call_seconds[1:])
        seconds["total"] = time.perf_counter() - started
        episode = verdict.get("episode")
        episode = episode if isinstance(episode, dict) else {}
        return RolloutResult(
            policy=name,
            number=row.number,
            row=row.id,
            split=row.data.get("split"),
            index=row.data.get("index"),
            repeat=repeat,
            reward=verdict.get("reward"),
            masked=bool(verdict.get("mask_sample")),
            kind=episode.get("kind") or verdict.get("failure_kind"),
            reason=verdict.get("failure_reason"),
            error=error,
            scores=episode.get("scores") or {},
            calls=len(rollout.call_seconds) if rollout else 0,
            seconds=seconds,
            timings=episode.get("timings") or {},
            output=rollout.output if rollout else (),
        )

    async def _start(self, row: Row, repeat: int, seconds: dict[str, float]) -> Rollout:
        answer = await self._post("seed", "/seed_session", row.body, None, seconds)
        seeded = _object("seed", answer)
        if seeded.get("mcp"):
            raise RolloutFailed("seed: the server offers its tools over MCP, which this client does not speak")
        try:
            cookie = cookie_header(answer)
        except ValueError as error:
            raise RolloutFailed(f"seed: {error}") from None
        rng = Random(f"{self._seed}/{row.data.get('split')}/{row.data.get('index')}/{repeat}")
        return Rollout(self._http, row, cookie, rng, self._max_turns)

    async def _run(self, rollout: Rollout, policy: Policy) -> None:
        try:
            await policy(rollout)
        except TurnCap:
            return
        except Exception as error:  # the policy is the user's code
            raise RolloutFailed(f"policy: {type(error).__name__}: {error}") from error

    async def _verify(self, row: Row, rollout: Rollout, seconds: dict[str, float]) -> dict[str, Json]:
        body = _dumps({**row.data, "response": rollout.response()})
        verdict = _object("verify", await self._post("verify", "/verify", body, rollout.cookie, seconds))
        missing = [key for key in ("reward", "responses_create_params", "response") if key not in verdict]
        if missing:
            raise RolloutFailed(f"verify: the answer has no {missing[0]!r}")
        try:
            verdict["reward"] = float(verdict["reward"])
        except (TypeError, ValueError):
            raise RolloutFailed(f"verify: the reward is {verdict['reward']!r}, not a number") from None
        return verdict

    async def _post(self, phase: str, path: str, body: bytes, cookie: str | None, seconds: dict[str, float]) -> Answer:
        started = time.perf_counter()
        try:
            answer = await self._http.post(path, body, cookie)
        except TransportError as error:
            raise RolloutFailed(f"{phase}: {error}") from None
        finally:
            seconds[phase] = time.perf_counter() - started
        if not answer.ok:
            raise RolloutFailed(f"{phase}: HTTP {answer.status}: {_detail(answer)}")
        return answer


def _dumps(body: Json) -> bytes:
    try:
        return orjson.dumps(body)
    except TypeError:  # a lone surrogate in a policy's text, which UTF-8 can't carry and JSON's escapes can
        return json.dumps(body).encode()


def _object(phase: str, answer: Answer) -> dict[str, Json]:
    try:
        data = orjson.loads(answer.body)
    except orjson.JSONDecodeError as error:
        raise RolloutFailed(f"{phase}: the answer is not JSON: {error.msg}: {_short(answer.text)}") from None
    if not isinstance(data, dict):
        raise RolloutFailed(f"{phase}: the answer is not a JSON object: {_short(answer.text)}")
    return data


def _detail(answer: Answer) -> str:
    """What an error answer says, `detail` of a JSON one."""
    try:
        data = orjson.loads(answer.body)
    except orjson.JSONDecodeError:
        data = None
    detail = data.get("detail") if isinstance(data, dict) else None
    return _short(detail if isinstance(detail, str) else answer.text)


def _short(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
