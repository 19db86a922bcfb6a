"""The env that the conformance suite starts: a card, and a few ways to misbehave on request. Standard library only.

GET /exit?code=N ends the process, /print?bytes=N prints, /eat?bytes=N takes memory, /deaf ignores SIGTERM from then on,
/variables answers the environment.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import FrameType
from urllib.parse import parse_qsl, urlsplit

held: list[bytearray] = []
deaf = threading.Event()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        asked = dict(parse_qsl(parts.query))
        answer: object = {}
        if parts.path == "/.well-known/agent-env.json":
            answer = {"name": os.environ["ENVIRONMENT_NAME"]}
        elif parts.path == "/variables":
            answer = dict(os.environ)
        elif parts.path == "/exit":
            os._exit(int(asked["code"]))
        elif parts.path == "/deaf":
            os.kill(os.getpid(), signal.SIGUSR1)
            deaf.wait(10)
        elif parts.path == "/print":
            for number in range(int(asked["bytes"]) // 64):
                sys.stdout.write(f"{number:063}\n")
            sys.stdout.write("the last line\n")
            sys.stdout.flush()
        elif parts.path == "/eat":
            for _ in range(int(asked["bytes"]) >> 20):
                held.append(bytearray(b"x" * (1 << 20)))
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return  # what is printed is counted


def stop_listening(number: int, frame: FrameType | None) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    deaf.set()


def main() -> None:
    signal.signal(signal.SIGUSR1, stop_listening)
    server = ThreadingHTTPServer((os.environ["MCP_HOST"], int(os.environ["MCP_PORT"])), Handler)
    print("serving", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
