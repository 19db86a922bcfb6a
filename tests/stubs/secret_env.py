"""An env that leaves a secret wherever an env can, and looks for those of others. Standard library only.

GET /plant?secret=S puts S in every place; /look answers `{secret: [places]}` of what is found; the card is there too.
"""

import builtins
import ctypes
import glob
import http.server
import json
import json.decoder
import os
import re
import sqlite3
import subprocess
import sys
import tempfile
from multiprocessing import shared_memory
from urllib.parse import parse_qsl, urlsplit

SECRET = re.compile(rb"SECRET-[0-9a-z]+")
KEPT = []
OWN_ONLY = "OWN_ONLY" in os.environ
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.shmat.restype = ctypes.c_void_p


def plant(secret):
    KEPT.append(secret)
    builtins.planted = secret
    json.decoder.planted = secret
    os.environ["PLANTED"] = secret
    for folder in (".", os.path.expanduser("~"), tempfile.gettempdir()):
        with open(os.path.join(folder, "planted.txt"), "w") as file:
            file.write(secret)
    with sqlite3.connect(os.environ["DATABASE_URL"].removeprefix("sqlite:///")) as database:
        database.execute("create table if not exists planted (secret text)")
        database.execute("insert into planted values (?)", [secret])
    database.close()
    if OWN_ONLY:
        return
    block = shared_memory.SharedMemory(create=True, size=64)
    block.buf[: len(secret)] = secret.encode()
    KEPT.append(block)
    segment = LIBC.shmget(os.getpid(), 64, 0o1600)
    address = LIBC.shmat(segment, None, 0)
    ctypes.memmove(address, secret.encode(), len(secret))
    descriptor, name = tempfile.mkstemp(dir="/dev/shm")
    os.write(descriptor, secret.encode())
    os.close(descriptor)
    KEPT.append(name)
    # From here on what siblings in one container can see, because it is meant for everybody.
    for folder in ("/tmp", "/var/tmp"):
        with open(f"{folder}/{secret}", "w") as file:
            file.write(secret)
    KEPT.append(subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", secret]))


def look():
    found = {}

    def note(place, data):
        for secret in SECRET.findall(data if isinstance(data, bytes) else str(data).encode()):
            found.setdefault(secret.decode(), set()).add(place)

    note("global", [item for item in KEPT if isinstance(item, str)])
    note("builtins", getattr(builtins, "planted", ""))
    note("module", getattr(json.decoder, "planted", ""))
    note("environ", os.environ)
    roots = {"working folder": ".", "home": os.path.expanduser("~"), "TMPDIR": tempfile.gettempdir()}
    roots |= {} if OWN_ONLY else {"/dev/shm": "/dev/shm", "/tmp": "/tmp", "/var/tmp": "/var/tmp", "image": "/app"}
    for place, root in roots.items():
        for path in glob.iglob(f"{root}/**", recursive=True, include_hidden=True):
            note(place if "agent-env" not in path or place in ("working folder", "home", "TMPDIR") else "folders", path)
            if os.path.isfile(path) and not os.path.islink(path):
                try:
                    with open(path, "rb") as file:
                        note(place, file.read(1 << 20))
                except OSError:
                    continue
    try:
        with sqlite3.connect(os.environ["DATABASE_URL"].removeprefix("sqlite:///")) as database:
            note("database", database.execute("select secret from planted").fetchall())
        database.close()
    except sqlite3.OperationalError:
        pass
    if OWN_ONLY:
        return {secret: sorted(places) for secret, places in found.items()}
    note("System V", attached())
    for entry in filter(str.isdigit, os.listdir("/proc")):
        for name in ("environ", "cmdline"):
            try:
                with open(f"/proc/{entry}/{name}", "rb") as file:
                    note(f"process {name}", file.read())
            except OSError:
                continue
        try:
            with open(f"/proc/{entry}/mem", "rb"):
                if os.stat(f"/proc/{entry}").st_uid != os.getuid():
                    note("process memory", "SECRET-" + f"ofprocess{entry}")
        except OSError:
            continue
    return {secret: sorted(places) for secret, places in found.items()}


def attached():
    with open("/proc/sysvipc/shm") as file:
        rows = [line.split() for line in file][1:]
    data = b""
    for row in rows:
        address = LIBC.shmat(int(row[1]), None, 0o10000)
        if address not in (None, ctypes.c_void_p(-1).value):
            data += ctypes.string_at(address, min(int(row[3]), 4096))
            LIBC.shmdt(ctypes.c_void_p(address))
    return data


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        parts = urlsplit(self.path)
        answer = {}
        if parts.path == "/.well-known/agent-env.json":
            answer = {"name": os.environ["ENVIRONMENT_NAME"]}
        elif parts.path == "/plant":
            plant(dict(parse_qsl(parts.query))["secret"])
        elif parts.path == "/look":
            answer = look()
        body = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        return


if __name__ == "__main__":
    address = (os.environ["MCP_HOST"], int(os.environ["MCP_PORT"]))
    http.server.ThreadingHTTPServer(address, Handler).serve_forever()
