"""An env server on the official SDK alone: mcp 1.x and 2.x. JSON_RESPONSE and STATELESS choose its modes."""

import asyncio
import os

from pydantic import BaseModel
from starlette.responses import JSONResponse

OPTIONS = {"json_response": bool(os.environ.get("JSON_RESPONSE")), "stateless_http": bool(os.environ.get("STATELESS"))}
WHERE = {"host": os.environ["MCP_HOST"], "port": int(os.environ["MCP_PORT"])}

try:
    from mcp.server.fastmcp import Context, FastMCP

    server = FastMCP("probe", **OPTIONS, **WHERE)
    run_options = {}
except ImportError:
    from mcp.server.mcpserver import Context
    from mcp.server.mcpserver import MCPServer as FastMCP

    server = FastMCP("probe")
    run_options = {**OPTIONS, **WHERE}

CANCELLED = []


class Result(BaseModel):
    accepted: bool
    profit: float


@server.custom_route("/.well-known/agent-env.json", methods=["GET"])
async def card(request):
    return JSONResponse({"name": os.environ["ENVIRONMENT_NAME"]})


@server.tool()
def add(a: int, b: int) -> int:
    return a + b


@server.tool()
def model() -> Result:
    return Result(accepted=True, profit=330.95)


@server.tool()
def greet() -> str:
    return "grüß dich"


@server.tool()
def numbers() -> list[int]:
    return [3, 4]


@server.tool()
def nothing() -> None:
    return None


@server.tool()
def refuse() -> str:
    raise ValueError("hour 0: out of range")


@server.tool()
async def nap(seconds: float) -> str:
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        CANCELLED.append(seconds)
        raise
    return "slept"


@server.tool()
def cancelled() -> int:
    return len(CANCELLED)


@server.tool()
async def chatty(ctx: Context) -> str:
    await ctx.info("half way")
    await ctx.report_progress(1, 2, "half")
    return "done"


@server.tool()
def big(size: int) -> str:
    return "x" * size


if __name__ == "__main__":
    server.run("streamable-http", **run_options)
