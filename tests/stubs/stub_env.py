"""A quick env server on the standard library alone: up in well under 100 ms.

It speaks the card, MCP over streamable HTTP (JSON answers, or SSE), the data plane and one extension, and misbehaves
on request. Every knob is an environment variable (set them through `write_stub_bundle(env_vars=...)`):

STUB_START_DELAY   seconds before the port is bound
STUB_CARD_DELAY    seconds each card request takes
STUB_TOOL_DELAY    seconds each tool call takes
STUB_EXIT_AT_START exit code: end at once, before the port is bound
STUB_EXIT_AFTER    seconds until the process ends by itself with STUB_EXIT_CODE
STUB_EXIT_CODE     exit code of `crash` and STUB_EXIT_AFTER (default 3)
STUB_CRASH_ON      name of a tool whose call ends the process
STUB_PRINT_BYTES   bytes printed to stdout at the start, in lines
STUB_TOOLS         JSON list of tools to list instead of the built-in ones (they echo)
STUB_SSE           1: MCP answers as an event stream
STUB_STATELESS     1: no session ids
STUB_IGNORE_TERM   1: SIGTERM is ignored
STUB_SPAWN         number of child processes to start, each in a session of its own
STUB_MCP_PATH      path of the MCP endpoint (default /mcp)
STUB_LOAD_DELAY    seconds the load extension takes
STUB_DATA_DELAY    seconds data/add takes
STUB_EXIT_ON_GET   exit code: end when data/get is asked
STUB_REFUSE        a data method that fails
STUB_OPERATIONS    comma-separated data methods that it says it serves (default all three)

Built-in tools: `echo {text}`, `add {a, b}`, `sleep {seconds}`, `submit {value}`, `look {}`, `fail {message}`
(isError), `crash {}`, `big {size}`, `write {path, text}`, `whoami {}` (role, session) and the hidden `plumbing {}`.
Data plane: `data/add` appends parts, `data/reset` drops them, `data/get` answers one data part
`{"parts", "loaded", "submission"}`. Extension `urn:stub:load/v1` {"value": x} stores `loaded`; "bad" is refused.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid

KNOB = os.environ.get
STATE = {"parts": [], "loaded": None, "submission": None}
SESSIONS = set()


def schema(**properties):
    return {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": list(properties),
    }


BUILT_IN = [
    {"name": "echo", "description": "Answers the text.", "inputSchema": schema(text="string")},
    {"name": "add", "description": "Adds two integers.", "inputSchema": schema(a="integer", b="integer")},
    {"name": "sleep", "description": "Sleeps.", "inputSchema": schema(seconds="number")},
    {"name": "submit", "description": "Submits a value.", "inputSchema": schema(value="number")},
    {"name": "look", "description": "What was loaded and submitted.", "inputSchema": schema()},
    {"name": "fail", "description": "Refuses.", "inputSchema": schema(message="string")},
    {"name": "crash", "description": "Ends the process.", "inputSchema": schema()},
    {"name": "big", "description": "Answers `size` bytes.", "inputSchema": schema(size="integer")},
    {"name": "write", "description": "Writes a file.", "inputSchema": schema(path="string", text="string")},
    {"name": "whoami", "description": "Role and session.", "inputSchema": schema()},
    {
        "name": "plumbing",
        "description": "Hidden.",
        "inputSchema": schema(),
        "_meta": {"agentenv.io/hiddenByDefault": True},
    },
]
TOOLS = json.loads(KNOB("STUB_TOOLS") or "null") or BUILT_IN


def card():
    return {
        "name": KNOB("ENVIRONMENT_NAME", "stub"),
        "protocolVersion": "1.0",
        "url": "/agentenv",
        "additionalInterfaces": [{"url": KNOB("STUB_MCP_PATH", "/mcp"), "transport": "mcp"}],
        "capabilities": {
            "operations": KNOB("STUB_OPERATIONS", "data/reset,data/add,data/get").split(","),
            "tools": [],
            "extensions": [
                {
                    "uri": "urn:stub:load/v1",
                    "params": {"endpoint": "/agentenv/ext/load", "methods": {"load": {"method": "POST"}}},
                    "required": None,
                }
            ],
        },
        "children_environments": None,
    }


def call_tool(name, arguments, headers):
    time.sleep(float(KNOB("STUB_TOOL_DELAY", "0")))
    if name == KNOB("STUB_CRASH_ON") or name == "crash":
        print("crashing as asked", flush=True)
        os._exit(int(KNOB("STUB_EXIT_CODE", "3")))
    try:
        if name == "echo":
            return text(str(arguments["text"]))
        if name == "add":
            return structured({"sum": arguments["a"] + arguments["b"]})
        if name == "sleep":
            time.sleep(float(arguments["seconds"]))
            return text("slept")
        if name == "submit":
            STATE["submission"] = float(arguments["value"])
            return structured({"accepted": True})
        if name == "look":
            return structured({"loaded": STATE["loaded"], "submission": STATE["submission"]})
        if name == "fail":
            raise ValueError(arguments["message"])
        if name == "big":
            return text("x" * int(arguments["size"]))
        if name == "write":
            with open(arguments["path"], "w") as file:
                file.write(arguments["text"])
            return text("written")
        if name == "whoami":
            return structured({"role": headers.get("agentenv-role"), "session": headers.get("mcp-session-id")})
        if any(tool["name"] == name for tool in TOOLS):
            return text(json.dumps(arguments))
    except Exception as error:
        return text(f"Error executing tool {name}: {error}", error=True)
    return text(f"Unknown tool: {name}", error=True)


def text(value, error=False):
    return {"content": [{"type": "text", "text": value}], "isError": error}


def structured(value):
    return {**text(json.dumps(value)), "structuredContent": value}


def mcp(message, headers):
    """(status, extra headers, body or None)"""
    method, params = message.get("method"), message.get("params") or {}
    session = headers.get("mcp-session-id")
    if "text/event-stream" not in headers.get("accept", ""):
        return 406, {}, error(None, -32600, "Not Acceptable")
    if method == "initialize":
        own = {} if KNOB("STUB_STATELESS") else {"Mcp-Session-Id": uuid.uuid4().hex}
        SESSIONS.update(own.values())
        result = {
            "protocolVersion": params.get("protocolVersion"),
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "stub", "version": "1"},
        }
        return 200, own, answer(message["id"], result)
    if not KNOB("STUB_STATELESS") and session not in SESSIONS:
        return (404 if session else 400), {}, error("server-error", -32600, "Session not found")
    if "id" not in message:
        return 202, {}, None
    if method == "tools/list":
        return 200, {}, answer(message["id"], {"tools": TOOLS})
    if method == "tools/call":
        return 200, {}, answer(message["id"], call_tool(params["name"], params.get("arguments") or {}, headers))
    if method == "ping":
        return 200, {}, answer(message["id"], {})
    return 200, {}, error(message["id"], -32601, "Method not found")


def data_plane(message):
    method, params = message.get("method"), message.get("params") or {}
    if method == "data/get" and KNOB("STUB_EXIT_ON_GET"):
        os._exit(int(KNOB("STUB_EXIT_ON_GET")))
    if method == KNOB("STUB_REFUSE"):
        return error(message.get("id"), -32000, "refused as asked")
    if method == "data/reset":
        STATE.update(parts=[], loaded=None, submission=None)
        return answer(message.get("id"), {})
    if method == "data/add":
        time.sleep(float(KNOB("STUB_DATA_DELAY", "0")))
        STATE["parts"] += params.get("parts", [])
        return answer(message.get("id"), {})
    if method == "data/get":
        return answer(message.get("id"), {"parts": [{"kind": "data", "data": dict(STATE)}]})
    return error(message.get("id"), -32601, f"method not found: {method}")


def load(arguments):
    time.sleep(float(KNOB("STUB_LOAD_DELAY", "0")))
    if arguments.get("value") == "bad":
        refused = {"code": "bad_value", "message": "the value is bad", "retryable": False, "applied": "no"}
        return 400, {"ok": False, "error": refused}
    STATE["loaded"] = arguments.get("value")
    return 200, {"loaded": STATE["loaded"]}


def answer(request_id, result):
    return {"jsonrpc": "2.0", "id": request_id, "result": result}


def error(request_id, code, message):
    return {"jsonrpc": "2.0", "id": request_id, "error": {"code": code, "message": message}}


def respond(method, path, headers, body):
    """(status, headers, body bytes)"""
    if path == "/.well-known/agent-env.json" and method == "GET":
        time.sleep(float(KNOB("STUB_CARD_DELAY", "0")))
        return as_json(200, card())
    if path == KNOB("STUB_MCP_PATH", "/mcp") and method == "POST":
        status, extra, message = mcp(json.loads(body), headers)
        if message is None:
            return status, extra, b""
        if KNOB("STUB_SSE") and status == 200:
            event = b"event: message\r\ndata: " + json.dumps(message).encode() + b"\r\n\r\n"
            return 200, {**extra, "Content-Type": "text/event-stream"}, event
        return as_json(status, message, extra)
    if path == KNOB("STUB_MCP_PATH", "/mcp") and method == "DELETE":
        known = headers.get("mcp-session-id") in SESSIONS
        SESSIONS.discard(headers.get("mcp-session-id"))
        return (200 if known else 404), {}, b""
    if path == "/agentenv" and method == "POST":
        return as_json(200, data_plane(json.loads(body)))
    if path == "/agentenv/ext/load" and method == "POST":
        return as_json(*load(json.loads(body or b"{}")))
    return 404, {"Content-Type": "text/plain"}, b"Not Found"


def as_json(status, value, extra=None):
    return status, {**(extra or {}), "Content-Type": "application/json"}, json.dumps(value).encode()


def serve_connection(connection):
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    stream = connection.makefile("rb")
    try:
        while request_line := stream.readline():
            method, path, _ = request_line.decode("latin-1").split(" ", 2)
            headers = {}
            while (line := stream.readline()) not in (b"\r\n", b"\n", b""):
                key, _, value = line.decode("latin-1").partition(":")
                headers[key.strip().lower()] = value.strip()
            body = stream.read(int(headers.get("content-length", 0)))
            status, extra, content = respond(method, path, headers, body)
            head = [f"HTTP/1.1 {status} Stub", f"Content-Length: {len(content)}"]
            head += [f"{key}: {value}" for key, value in extra.items()]
            connection.sendall("\r\n".join(head).encode() + b"\r\n\r\n" + content)
            if headers.get("connection", "").lower() == "close":
                return
    except OSError:
        return
    finally:
        stream.close()
        connection.close()


def main():
    if KNOB("STUB_IGNORE_TERM"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for _ in range(int(KNOB("STUB_SPAWN", "0"))):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    if KNOB("STUB_PRINT_BYTES"):
        line = "y" * 99 + "\n"
        for _ in range(int(KNOB("STUB_PRINT_BYTES")) // 100):
            sys.stdout.write(line)
        print("printed all", flush=True)
    if KNOB("STUB_EXIT_AT_START"):
        print("ending at once as asked", file=sys.stderr, flush=True)
        sys.exit(int(KNOB("STUB_EXIT_AT_START")))
    if KNOB("STUB_EXIT_AFTER"):
        timer = threading.Timer(float(KNOB("STUB_EXIT_AFTER")), os._exit, [int(KNOB("STUB_EXIT_CODE", "3"))])
        timer.daemon = True
        timer.start()
    time.sleep(float(KNOB("STUB_START_DELAY", "0")))
    listener = socket.create_server((KNOB("MCP_HOST", "0.0.0.0"), int(KNOB("MCP_PORT", "18765"))), backlog=128)
    print("serving", flush=True)
    while True:
        connection, _ = listener.accept()
        threading.Thread(target=serve_connection, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
