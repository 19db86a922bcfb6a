"""One session on an OpenEnv server: a websocket that plays one episode.

The wire has no message ids. A reply that was not awaited to its end would be taken for the next one's, so a link whose
wait was cut short is dead and says so. Two kinds of server are spoken to: ours, which answers a reset once the place is
granted and lets the start go on, and others (openenv 0.10.0), whose reset is answered when the env is ready.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidMessage, InvalidStatus

from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.training.nemo_gym.openenv_replies import Started, ToolReply, TurnReply, started, turn_reply
from agent_env.training.nemo_gym.output import joined_text
from agent_env.training.nemo_gym.wire import WireError

Json = Any

END_TURN = "end_turn"
_FRAME_SHARE = 12
"""A tool's text comes twice (`content`, `data`), and JSON writes a control character in six bytes."""


class ServerFull(Exception):
    """The server took no session: it may be tried again."""


class _Refused(EpisodeFailure):
    """The server's own code raised: for a reset of ours that means that it has no such task."""


class EpisodeLink:
    """`EpisodeFailure` from any method means that the environment failed the episode and the link is of no more use."""

    def __init__(self, socket: ClientConnection, url: str, *, ours: bool) -> None:
        self._socket = socket
        self._url = url
        self._ours = ours
        self._dead: str | None = None
        self._reset_pending = False

    @classmethod
    async def connect(cls, url: str, *, ours: bool, max_output: int, token: str | None = None) -> EpisodeLink:
        """Raises OSError, TimeoutError or ServerFull when no session was opened."""
        try:
            socket = await connect(
                "ws" + url.removeprefix("http").rstrip("/") + "/ws",
                additional_headers={"Authorization": f"Bearer {token}"} if token else None,
                compression=None,
                max_size=_FRAME_SHARE * max_output + 1024 * 1024,
                ping_interval=30,
                ping_timeout=60,
                close_timeout=2,
                proxy=None,
                user_agent_header="agent-env",
            )
        except InvalidStatus as error:
            if error.response.status_code in (429, 503):
                raise ServerFull(f"HTTP {error.response.status_code}") from None
            hint = ": it wants a token (--openenv-token-file)" if error.response.status_code in (401, 403) else ""
            raise ConnectionError(f"{url}/ws answers HTTP {error.response.status_code}{hint}") from None
        except (InvalidHandshake, InvalidMessage, EOFError) as error:
            raise ConnectionError(f"{url}/ws opens no websocket: {error}") from None
        return cls(socket, url, ours=ours)

    async def reset(self, split: str, index: int, timeout: float) -> Started:
        """Ours: returns when the place is granted and the start has begun. Others: when the session is known to be
        open; the reset's own answer is read by `tools`. Raises WireError when the server has no such task."""
        data: dict[str, Json] = {"split": split, "index": index}
        if self._ours:
            reset = {"type": "reset", "data": {**data, "ready": False}}
            try:
                reply = await self._ask(reset, timeout, FailureKind.CAPACITY)
            except _Refused as refused:
                raise WireError(f"split, index: {refused.reason}", 409) from None
            return started(self._observed(reply, FailureKind.DEPLOY_FAILED))
        await self._ask({"type": "state"}, timeout, FailureKind.CAPACITY)
        await self._send({"type": "reset", "data": data})
        self._reset_pending = True
        return Started()

    async def tools(self, timeout: float) -> list[dict[str, Json]]:
        """The env's tools, as soon as the env is ready."""
        if self._reset_pending:
            self._observed(await self._read(timeout, FailureKind.DEPLOY_TIMEOUT), FailureKind.DEPLOY_FAILED)
            self._reset_pending = False
        reply = await self._step({"type": "list_tools"}, timeout, FailureKind.DEPLOY_TIMEOUT)
        observation = self._observed(reply, FailureKind.DEPLOY_FAILED)["observation"]
        tools = observation.get("tools")
        if not isinstance(tools, list):
            raise self._broken("list_tools was answered without tools")
        return [tool for tool in tools if isinstance(tool, dict) and isinstance(tool.get("name"), str)]

    async def call(self, tool: str, arguments: str, timeout: float) -> ToolReply:
        """`arguments` is JSON text, passed on as it is: what the model wrote is what the env gets."""
        frame = f'{{"type":"step","data":{{"type":"call_tool","tool_name":{_text(tool)},"arguments":{arguments}}}}}'
        data = self._observed(
            await self._ask_text(frame, timeout, FailureKind.TOOL_TIMEOUT), FailureKind.ENV_UNREACHABLE
        )
        observation = data["observation"]
        error = observation.get("error")
        if not isinstance(error, dict):
            return ToolReply(joined_text(observation.get("result")))
        kind, message = str(error.get("error_type")), str(error.get("message") or "the tool failed without a message")
        if not self._ours and kind in ("timeout", "transport_error"):
            timed_out = kind == "timeout"
            raise EpisodeFailure(FailureKind.TOOL_TIMEOUT if timed_out else FailureKind.ENV_UNREACHABLE, message)
        return ToolReply(message, kind)

    async def end_turn(self, response: str, timeout: float) -> TurnReply:
        action = {"type": "call_tool", "tool_name": END_TURN, "arguments": {"response": response}}
        reply = await self._step(action, timeout, FailureKind.VERIFIER_TIMEOUT)
        return turn_reply(self._observed(reply, FailureKind.VERIFIER_ERROR))

    async def close(self) -> None:
        """Ends the session on the server, whatever it is doing. May be called at any time, more than once."""
        self._dead = self._dead or "closed"
        await self._socket.close()

    def abort(self) -> None:
        """The same at once and without a goodbye, for a caller that can't wait."""
        self._dead = self._dead or "closed"
        self._socket.transport.abort()

    async def _step(self, action: Json, timeout: float, late: FailureKind) -> dict[str, Json]:
        return await self._ask({"type": "step", "data": action}, timeout, late)

    async def _ask(self, message: Json, timeout: float, late: FailureKind) -> dict[str, Json]:
        return await self._ask_text(orjson.dumps(message).decode(), timeout, late)

    async def _ask_text(self, frame: str, timeout: float, late: FailureKind) -> dict[str, Json]:
        await self._send_text(frame)
        return await self._read(timeout, late)

    async def _send(self, message: Json) -> None:
        await self._send_text(orjson.dumps(message).decode())

    async def _send_text(self, frame: str) -> None:
        if self._dead:
            raise EpisodeFailure(FailureKind.PROVIDER_UNAVAILABLE, f"the session on {self._url} is over: {self._dead}")
        try:
            await self._socket.send(frame)
        except ConnectionClosed:
            return  # a refusal may lie unread in front of the close: `_read` tells

    async def _read(self, timeout: float, late: FailureKind) -> dict[str, Json]:
        """The next message's `data` with its `type`. A wait that is cut short leaves the link dead."""
        dead, self._dead = self._dead, "a reply was not awaited to its end"
        try:
            async with asyncio.timeout(timeout):
                text = await self._socket.recv()
        except TimeoutError:
            raise EpisodeFailure(late, self._late(late, timeout)) from None
        except ConnectionClosed as closed:
            raise self._closed(closed) from None
        self._dead = dead
        return self._message(text)

    def _message(self, text: str | bytes) -> dict[str, Json]:
        try:
            message = orjson.loads(text)
        except orjson.JSONDecodeError as error:
            raise self._broken(f"a message is not JSON: {error}") from None
        data = message.get("data") if isinstance(message, dict) else None
        if not isinstance(data, dict):
            raise self._broken("a message has no data")
        if message.get("type") != "error":
            return data
        code, reason = data.get("code"), data.get("message")
        if code == "CAPACITY_REACHED":
            raise ServerFull(str(reason))
        failure = self._broken(f"{code}: {reason}")
        raise _Refused(failure.kind, str(reason)) if code == "EXECUTION_ERROR" else failure

    def _observed(self, data: dict[str, Json], default: FailureKind) -> dict[str, Json]:
        """`data` with an object `observation`. Raises the failure that it tells."""
        observation = data.get("observation")
        data["observation"] = observation = observation if isinstance(observation, dict) else {}
        metadata = data.get("metadata") or observation.get("metadata")
        metadata = metadata if isinstance(metadata, dict) else {}
        failure = observation.get("failure") or metadata.get("failure")
        if isinstance(failure, dict):
            kind, reason = failure.get("kind"), str(failure.get("reason"))
        elif metadata.get("status") == "error":
            kind, reason = None, str(metadata.get("error"))
        else:
            return data
        self._dead = "its episode has failed"
        if isinstance(kind, str) and kind in FailureKind._value2member_map_:
            raise EpisodeFailure(FailureKind(kind), reason)
        raise EpisodeFailure(default, reason)

    def _late(self, late: FailureKind, timeout: float) -> str:
        if late is FailureKind.CAPACITY:
            return f"waited {timeout:.0f} s for a place at {self._url} (--reset-timeout)"
        return f"the OpenEnv server at {self._url} did not answer in {timeout:.0f} s"

    def _closed(self, closed: ConnectionClosed) -> EpisodeFailure:
        code = closed.rcvd.code if closed.rcvd else None
        if code in (1001, 1012):
            return EpisodeFailure(FailureKind.SERVER_SHUTDOWN, f"the OpenEnv server at {self._url} was stopped")
        if closed.sent is not None and closed.sent.code == 1009:
            return EpisodeFailure(FailureKind.ENV_PROTOCOL_ERROR, "a reply was larger than --max-output allows")
        how = f"closed the session ({code})" if code else "broke the connection"
        return EpisodeFailure(FailureKind.PROVIDER_UNAVAILABLE, f"the OpenEnv server at {self._url} {how}")

    def _broken(self, what: str) -> EpisodeFailure:
        self._dead = what
        return EpisodeFailure(FailureKind.ENV_PROTOCOL_ERROR, f"the OpenEnv server at {self._url}: {what}")


def _text(value: str) -> str:
    return orjson.dumps(value).decode()
