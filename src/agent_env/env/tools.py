"""The tools of an env: what there is, and calling them.

What a model does wrong comes back as a result with `is_error`; only what the env or its machine does wrong is raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from agent_env.env.card import Card
from agent_env.env.failures import env_failure
from agent_env.env.http import EnvHttp, HttpError
from agent_env.env.mcp import McpChannel, McpError, RpcError, TooLarge
from agent_env.errors import EpisodeFailure, FailureKind

Json = Any

OPEN_TIMEOUT = 60.0
HIDDEN = "agentenv.io/hiddenByDefault"
MAX_PAGES = 1000

_INVALID_PARAMS = -32602


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool as the env lists it."""

    name: str
    description: str
    input_schema: Json
    """as given"""
    hidden: bool = False
    """the env keeps it from models; it can be called all the same"""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer of a tool."""

    content: list[dict[str, Json]]
    """MCP content blocks; may be empty"""
    structured_content: Json = None
    is_error: bool = False

    @property
    def text(self) -> str:
        """What a model reads: the text blocks, one below the other; other blocks are named in brackets."""
        return "\n".join(_text(block) for block in self.content)


@dataclass(slots=True)
class ToolSession:
    """An MCP session with one env. Calls may run at once."""

    channel: McpChannel
    tools: tuple[Tool, ...]
    _http: EnvHttp
    _names: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    async def open(
        cls, http: EnvHttp, card: Card, *, role: str | None = None, timeout: float = OPEN_TIMEOUT
    ) -> ToolSession:
        """Open a session and list the tools.

        Raises:
            EpisodeFailure: ENV_UNREACHABLE, ENV_PROTOCOL_ERROR (no tools, two of one name, a broken answer), or the
                kinds of a dead env.
        """
        channel = McpChannel(http, card.mcp_path, role)
        async with _told(http, f"opening an MCP session at {card.mcp_path}", timeout):
            await channel.initialize()
            tools = _checked(await _list_while_announcing(channel))
        return cls(channel, tools, http)

    async def list_again(self, *, timeout: float = OPEN_TIMEOUT) -> None:
        """List the tools anew, after something may have changed them. Raises as `open`."""
        async with _told(self._http, "listing the tools", timeout):
            self.tools = _checked(await _list(self.channel))

    async def call(self, name: str, arguments: Mapping[str, Json], *, timeout: float) -> ToolResult:
        """Call a tool once; it is never repeated.

        Raises:
            EpisodeFailure: TOOL_TIMEOUT after `timeout` seconds, whatever the env sends meanwhile;
                ENV_PROTOCOL_ERROR; ENV_UNREACHABLE, ENV_CRASHED, PROVIDER_OOM_KILLED or SANDBOX_LOST.
        """
        what = f"tool {name!r}"
        params = {"name": name, "arguments": dict(arguments)}
        try:
            async with asyncio.timeout(timeout):
                result = await self.channel.request("tools/call", params)
        except TimeoutError:
            raise EpisodeFailure(FailureKind.TOOL_TIMEOUT, f"{what}: no answer within {timeout:g} s") from None
        except (TooLarge, ValueError) as error:
            return tool_error(f"The arguments of {name} can't be sent: {error}")
        except RpcError as error:
            if error.code == _INVALID_PARAMS:
                # The request itself is well formed, so this is about the tool's name or its arguments.
                return tool_error(str(error))
            raise EpisodeFailure(FailureKind.ENV_PROTOCOL_ERROR, f"{what}: {error}") from error
        except McpError as error:
            raise EpisodeFailure(FailureKind.ENV_PROTOCOL_ERROR, f"{what}: {error}") from error
        except HttpError as error:
            raise await env_failure(self._http.sandbox, what, error) from error
        return _tool_result(result, what)

    async def close(self) -> None:
        """End the session; never fails."""
        await self.channel.close()


def tool_error(text: str) -> ToolResult:
    """A result that tells the model what it did wrong."""
    return ToolResult(content=[{"type": "text", "text": text}], is_error=True)


@asynccontextmanager
async def _told(http: EnvHttp, what: str, timeout: float) -> AsyncIterator[None]:
    """What goes wrong inside, as an `EpisodeFailure`."""
    try:
        async with asyncio.timeout(timeout):
            yield
    except TimeoutError:
        raise EpisodeFailure(FailureKind.ENV_UNREACHABLE, f"{what}: not done after {timeout:g} s") from None
    except McpError as error:
        raise EpisodeFailure(FailureKind.ENV_PROTOCOL_ERROR, f"{what}: {error}") from error
    except HttpError as error:
        raise await env_failure(http.sandbox, what, error) from error


async def _list_while_announcing(channel: McpChannel) -> list[Json]:
    """List the tools without waiting for the announcement's answer: every server tried allows it, and it saves a
    round trip. A server that insists on the order gets it."""
    announcing = asyncio.create_task(channel.announce(), name="announce MCP session")
    try:
        listed = await _list(channel)
    except RpcError:
        await announcing
        return await _list(channel)
    except BaseException:
        announcing.cancel()
        await asyncio.wait({announcing})
        raise
    await announcing
    return listed


async def _list(channel: McpChannel) -> list[Json]:
    listed: list[Json] = []
    params: dict[str, Json] = {}
    for _ in range(MAX_PAGES):
        result = await channel.request("tools/list", params, idempotent=True)
        page = result.get("tools")
        if not isinstance(page, list):
            raise McpError("tools/list: the result has no list of tools")
        listed += page
        cursor = result.get("nextCursor")
        if not isinstance(cursor, str) or not cursor:
            return listed
        params = {"cursor": cursor}
    raise McpError(f"tools/list: more than {MAX_PAGES} pages")


def _checked(listed: list[Json]) -> tuple[Tool, ...]:
    tools: dict[str, Tool] = {}
    for entry in listed:
        name = entry.get("name") if isinstance(entry, dict) else None
        if not isinstance(name, str) or not name:
            raise McpError(f"tools/list: a tool without a name: {str(entry)[:200]}")
        if name in tools:
            raise McpError(f"tools/list: two tools are named {name!r}")
        meta = entry.get("_meta")
        tools[name] = Tool(
            name=name,
            description=str(entry.get("description") or ""),
            input_schema=entry.get("inputSchema", {"type": "object", "properties": {}}),
            hidden=isinstance(meta, dict) and meta.get(HIDDEN) is True,
        )
    if not tools:
        raise McpError("tools/list: the env has no tools")
    return tuple(tools.values())


def _tool_result(result: dict[str, Json], what: str) -> ToolResult:
    content = result.get("content")
    if not isinstance(content, list) or not all(isinstance(block, dict) for block in content):
        raise EpisodeFailure(
            FailureKind.ENV_PROTOCOL_ERROR, f"{what}: the result's content is not a list of blocks: {str(result)[:300]}"
        )
    return ToolResult(content, result.get("structuredContent"), result.get("isError") is True)


def _text(block: Mapping[str, Json]) -> str:
    resource = block.get("resource")
    if isinstance(block.get("text"), str):
        return str(block["text"])
    if isinstance(resource, dict):
        return str(resource["text"]) if isinstance(resource.get("text"), str) else f"[resource {resource.get('uri')}]"
    about = block.get("uri") or block.get("mimeType")
    return f"[{block.get('type', 'block')}{f' {about}' if about else ''}]"
