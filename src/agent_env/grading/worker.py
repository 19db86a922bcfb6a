"""One grader process. Run as a script by the python of the graders' venv: standard library and that venv only.

argv = <path of the socket to connect to> <uid to become, or -1> <most bytes of an answer>
Frames both ways: 4 bytes of length, big-endian, then JSON. First comes `{"ready": true}` or `{"failed": <why>}`.
In:  `{"number", "id": <digest>, "source": <base64, once per digest>, "name", "mcp_url", "run", "timeout"}`
Out: `number` again and one of `{"rows": [...]}`, NaN and Infinity as such, `{"error": <what>, "where": <line>}` and
     `{"timeout": <line>}`; with `"spoilt": true` when something that the grader left behind still runs.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import ctypes
import dataclasses
import datetime
import decimal
import faulthandler
import fcntl
import fractions
import inspect
import json
import linecache
import math
import os
import resource
import secrets
import signal
import socket
import struct
import sys
import termios
import time
import traceback
import types
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_NO_NEW_PRIVS = 38
MOST_PROCESSES = 512
"""processes and threads of one grader, where it has a uid of its own"""
MOST_FILE_BYTES = 1 << 30
DEPTH = 64
"""levels of lists and objects that a row may have"""
OUTPUT_GOES_IN = 0.2
SHOWN = 500
"""characters of an exception's message"""
DUMP_AFTER = 0.4
"""seconds past the deadline at which a grader that blocks shows where it is; the parent kills it soon after"""
INT64 = range(-(2**63), 2**63)


def main() -> None:
    path, uid, most = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    channel = socket.socket(socket.AF_UNIX)
    channel.connect(path)
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_FILE_BYTES, MOST_FILE_BYTES))
    try:
        if uid >= 0:
            become(uid)
    except OSError as error:
        send(channel, {"failed": f"it can't run as user {uid}: {error}"})
        return
    send(channel, {"ready": True})
    with contextlib.suppress(OSError):
        Worker(channel, most).serve()


def become(uid: int) -> None:
    """Turn into a user that owns nothing, and keep what can be imported importable.

    A venv or python below a home folder that only its owner may enter is reached through descriptors opened before.
    """
    folders = {path: os.open(path, os.O_PATH | os.O_DIRECTORY) for path in sys.path if os.path.isdir(path)}
    resource.setrlimit(resource.RLIMIT_NPROC, (MOST_PROCESSES, MOST_PROCESSES))
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
    libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    moved = {}
    for path, fd in folders.items():
        if os.access(path, os.R_OK | os.X_OK):
            os.close(fd)
        else:
            moved[path] = f"/proc/self/fd/{fd}"
            os.listdir(moved[path])
    if moved:
        _move_imports(moved)


def _move_imports(moved: dict[str, str]) -> None:
    def new(path: str) -> str:
        home = max((old for old in moved if path == old or path.startswith(old + "/")), key=len, default="")
        return moved[home] + path[len(home) :] if home else path

    sys.path[:] = [new(path) for path in sys.path]
    for module in list(sys.modules.values()):
        folders = getattr(module, "__path__", None)
        if isinstance(folders, list):
            folders[:] = [new(path) for path in folders]
    sys.path_importer_cache.clear()


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    channel.sendall(struct.pack(">I", len(data)) + data)


def receive(channel: socket.socket) -> dict[str, Any] | None:
    """None at the end."""
    head = _exactly(channel, 4)
    if head is None:
        return None
    data = _exactly(channel, struct.unpack(">I", head)[0])
    return None if data is None else dict(json.loads(data))


def _exactly(channel: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        more = channel.recv(min(count - len(data), 1 << 20))
        if not more:
            return None
        data += more
    return bytes(data)


def let_output_go() -> None:
    """Wait, briefly, until the keeper has taken what was printed: it is shown beside a failure."""
    give_up = time.monotonic() + OUTPUT_GOES_IN
    unread = bytearray(4)
    while time.monotonic() < give_up:
        fcntl.ioctl(1, termios.FIONREAD, unread)
        if not any(unread):
            return
        time.sleep(0.001)


class Refused(Exception):
    """The grader did something that its contract does not allow; the message is for its author."""


class Worker:
    """Runs one grader at a time, all in one event loop, so that clients a module keeps go on working."""

    def __init__(self, channel: socket.socket, most: int) -> None:
        self._channel = channel
        self._most = most
        self._modules: dict[str, types.ModuleType] = {}
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._spoilt = False
        # A grader that forks must not have its child answer too.
        os.register_at_fork(after_in_child=channel.close)

    def serve(self) -> None:
        while (message := receive(self._channel)) is not None:
            # What follows in the log is this verify's; the keeper writes it when it comes to it.
            with contextlib.suppress(OSError):
                os.write(1, b"\x1e%d\n" % message["number"])
            answer = self._answer(message)
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(Exception):
                    stream.flush()
            if self._spoilt:
                answer["spoilt"] = True
            if "rows" not in answer:
                with contextlib.suppress(OSError):
                    let_output_go()
            send(self._channel, answer | {"number": message["number"]})

    def _answer(self, message: dict[str, Any]) -> dict[str, Any]:
        name = message["name"]
        faulthandler.dump_traceback_later(message["timeout"] + DUMP_AFTER, file=2)
        try:
            module = self._module(message)
            answer = self._loop.run_until_complete(_graded(module, message))
            self._spoilt = self._loop.run_until_complete(_leaves_tasks())
        except BaseException as error:
            self._spoilt = self._spoilt or isinstance(error, SystemExit | KeyboardInterrupt)
            return failure(error, name)
        finally:
            faulthandler.cancel_dump_traceback_later()
        if len(json.dumps(answer)) > self._most:
            return {"error": f"its rows are longer than {self._most} bytes", "where": ""}
        return answer

    def _module(self, message: dict[str, Any]) -> types.ModuleType:
        """The grader's module, run once per process."""
        name, digest = message["name"], message["id"]
        if digest not in self._modules:
            source = base64.b64decode(message["source"])
            text = source.decode("utf-8", "replace")
            linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
            module = types.ModuleType(f"grader_{secrets.token_hex(8)}")
            module.__file__ = name
            sys.modules[module.__name__] = module
            exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)
            self._modules[digest] = module
        return self._modules[digest]


async def _graded(module: types.ModuleType, message: dict[str, Any]) -> dict[str, Any]:
    name = message["name"]
    async with asyncio.timeout(message["timeout"]) as clock:
        try:
            answer: dict[str, Any] = {"rows": plain_rows(await _called(module, message))}
        except BaseException as error:
            answer = {"timeout": where(error, name)} if clock.expired() else failure(error, name)
        if clock.expired():
            answer.setdefault("timeout", "")
    return answer


async def _called(module: types.ModuleType, message: dict[str, Any]) -> Any:
    verify = getattr(module, "verify", None)
    if not callable(verify):
        raise Refused("it defines no `async def verify(mcp_url)`")
    more = {"run": Run.read(message["run"])} if "run" in inspect.signature(verify).parameters else {}
    result = verify(message["mcp_url"], **more)
    if not inspect.isawaitable(result):
        raise Refused(f"verify must be `async def`: it returned {_named(result)}, which can't be awaited")
    return await result


async def _leaves_tasks() -> bool:
    """Cancel what the grader left running; whether some of it still goes on."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    pending = (await asyncio.wait(tasks, timeout=1))[1] if tasks else set()
    return bool(pending)


def failure(error: BaseException, name: str) -> dict[str, Any]:
    """What the grader raised, and where."""
    if isinstance(error, Refused):
        return {"error": str(error), "where": ""}
    place = where(error, name)
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    traceback.print_exception(error)
    kind = type(error).__name__
    text = _message_of(error)
    text = text if len(text) <= SHOWN else f"{text[:SHOWN]}... ({len(text)} characters)"
    return {"error": f"raised {kind}: {text}" if text else f"raised {kind}", "where": place}


def _message_of(error: BaseException) -> str:
    try:
        return str(error.msg if isinstance(error, SyntaxError) else error)
    except Exception as broken:
        return f"its message can't be shown ({type(broken).__name__})"


def where(error: BaseException, name: str) -> str:
    """The last line of the grader's own that the exception, or one behind it, went through."""
    chain: list[BaseException] = [error]
    for link in chain:
        lines = [frame for frame in traceback.extract_tb(link.__traceback__) if frame.filename == name]
        if lines:
            return f"{name}, line {lines[-1].lineno}: {lines[-1].line}"
        if isinstance(link, SyntaxError) and link.filename == name:
            return f"{name}, line {link.lineno}: {(link.text or '').strip()}"
        behind = link.__cause__ or link.__context__
        if behind is not None and behind not in chain:
            chain.append(behind)
    return ""


def plain_rows(rows: Any) -> list[dict[str, Any]]:
    """The rows as plain JSON values. Raises `Refused` for what can't be one."""
    if not isinstance(rows, list | tuple):
        raise Refused(f"verify must return a list of rows, not {_named(rows)}")
    made = []
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise Refused(f"row {number} must be a dict, not {_named(row)}")
        made.append(
            {_key(key, f"row {number}"): _plain(value, f"row {number}: {key}", DEPTH) for key, value in row.items()}
        )
    return made


def _plain(value: Any, path: str, depth: int) -> Any:
    if depth == 0:
        raise Refused(f"{path[:40]}... is nested more than {DEPTH} levels deep")
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str(value).encode("utf-8", "replace").decode()
    if isinstance(value, int):
        # `in` would count through the range for a subclass of int.
        return int(value) if int(value) in INT64 else _float(int(value))
    if isinstance(value, float | decimal.Decimal | fractions.Fraction):
        return _float(value)
    if isinstance(value, dict):
        return {_key(key, path): _plain(item, f"{path}.{key}", depth - 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item, f"{path}[{place}]", depth - 1) for place, item in enumerate(value)]
    if isinstance(value, datetime.date | datetime.time):
        return value.isoformat()
    if type(value).__module__.partition(".")[0] == "numpy" and callable(getattr(value, "tolist", None)):
        plain = value.tolist()
        # A numpy bool is not `True` itself, and must not pass for it in all_pass.
        return _plain(int(plain) if isinstance(plain, bool) else plain, path, depth - 1)
    raise Refused(f"{path} is {_named(value)}, which is no JSON value")


def _key(key: Any, place: str) -> str:
    if isinstance(key, str):
        return key.encode("utf-8", "replace").decode()
    raise Refused(f"{place} has the key {repr(key)[:60]}, which is no string")


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except ValueError:
        # A signalling NaN of the decimal module.
        return math.nan


def _named(value: Any) -> str:
    kind = type(value)
    prefix = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    return "None" if value is None else f"a value of type {prefix}{kind.__qualname__}"


@dataclasses.dataclass(frozen=True)
class Message:
    """One side of a turn."""

    turn: int
    role: str
    text: str
    sent_at: datetime.datetime | None = None
    author: str | None = None
    written_by_triggers: tuple[str, ...] = ()
    user_sim: Any = None
    parts: tuple[Any, ...] = ()
    env_clock: Any = None

    @classmethod
    def read(cls, data: dict[str, Any], turn: int) -> Message:
        sent = data.get("sent_at")
        return cls(
            turn=turn,
            role=data["role"],
            text=data["text"],
            sent_at=None if sent is None else datetime.datetime.fromtimestamp(sent, datetime.UTC),
            author=data.get("author"),
            parts=tuple(data.get("parts") or ()),
        )


@dataclasses.dataclass(frozen=True)
class Turn:
    """A message to the agent and what it replied; `reply` is None for a turn that was never ended."""

    number: int
    message: Message
    reply: Message | None = None

    @property
    def firings(self) -> tuple[Any, ...]:
        """Triggers are not run here, so none fired."""
        return ()


@dataclasses.dataclass(frozen=True)
class Run:
    """What a grader's parameter `run` is: the turns of the graded prompt's conversation."""

    turns: tuple[Turn, ...] = ()
    unavailable: dict[str, str] = dataclasses.field(default_factory=dict)

    @classmethod
    def read(cls, data: dict[str, Any] | None) -> Run:
        turns = []
        for entry in (data or {}).get("turns", ()):
            reply = entry.get("reply")
            number = entry["number"]
            turns.append(Turn(number, Message.read(entry["message"], number), reply and Message.read(reply, number)))
        return cls(tuple(turns))

    def turn(self, number: int) -> Turn:
        if not 1 <= number <= len(self.turns):
            raise LookupError(f"the run has no turn {number}; it has {len(self.turns)}")
        return self.turns[number - 1]

    def firings(self, trigger_id: str | None = None, *, env: str | None = None) -> tuple[Any, ...]:
        return ()

    def firing(self, trigger_id: str, *, env: str | None = None) -> None:
        return None

    def as_of(self, turn: int) -> Run:
        """The run as it was after that turn."""
        if turn < 0:
            raise ValueError(f"turn must be 0 or more, not {turn}")
        return Run(self.turns[:turn], self.unavailable)


if __name__ == "__main__":
    main()
