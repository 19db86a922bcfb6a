# ruff: noqa: E501 - what is said is shown as it is
from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent_env.errors import ConfigError, EpisodeFailure, FailureKind
from agent_env.grading.pool import DEFAULT_REQUIREMENTS, GraderPool

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

Write = Callable[[str], Path]
URL = "http://127.0.0.1:9/mcp"
GOOD = "async def verify(mcp_url):\n    return [{'id': 'good', 'result': True}]\n"
ROW = [{"id": "good", "result": True}]


async def verify(pool: GraderPool, source: Path, run: Any = None, timeout: float = 20) -> list[dict[str, Any]]:
    return await pool.verify(source, URL, run, step_id="grade", timeout=timeout)


async def failure(pool: GraderPool, source: Path, timeout: float = 20) -> tuple[FailureKind, str]:
    with pytest.raises(EpisodeFailure) as caught:
        await verify(pool, source, timeout=timeout)
    return caught.value.kind, caught.value.reason


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


async def test_a_grader_gets_the_url_and_its_rows_come_back(pool: GraderPool, grader: Write) -> None:
    source = grader("async def verify(mcp_url):\n    return [{'url': mcp_url, 'n': 1, 'deep': {'x': [None, 0.5]}}]")
    assert await verify(pool, source) == [{"url": URL, "n": 1, "deep": {"x": [None, 0.5]}}]


async def test_a_grader_that_asks_for_the_run_gets_its_turns(pool: GraderPool, grader: Write) -> None:
    source = grader("""
        async def verify(mcp_url, run):
            turn = run.turn(1)
            sides = [turn.message, turn.reply]
            assert (run.turn(2).number, run.turn(2).reply, len(run.turns)) == (2, None, 2)
            assert run.firings() == turn.firings == () and run.firing("x") is None
            assert len(run.as_of(1).turns) == 1
            try:
                run.turn(3)
            except LookupError as error:
                missing = str(error)
            return [{"sides": [[side.turn, side.role, side.author, side.text, side.sent_at, side.parts]
                               for side in sides], "missing": missing}]
    """)
    said = {"text": "hi", "role": "user", "author": "user", "sent_at": 1.5, "parts": [{"kind": "text", "text": "hi"}]}
    reply = {"text": "yo", "role": "agent", "author": "clerk", "sent_at": None, "parts": []}
    turns = [{"number": 1, "message": said, "reply": reply}, {"number": 2, "message": said, "reply": None}]
    assert await verify(pool, source, {"turns": turns}) == [
        {
            "sides": [
                [1, "user", "user", "hi", "1970-01-01T00:00:01.500000+00:00", [{"kind": "text", "text": "hi"}]],
                [1, "agent", "clerk", "yo", None, []],
            ],
            "missing": "the run has no turn 3; it has 2",
        }
    ]


async def test_a_task_without_prompts_gives_a_run_without_turns(pool: GraderPool, grader: Write) -> None:
    source = grader("async def verify(mcp_url, *, run):\n    return [{'turns': len(run.turns)}]")
    assert await verify(pool, source) == [{"turns": 0}]


async def test_no_rows_are_an_answer(pool: GraderPool, grader: Write) -> None:
    assert await verify(pool, grader("async def verify(mcp_url):\n    return []")) == []


WRONG = [
    (
        "async def verify(mcp_url):\n    x = 1\n    raise ValueError('boom')",
        "raised ValueError: boom (verify.py, line 3: raise ValueError('boom'))",
    ),
    (
        "async def verify(mcp_url):\n    inner()\ndef inner():\n    {}['key']",
        "raised KeyError: 'key' (verify.py, line 4: {}['key'])",
    ),
    ("async def verify(mcp_url):\n    raise OSError", "raised OSError (verify.py, line 2: raise OSError)"),
    (
        "async def verify(mcp_url):\n    raise ExceptionGroup('many', [TypeError('one')])",
        "raised TypeError: one (verify.py, line 2: raise ExceptionGroup('many', [TypeError('one')]))",
    ),
    (
        "class Odd(Exception):\n    def __str__(self): return self.x\nasync def verify(mcp_url): raise Odd",
        "raised Odd: its message can't be shown (AttributeError) (verify.py, line 3: async def verify(mcp_url): raise Odd)",
    ),
    ("import sys\nasync def verify(mcp_url):\n    sys.exit(3)", "raised SystemExit: 3 (verify.py, line 3: sys.exit(3))"),
    (
        "import asyncio\nasync def verify(mcp_url):\n    raise asyncio.CancelledError",
        "raised CancelledError (verify.py, line 3: raise asyncio.CancelledError)",
    ),
    (
        "async def verify(mcp_url):\n    raise TimeoutError('its own')",
        "raised TimeoutError: its own (verify.py, line 2: raise TimeoutError('its own'))",
    ),
    ("async def verify(mcp_url:", "raised SyntaxError: '(' was never closed (verify.py, line 1: async def verify(mcp_url:)"),
    (
        "import no_such_module\nasync def verify(mcp_url): ...",
        "raised ModuleNotFoundError: No module named 'no_such_module' (verify.py, line 1: import no_such_module); "
        "the graders' venv has no packages",
    ),
    ("def verify(mcp_url):\n    return []", "verify must be `async def`: it returned a value of type list, which can't be awaited"),
    ("def grade(mcp_url): ...", "it defines no `async def verify(mcp_url)`"),
    ("verify = 3", "it defines no `async def verify(mcp_url)`"),
    ("async def verify(mcp_url): ...", "verify must return a list of rows, not None"),
    ("async def verify(mcp_url): return {}", "verify must return a list of rows, not a value of type dict"),
    ("async def verify(mcp_url): return [True]", "row 1 must be a dict, not a value of type bool"),
    ("async def verify(mcp_url): return [{'x': {1}}]", "row 1: x is a value of type set, which is no JSON value"),
    ("async def verify(mcp_url): return [{}, {'x': [b'']}]", "row 2: x[0] is a value of type bytes, which is no JSON value"),
    ("async def verify(mcp_url): return [{1: 2}]", "row 1 has the key 1, which is no string"),
    (
        "async def verify(mcp_url):\n    x = []\n    x.append(x)\n    return [{'x': x}]",
        "row 1: x" + "[0]" * 10 + "[0... is nested more than 64 levels deep",
    ),
    ("async def verify(mcp_url): return [{'x': 'y' * 9_000_000}]", "its rows are longer than 8388608 bytes"),
    ("import os\nasync def verify(mcp_url): os._exit(3)", "its process ended itself with exit code 3"),
    ("import os\nasync def verify(mcp_url): os.kill(os.getpid(), 9)", "its process was killed by SIGKILL"),
    ("import os\nos.abort()", "its process was killed by SIGABRT"),
    (
        "async def verify(mcp_url):\n    return [bytearray(1 << 33)]",
        "raised MemoryError (verify.py, line 2: return [bytearray(1 << 33)])",
    ),
]  # fmt: skip


async def test_what_a_grader_does_wrong_is_said_in_one_line_and_the_next_verify_works(
    pool: GraderPool, grader: Write
) -> None:
    said = {}
    for source, _ in WRONG:
        said[source] = await failure(pool, grader(source))
        assert await verify(pool, grader(GOOD)) == ROW
    assert said == {
        source: (FailureKind.VERIFIER_ERROR, f"step 'grade': verify.py: {reason}") for source, reason in WRONG
    }


async def test_a_grader_that_is_not_there_is_named(pool: GraderPool, tmp_path: Path) -> None:
    assert await failure(pool, tmp_path / "verify.py") == (
        FailureKind.VERIFIER_ERROR,
        "step 'grade': verify.py can't be read: No such file or directory",
    )


@pytest.mark.parametrize(
    ("source", "place"),
    [
        (
            "import asyncio\nasync def verify(mcp_url):\n    await asyncio.sleep(60)",
            ", at verify.py, line 3: await asyncio.sleep(60)",
        ),
        ("import time\nasync def verify(mcp_url):\n    time.sleep(60)", ", at verify.py, line 3"),
        ("async def verify(mcp_url):\n    while True:\n        pass", ", at verify.py, line "),
        ("import time\ntime.sleep(60)", ", at verify.py, line 2"),
        (
            "import asyncio\nasync def verify(mcp_url):\n    try:\n        await asyncio.sleep(60)\n"
            "    except BaseException:\n        return []",
            "",
        ),
        (
            "import os, time\nasync def verify(mcp_url):\n    while True:\n        try:\n            os.fork()\n"
            "        except OSError:\n            time.sleep(0.01)",
            "",
        ),
    ],
    ids=["waits", "sleeps", "spins", "while-loading", "refuses-to-stop", "fork-bomb"],
)
async def test_a_grader_that_hangs_is_ended_and_the_next_verify_works(
    pool: GraderPool, grader: Write, source: str, place: str
) -> None:
    started = time.monotonic()
    kind, reason = await failure(pool, grader(source), timeout=0.3)
    assert kind == FailureKind.VERIFIER_TIMEOUT
    assert reason.startswith(f"step 'grade': verify.py was not done after 0.3 s{place}")
    assert time.monotonic() - started < 15
    assert await verify(pool, grader(GOOD)) == ROW


async def test_a_grader_may_print_a_hundred_megabytes(pool: GraderPool, grader: Write) -> None:
    source = grader("""
        async def verify(mcp_url):
            for _ in range(100):
                print("x" * 1_000_000)
            return []
    """)
    assert await verify(pool, source) == []


async def test_what_a_grader_printed_is_logged_when_it_fails(
    pool: GraderPool, grader: Write, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "agent_env.grading"):
        await verify(pool, grader("async def verify(mcp_url):\n    print('before')\n    return []"))
        await failure(pool, grader("async def verify(mcp_url):\n    print('looking at', mcp_url)\n    return None"))
    assert [record.getMessage() for record in caplog.records] == [
        f"step 'grade': verify.py printed:\nlooking at {URL}\n"
    ]


VALUES = {
    "float('nan')": "nan",
    "float('-inf')": "-inf",
    "1e400": "inf",
    "10**400": "inf",
    "-(10**400)": "-inf",
    "Decimal('0.25')": "0.25",
    "Decimal('NaN')": "nan",
    "Decimal('sNaN')": "nan",
    "Fraction(1, 4)": "0.25",
    "True": "True",
    "None": "None",
    "'1'": "'1'",
    "2**63": "9.223372036854776e+18",
    "-(2**63)": "-9223372036854775808",
    "(1, (2,))": "[1, [2]]",
    "date(2024, 3, 7)": "'2024-03-07'",
    r"'\ud800'": "'?'",
    "Level.HIGH": "3",
}


async def test_values_of_rows_become_plain_json_or_stay_not_finite(pool: GraderPool, grader: Write) -> None:
    source = grader(f"""
        from datetime import date
        from decimal import Decimal
        from enum import IntEnum
        from fractions import Fraction

        class Level(IntEnum):
            HIGH = 3

        async def verify(mcp_url):
            return [{{"score": value}} for value in ({", ".join(VALUES)})]
    """)
    rows = await verify(pool, source)
    assert [repr(row["score"]) for row in rows] == list(VALUES.values())


async def test_a_module_is_loaded_once_per_process_and_source(pool: GraderPool, grader: Write) -> None:
    source = grader("""
        import asyncio
        calls = []

        async def verify(mcp_url):
            calls.append(id(asyncio.get_running_loop()))
            return [{"calls": len(calls), "loops": len(set(calls)), "name": __name__}]
    """)
    first, second = [(await verify(pool, source))[0] for _ in range(2)]
    assert (first["calls"], second["calls"], second["loops"]) == (1, 2, 1)
    source.write_text(source.read_text() + "# changed\n")
    third = (await verify(pool, source))[0]
    assert third["calls"] == 1
    assert third["name"] != first["name"]


async def test_a_grader_can_not_import_its_siblings(pool: GraderPool, grader: Write) -> None:
    source = grader("import helper\nasync def verify(mcp_url): return []")
    (source.parent / "helper.py").write_text("")
    assert "No module named 'helper'" in (await failure(pool, source))[1]


async def test_a_task_left_running_does_not_reach_into_the_next_verify(pool: GraderPool, grader: Write) -> None:
    source = grader("""
        import asyncio
        import os
        left = []

        async def verify(mcp_url):
            before = [task.cancelled() for task in left]
            left.append(asyncio.create_task(asyncio.sleep(60)))
            return [{"before": before, "pid": os.getpid()}]
    """)
    first, second = [(await verify(pool, source))[0] for _ in range(2)]
    assert second == {"before": [True], "pid": first["pid"]}


@pytest.mark.parametrize("session", [True, False])
async def test_a_process_left_running_is_ended(pool: GraderPool, grader: Write, session: bool) -> None:
    source = grader(f"""
        import subprocess

        async def verify(mcp_url):
            child = subprocess.Popen(["sleep", "600"], start_new_session={session})
            return [{{"pid": child.pid}}]
    """)
    (row,) = await verify(pool, source)
    assert not alive(row["pid"])
    assert await verify(pool, grader(GOOD)) == ROW


async def test_a_child_that_a_grader_forked_does_not_answer_in_its_place(pool: GraderPool, grader: Write) -> None:
    source = grader("""
        import os

        async def verify(mcp_url):
            return [{"child": os.fork() == 0}]
    """)
    for _ in range(5):
        assert await verify(pool, source) == [{"child": False}]


NAPPING = """
import asyncio, os, time

async def verify(mcp_url):
    started = time.monotonic()
    await asyncio.sleep(0.1)
    return [{"pid": os.getpid(), "started": started}]
"""


async def test_verifies_wait_in_order_and_their_deadline_starts_with_them(pool: GraderPool, grader: Write) -> None:
    source = grader(NAPPING)
    rows = [row for (row,) in await asyncio.gather(*(verify(pool, source, timeout=0.4) for _ in range(6)))]
    assert len({row["pid"] for row in rows}) == 1
    assert [row["started"] for row in rows] == sorted(row["started"] for row in rows)


async def test_a_pool_runs_as_many_at_once_as_it_has_processes(grader: Write) -> None:
    source = grader(NAPPING)
    pool = GraderPool(requirements=(), workers=2)
    try:
        rows = [row for (row,) in await asyncio.gather(*(verify(pool, source) for _ in range(4)))]
    finally:
        await pool.aclose()
    assert len({row["pid"] for row in rows}) == 2


async def test_a_cancelled_verify_ends_its_process_and_frees_the_place(
    pool: GraderPool, grader: Write, phone: Any
) -> None:
    task = asyncio.create_task(verify(pool, grader(phone.caller)))
    (pid, child) = await phone.call()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not alive(pid)
    assert not alive(child)
    assert await verify(pool, grader(GOOD)) == ROW


async def test_closing_the_pool_fails_what_runs_and_what_waits_and_leaves_no_process(grader: Write, phone: Any) -> None:
    pool = GraderPool(requirements=(), workers=1)
    source = grader(phone.caller)
    running = asyncio.create_task(failure(pool, source))
    (pid, child) = await phone.call()
    waiting = asyncio.create_task(failure(pool, source))
    await pool.aclose()
    await pool.aclose()
    assert (await running)[0] == (await waiting)[0] == FailureKind.SERVER_SHUTDOWN
    assert not alive(pid)
    assert not alive(child)


async def test_a_grader_sees_nothing_of_our_environment(
    pool: GraderPool, grader: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_SECRET", "hunter2")
    source = grader("import os\nasync def verify(mcp_url):\n    return [dict(os.environ)]")
    (seen,) = await verify(pool, source)
    allowed = {"PATH", "LANG", "HOME", "TMPDIR", "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE"}
    assert set(seen) <= allowed | {"CURL_CA_BUNDLE", "LC_CTYPE"}
    assert seen["HOME"] == seen["TMPDIR"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run graders as somebody else")
async def test_as_root_a_grader_can_not_read_our_processes_or_files(
    pool: GraderPool, grader: Write, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    secret.chmod(0o600)
    source = grader(f"""
        import os

        async def verify(mcp_url):
            read = []
            for path in [f"/proc/{{pid}}/environ" for pid in ({os.getpid()}, os.getppid())] + [{str(secret)!r}]:
                try:
                    read.append(open(path).read())
                except PermissionError:
                    pass
            with open(os.path.join(os.environ["HOME"], "own"), "w") as file:
                file.write("mine")
            return [{{"read": read, "uid": os.getuid(), "groups": os.getgroups()}}]
    """)
    (row,) = await verify(pool, source)
    assert row["read"] == []
    assert row["groups"] == []
    assert row["uid"] >= 60_000


async def test_without_root_graders_run_as_we_do(
    pool: GraderPool, grader: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    source = grader("import os\nasync def verify(mcp_url):\n    return [{'uid': os.getuid()}]")
    assert await verify(pool, source) == [{"uid": os.getuid()}]


async def test_a_pool_can_be_given_variables_for_its_graders(grader: Write) -> None:
    pool = GraderPool(requirements=(), workers=1, env={"JUDGE_KEY": "k"})
    try:
        source = grader("import os\nasync def verify(mcp_url):\n    return [{'key': os.environ['JUDGE_KEY']}]")
        assert await verify(pool, source) == [{"key": "k"}]
    finally:
        await pool.aclose()


async def test_the_grader_dies_with_a_server_that_is_killed(grader: Write, phone: Any) -> None:
    source = grader(phone.caller)
    server = await asyncio.create_subprocess_exec(sys.executable, "-c", _SERVER, str(source))
    pids = await phone.call()
    assert all(alive(pid) for pid in pids)
    server.send_signal(signal.SIGKILL)
    await server.wait()
    async with asyncio.timeout(20):
        while any(alive(pid) for pid in pids):  # noqa: ASYNC110 - nobody tells us of another's processes
            await asyncio.sleep(0.02)
    assert [pid for pid in pids if alive(pid)] == []


_SERVER = """
import asyncio, sys
from pathlib import Path
from agent_env.grading.pool import GraderPool

pool = GraderPool(requirements=(), workers=1)
asyncio.run(pool.verify(Path(sys.argv[1]), "u", None, step_id="g", timeout=600))
"""


@pytest.mark.parametrize(
    ("python", "why"), [("/bin/false", "it ended at once, with exit code 1"), ("/nowhere", "No such file or directory")]
)
async def test_prepare_says_when_graders_can_not_run(
    pool: GraderPool, monkeypatch: pytest.MonkeyPatch, python: str, why: str
) -> None:
    async def broken(requirements: object) -> Path:
        return Path(python)

    monkeypatch.setattr("agent_env.grading.pool.ensure_venv", broken)
    with pytest.raises(ConfigError) as caught:
        await pool.prepare()
    what = f"a grader process can't start (from {python}, which every user must be able to read)"
    assert str(caught.value).startswith(f"{what}: ")
    assert why in str(caught.value)


@pytest.mark.integration
async def test_the_default_venv_has_what_graders_are_written_against(grader: Write) -> None:
    pool = GraderPool(DEFAULT_REQUIREMENTS, workers=1)
    try:
        source = grader("""
            import httpx
            from agentenv_protocol import client
            from mcp import ClientSession
            from mcp.client.streamable_http import streamable_http_client

            async def verify(mcp_url):
                try:
                    async with streamable_http_client(mcp_url) as (read, write, _):
                        async with ClientSession(read, write) as session:
                            await session.initialize()
                except* httpx.ConnectError:
                    pass
                return [{"result": callable(client.get_data)}]
        """)
        assert await verify(pool, source, timeout=60) == [{"result": True}]
    finally:
        await pool.aclose()
