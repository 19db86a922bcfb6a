"""An env that reports what a program finds in itself and around it when it starts. Standard library only."""

from __future__ import annotations

import asyncio
import atexit
import http.server
import json
import multiprocessing
import os
import pickle
import random
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from urllib.parse import urlsplit

import neighbour  # a module beside this one

STARTED = os.getcwd()
AT_IMPORT = random.random()


class Thing:
    """Pickled by its module's name, which is `__main__`."""

    value: int | None = 7


def double(number):
    return 2 * number


def report() -> dict:
    return {
        "argv": sys.argv,
        "name": __name__,
        "file": __file__,
        "main is this": sys.modules["__main__"].__dict__ is globals(),
        "module file": neighbour.__file__,
        "path": sys.path,
        "cwd": os.getcwd(),
        "started in": STARTED,
        "home": os.path.expanduser("~"),
        "tmp": tempfile.gettempdir(),
        "stdin": os.fstat(0).st_rdev == os.stat(os.devnull).st_rdev,
        "descriptors": sorted(fd for fd in map(int, os.listdir("/proc/self/fd")) if fd > 2 and _is_open_for_long(fd)),
        "handlers": {
            number.name: str(signal.getsignal(number)).split(" at ")[0]
            for number in signal.valid_signals()
            if isinstance(number, signal.Signals)
        },
        "blocked": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "umask": _umask(),
        "leads its session": os.getsid(0) == os.getpid() == os.getpgid(0),
        "core": resource.getrlimit(resource.RLIMIT_CORE),
        "pickle": pickle.loads(pickle.dumps(Thing())).value,
        "exit code": subprocess.run([sys.executable, "-c", "raise SystemExit(4)"]).returncode,
        "exit code, asyncio": asyncio.run(_exit_code()),
        "output": subprocess.run(["echo", "out"], capture_output=True, text=True).stdout,
        "pool, fork": _pooled("fork"),
        "pool, spawn": _pooled("spawn"),
        "threads": threading.active_count() - 1,  # but for the one that answers
        "main thread": threading.main_thread().name,
        "encoding": [sys.stdout.encoding, sys.getfilesystemencoding(), sys.stdin.encoding],
        "flags": list(sys.flags),
        "prefix": [sys.prefix, sys.base_prefix, os.path.realpath(sys.executable)],
        "collects": __import__("gc").isenabled(),
        "dumpable": os.access("/proc/self/environ", os.R_OK),
    }


def _is_open_for_long(fd: int) -> bool:
    """Neither the listing's own nor a socket of this server's."""
    try:
        target = os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return False
    return not target.startswith(("socket:", "/proc/", "anon_inode:"))


def _pooled(kind: str) -> list:
    with multiprocessing.get_context(kind).Pool(1) as pool:
        result = pool.map(double, [1, 2])
    pool.join()
    return result


def _umask() -> int:
    value = os.umask(0o77)
    os.umask(value)
    return value


async def _exit_code() -> int:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", "raise SystemExit(3)")
    return await process.wait()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        path = urlsplit(self.path).path
        if path == "/.well-known/agent-env.json":
            answer = {"name": os.environ["ENVIRONMENT_NAME"]}
        elif path == "/report":
            answer = report()
        elif path == "/unique":
            answer = {
                "at import": AT_IMPORT,
                "random": random.random(),
                "uuid": str(uuid.uuid4()),
                "authkey": multiprocessing.current_process().authkey.hex(),
            }
        else:
            answer = {}
            END.append(path[1:])
            threading.Thread(target=SERVER.shutdown).start()
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        return


END: list = []
SERVER = None


def main():
    global SERVER
    address = (os.environ["MCP_HOST"], int(os.environ["MCP_PORT"]))
    SERVER = http.server.ThreadingHTTPServer(address, Handler)
    print("serving", flush=True)
    SERVER.serve_forever()
    atexit.register(print, "at exit", flush=True)
    if END == ["return"]:
        return
    if END == ["raise"]:
        raise ValueError("as asked")
    if END == ["text"]:
        sys.exit("with a word")
    if END == ["thread"]:
        threading.Thread(target=lambda: (threading.Event().wait(0.3), print("thread done", flush=True))).start()
        return
    sys.exit(int(END[0]))


if __name__ == "__main__":
    main()
