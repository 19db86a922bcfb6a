"""The checks of the conformance suite (conformance.py)."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from agent_env.errors import EpisodeFailure, FailureKind
from agent_env.sandbox.base import Prepared, Sandbox, SandboxProvider, SandboxSpec, SandboxState

_READY = 30.0
"""seconds until the suite's env, which needs a fraction of one, must answer"""


@dataclass(frozen=True, slots=True)
class Case:
    """What a check works on."""

    provider: SandboxProvider
    prepared: Prepared
    leftovers: Callable[[], Awaitable[Sequence[str]]]
    factory: str | None
    kills_by_memory: bool
    patience: float

    async def start(self, **variables: str) -> Sandbox:
        sandbox = await self.provider.start(self.spec(**variables))
        await answers(sandbox)
        return sandbox

    def spec(self, **variables: str) -> SandboxSpec:
        return SandboxSpec(prepared=self.prepared, episode="conformance", env_vars=variables)

    async def eventually(self, holds: Callable[[], Awaitable[bool]], otherwise: str) -> None:
        deadline = time.monotonic() + self.patience
        while not await holds():
            assert time.monotonic() < deadline, otherwise
            await asyncio.sleep(0.05)


Check = Callable[[Case], Awaitable[None]]


async def a_started_env_answers_over_connect(case: Case) -> None:
    sandbox = await case.start()
    assert (await ask(sandbox, "/.well-known/agent-env.json"))["name"] == case.prepared.env.environment_name
    assert (await sandbox.state()) == SandboxState(running=True)
    with await sandbox.connect() as connection:
        assert connection.gettimeout() == 0.0, "the socket must be non-blocking"


async def a_started_env_answers_at_its_url(case: Case) -> None:
    sandbox = await case.start()
    url = sandbox.url
    assert not url.endswith("/")
    card = await asyncio.to_thread(_fetch, f"{url}/.well-known/agent-env.json")
    assert card["name"] == case.prepared.env.environment_name


async def the_env_gets_its_variables(case: Case) -> None:
    sandbox = await case.start(CONFORMANCE_EXTRA="given at the start")
    got = await ask(sandbox, "/variables")
    name = case.prepared.env.environment_name
    assert got["ENVIRONMENT_NAME"] == got["SERVICE_NAME"] == name
    assert got["DATABASE_URL"].startswith("sqlite:///")
    assert got["CONFORMANCE_LITERAL"] == "from the file"
    assert got["CONFORMANCE_EXTRA"] == "given at the start"


async def the_env_does_not_inherit_our_variables(case: Case) -> None:
    os.environ["CONFORMANCE_OURS"] = "not for envs"
    try:
        sandbox = await case.start()
    finally:
        del os.environ["CONFORMANCE_OURS"]
    assert "CONFORMANCE_OURS" not in await ask(sandbox, "/variables")


async def sandboxes_are_apart(case: Case) -> None:
    sandboxes = await asyncio.gather(*(case.start(CONFORMANCE_EXTRA=str(n)) for n in range(4)))
    assert len({sandbox.id for sandbox in sandboxes}) == 4
    for number, sandbox in enumerate(sandboxes):
        assert (await ask(sandbox, "/variables"))["CONFORMANCE_EXTRA"] == str(number)
    await sandboxes[0].stop()
    assert (await sandboxes[1].state()).running


async def exec_gives_code_output_and_input(case: Case) -> None:
    sandbox = await case.start()
    script = "cat; echo to stderr >&2; echo $CONFORMANCE_WORD; exit 3"
    done = await sandbox.exec(["sh", "-c", script], timeout=20, input=b"fed\n", env={"CONFORMANCE_WORD": "word"})
    assert done.exit_code == 3
    assert done.stdout == b"fed\nword\n"
    assert done.stderr == b"to stderr\n"
    assert not done.timed_out
    assert not done.cut


async def exec_of_a_command_that_is_not_there_is_127(case: Case) -> None:
    sandbox = await case.start()
    done = await sandbox.exec(["conformance-no-such-command"], timeout=20)
    assert done.exit_code == 127
    assert done.stderr


async def exec_output_is_bounded_and_says_so(case: Case) -> None:
    sandbox = await case.start()
    done = await sandbox.exec(["sh", "-c", "yes | head -c 3000000"], timeout=20, output_limit=1000)
    assert done.stdout == b"y\n" * 500
    assert done.cut
    assert done.exit_code in (0, 141)


async def exec_ends_at_its_deadline_with_all_that_it_started(case: Case) -> None:
    sandbox = await case.start()
    mark = uuid.uuid4().hex
    began = time.monotonic()
    script = f"(setsid {_idle(mark)} &) ; {_idle(mark)}"
    done = await sandbox.exec(["sh", "-c", script], timeout=1.0)
    assert done.timed_out
    assert time.monotonic() - began < 10, "it came back long after its deadline"
    await _nothing_runs(case, sandbox, mark)
    assert (await sandbox.state()).running, "the env itself must live on"


async def a_cancelled_exec_leaves_no_process(case: Case) -> None:
    sandbox = await case.start()
    mark = uuid.uuid4().hex
    task = asyncio.ensure_future(sandbox.exec(["sh", "-c", _idle(mark)], timeout=60))
    await case.eventually(lambda: _runs(sandbox, mark), "the command did not start")
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await _nothing_runs(case, sandbox, mark)


async def files_go_in_and_come_out(case: Case) -> None:
    sandbox = await case.start()
    data = bytes(range(256)) * 4096
    await sandbox.put("/data/made/on/the/way/file.bin", data)
    assert await sandbox.get("/data/made/on/the/way/file.bin") == data
    await sandbox.put("/data/made/on/the/way/file.bin", b"")
    assert await sandbox.get("/data/made/on/the/way/file.bin") == b""


async def a_file_that_is_missing_or_too_large_is_a_failure(case: Case) -> None:
    sandbox = await case.start()
    await sandbox.put("/data/file", b"0123456789")
    for path, limit in (("/data/none", 100), ("/data/file", 9)):
        try:
            await sandbox.get(path, limit=limit)
        except EpisodeFailure as failure:
            kind = failure.kind
        else:
            raise AssertionError(f"get({path!r}, limit={limit}) must fail")
        assert kind is FailureKind.LOAD_FAILED
    assert await sandbox.get("/data/file", limit=10) == b"0123456789"


async def logs_hold_the_end_and_say_when_cut(case: Case) -> None:
    sandbox = await case.start()
    assert "serving" in await sandbox.logs()
    await ask(sandbox, "/print?bytes=200000")
    await case.eventually(lambda: _logged(sandbox, "the last line"), "the last line is not in the logs")
    text = await sandbox.logs(10_000)
    marker, _, rest = text.partition("\n")
    assert "serving" not in text
    assert "left out" in marker, f"the first line must say that something is missing: {marker!r}"
    assert 9_000 < len(rest) <= 10_000
    assert rest.endswith("the last line\n")


async def an_env_that_ends_by_itself_is_told_by_its_exit_code(case: Case) -> None:
    sandbox = await case.start()
    with suppress(OSError):
        await ask(sandbox, "/exit?code=7")
    await case.eventually(lambda: _ended(sandbox), "its end was not noticed")
    state = await sandbox.state()
    assert (state.exit_code, state.oom_killed, state.stopped_by_us, state.lost) == (7, False, False, False), state
    assert "serving" in await sandbox.logs(), "its logs must still be there"
    with suppress(OSError):
        (await sandbox.connect()).close()
        raise AssertionError("connect() to an ended env must raise OSError")
    await sandbox.stop()
    after = await sandbox.state()
    assert (after.exit_code, after.stopped_by_us) == (7, False), f"stop() must not hide how it ended: {after}"


async def an_env_that_takes_too_much_memory_is_told_apart(case: Case) -> None:
    if not case.kills_by_memory:
        return
    sandbox = await case.start()
    with suppress(OSError):
        await ask(sandbox, f"/eat?bytes={2 << 30}")
    await case.eventually(lambda: _ended(sandbox), "it was not ended")
    state = await sandbox.state()
    assert state.oom_killed, state
    assert not state.stopped_by_us
    assert not state.lost, state


async def stop_ends_it_and_says_it_was_us(case: Case) -> None:
    sandbox = await case.start()
    await sandbox.stop()
    state = await sandbox.state()
    assert not state.running
    assert state.stopped_by_us
    assert not state.oom_killed
    left = await case.leftovers()
    assert not left, left


async def stop_goes_on_to_kill(case: Case) -> None:
    sandbox = await case.start()
    await ask(sandbox, "/deaf")
    began = time.monotonic()
    await sandbox.stop(grace=1.0)
    assert 0.9 <= time.monotonic() - began < 10
    state = await sandbox.state()
    assert not state.running
    assert state.stopped_by_us
    assert not state.oom_killed, "our own kill is not the kernel's"


async def stop_may_be_called_again_and_at_once(case: Case) -> None:
    sandbox = await case.start()
    await asyncio.gather(*(sandbox.stop() for _ in range(3)))
    await sandbox.stop()
    left = await case.leftovers()
    assert not left, left


async def stop_goes_on_when_its_caller_is_cancelled(case: Case) -> None:
    sandbox = await case.start()
    task = asyncio.ensure_future(sandbox.stop())
    await asyncio.sleep(0)
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    await sandbox.stop()
    left = await case.leftovers()
    assert not left, left


async def a_start_that_is_cancelled_leaves_nothing(case: Case) -> None:
    for after in (0.0, 0.01, 0.03, 0.1, 0.2):
        task = asyncio.ensure_future(case.provider.start(case.spec()))
        await asyncio.wait({task}, timeout=after)
        task.cancel()
        try:
            sandbox = await task
        except asyncio.CancelledError:
            continue
        await sandbox.stop(grace=0)
    left = await case.leftovers()
    assert not left, left


async def reap_leaves_what_lives(case: Case) -> None:
    sandbox = await case.start()
    assert await case.provider.reap() == 0
    assert (await sandbox.state()).running


async def what_a_killed_owner_left_is_reaped(case: Case) -> None:
    if case.factory is None:
        return
    code = (
        "import asyncio, sys; from agent_env.sandbox.conformance_checks import start_and_wait;"
        "asyncio.run(start_and_wait(*sys.argv[1:]))"
    )
    command = [sys.executable, "-c", code, case.factory, str(case.prepared.env.path.parent)]
    other = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert other.stdout is not None
    assert (await other.stdout.readline()).strip() == b"started"
    assert await case.leftovers()
    assert await case.provider.reap() == 0, "its owner lives"
    other.send_signal(signal.SIGKILL)
    await other.wait()
    await case.eventually(lambda: _reaped(case), "what it left is still there")


async def closing_the_provider_stops_everything(case: Case) -> None:
    sandboxes = [await case.start() for _ in range(2)]
    await case.provider.aclose()
    for sandbox in sandboxes:
        assert not (await sandbox.state()).running
    left = await case.leftovers()
    assert not left, left


CHECKS: tuple[Any, ...] = (
    a_started_env_answers_over_connect,
    a_started_env_answers_at_its_url,
    the_env_gets_its_variables,
    the_env_does_not_inherit_our_variables,
    sandboxes_are_apart,
    exec_gives_code_output_and_input,
    exec_of_a_command_that_is_not_there_is_127,
    exec_output_is_bounded_and_says_so,
    exec_ends_at_its_deadline_with_all_that_it_started,
    a_cancelled_exec_leaves_no_process,
    files_go_in_and_come_out,
    a_file_that_is_missing_or_too_large_is_a_failure,
    logs_hold_the_end_and_say_when_cut,
    an_env_that_ends_by_itself_is_told_by_its_exit_code,
    an_env_that_takes_too_much_memory_is_told_apart,
    stop_ends_it_and_says_it_was_us,
    stop_goes_on_to_kill,
    stop_may_be_called_again_and_at_once,
    stop_goes_on_when_its_caller_is_cancelled,
    a_start_that_is_cancelled_leaves_nothing,
    reap_leaves_what_lives,
    what_a_killed_owner_left_is_reaped,
    closing_the_provider_stops_everything,
)


async def start_and_wait(factory: str, folder: str) -> None:
    """In a process of its own: start the suite's env, say so, and wait to be killed."""
    from importlib import import_module
    from pathlib import Path

    from agent_env.sandbox.conformance import conformance_env

    module, _, function = factory.partition(":")
    provider: SandboxProvider = getattr(import_module(module), function)()
    prepared = await provider.prepare(conformance_env(Path(folder)))
    await answers(await provider.start(SandboxSpec(prepared=prepared, episode="of another owner")))
    print("started", flush=True)
    await asyncio.Event().wait()


async def answers(sandbox: Sandbox) -> None:
    """Wait until the env's card is there."""
    deadline = time.monotonic() + _READY
    while True:
        with suppress(OSError):
            await ask(sandbox, "/.well-known/agent-env.json")
            return
        state = await sandbox.state()
        assert state.running, f"the env ended: {state}\n{await sandbox.logs()}"
        assert time.monotonic() < deadline, f"the env did not answer\n{await sandbox.logs()}"
        await asyncio.sleep(0.02)


async def ask(sandbox: Sandbox, path: str) -> dict[str, Any]:
    """GET a path of the suite's env. Raises OSError."""
    reader, writer = await asyncio.open_connection(sock=await sandbox.connect())
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {sandbox.authority}\r\nConnection: close\r\n\r\n".encode())
        answer = await reader.read()
    finally:
        writer.close()
    if not answer:
        raise ConnectionResetError("the env closed the connection")
    told: dict[str, Any] = json.loads(answer.partition(b"\r\n\r\n")[2])
    return told


def _fetch(url: str) -> dict[str, Any]:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=20) as answer:
        told: dict[str, Any] = json.load(answer)
    return told


def _idle(mark: str) -> str:
    return f"python3 -c 'import time; time.sleep(300)' {mark}"


async def _runs(sandbox: Sandbox, mark: str) -> bool:
    script = (
        "import os, sys\n"
        "for name in filter(str.isdigit, os.listdir('/proc')):\n"
        "    try: words = open('/proc/' + name + '/cmdline', 'rb').read().split(b'\\0')\n"
        "    except OSError: continue\n"
        "    if sys.argv[1].encode() in words and name != str(os.getpid()): sys.exit(9)\n"
    )
    # Only whole words count, so that neither a shell with it in its script nor this very command is found.
    done = await sandbox.exec(["python3", "-c", script, mark], timeout=20)
    return done.exit_code == 9


async def _nothing_runs(case: Case, sandbox: Sandbox, mark: str) -> None:
    async def none() -> bool:
        return not await _runs(sandbox, mark)

    await case.eventually(none, "processes of an exec that is over still run")


async def _logged(sandbox: Sandbox, text: str) -> bool:
    return text in await sandbox.logs()


async def _ended(sandbox: Sandbox) -> bool:
    return not (await sandbox.state()).running


async def _reaped(case: Case) -> bool:
    await case.provider.reap()
    return not await case.leftovers()
