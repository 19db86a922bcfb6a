"""Several OpenEnv servers behind one resources server, all of them processes that ask for a token."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from stubs.processes import NEMO_GYM, OPENENV, Command, command, finished
from stubs.stub_bundle import stub_task, write_stub_bundle
from websockets.exceptions import InvalidStatus
from websockets.sync.client import connect

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]


class Box:
    """A bundle, token files, and what is started of it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.bundle = write_stub_bundle(folder / "stub-v1")
        self.stack = stack
        self.tokens = {name: folder / f"{name}.token" for name in ("openenv", "serve")}
        for name, path in self.tokens.items():
            path.write_text(f"token-of-{name}\n")

    def openenv(self, port: int = 0) -> Command:
        flags = ("--port", str(port), "--sandbox", "process", "--warm", "0", "--max-concurrent-envs", "6")
        token = ("--token-file", str(self.tokens["openenv"]))
        return self.stack.enter_context(command(OPENENV, "serve", str(self.bundle), *flags, *token))

    def written(self, url: str, *flags: str) -> Path:
        done = finished(NEMO_GYM, url, str(self.folder / "out"), *flags, *self.sent)
        assert done.process.returncode == 0, done.log
        return Path(done.out.strip().splitlines()[-1].removeprefix("wrote "))

    def serve(self, folder: Path, *flags: str) -> Command:
        token = ("--token-file", str(self.tokens["serve"]))
        return self.stack.enter_context(
            command(NEMO_GYM, "serve", str(folder), "--port", "0", *token, *self.sent, *flags)
        )

    @property
    def sent(self) -> tuple[str, ...]:
        return ("--openenv-token-file", str(self.tokens["openenv"]))


@pytest.fixture
def box(tmp_path: Path) -> Iterator[Box]:
    with ExitStack() as stack:
        yield Box(tmp_path, stack)


class Session:
    def __init__(self, url: str, row: dict[str, Any]) -> None:
        self.http = httpx.Client(
            base_url=url, timeout=60, trust_env=False, headers={"Authorization": "Bearer token-of-serve"}
        )
        self.row = row
        assert self.http.post("/seed_session", json=row).status_code == 200

    def verify(self) -> dict[str, Any]:
        self.http.post("/submit", json={"value": 1})
        response = {"id": "resp_1", "object": "response", "output": []}
        answer: dict[str, Any] = self.http.post("/verify", json={**self.row, "response": response}).json()
        self.http.close()
        return answer


def running_at(openenv: Command) -> int:
    told = httpx.get(
        f"{openenv.url()}/capacity", trust_env=False, timeout=10, headers={"Authorization": "Bearer token-of-openenv"}
    )
    return int(told.json()["running"])


def rows_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "data/train.jsonl").read_text().splitlines()]


def until(true: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_a_killed_server_takes_its_sessions_along_and_others_come_and_return(box: Box) -> None:
    one, two = box.openenv(), box.openenv()
    folder = box.written(one.url())
    listed = box.folder / "servers"
    listed.write_text(f"{one.url()}\n{two.url()}\n")
    serve = box.serve(folder, "--openenv-file", str(listed))
    url, row = serve.url(), rows_of(folder)[0]

    sessions = [Session(url, row) for _ in range(6)]
    kept, lost = running_at(one), running_at(two)
    assert kept + lost == 6
    assert abs(kept - lost) <= 2, "a session that a look saw coming counts twice until the next one"
    two.kill()
    answers = [session.verify() for session in sessions]
    assert sorted(answer["reward"] for answer in answers if not answer["mask_sample"]) == [1.0] * kept
    assert [answer["failure_kind"] for answer in answers if answer["mask_sample"]] == ["provider_unavailable"] * lost

    port = int(two.url().rpartition(":")[2])
    again, third = box.openenv(port), box.openenv()  # they start while new seeds go on
    assert [Session(url, row).verify()["reward"] for _ in range(4)] == [1.0] * 4
    again.url()
    listed.write_text(f"{one.url()}\n{again.url()}\n{third.url()}\n")
    until(lambda: f"{again.url()} is back" in serve.log and f"{third.url()} is used from now on" in serve.log)
    until(lambda: running_at(one) == 0)
    time.sleep(1.1)  # one more look, after which all three are known to be empty
    sessions = [Session(url, row) for _ in range(6)]
    assert min(running_at(server) for server in (one, again, third)) > 0
    assert [session.verify()["reward"] for session in sessions] == [1.0] * 6


def test_two_folders_serve_disjoint_rows_and_no_secret_is_told_anywhere(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tokens all the way, an env that repeats its secret in a log, a crash and an error, and both logs at their
    loudest."""
    monkeypatch.setenv("STUB_SECRET", "secret-of-the-env")
    monkeypatch.setenv("AGENT_ENV_LOG_LEVEL", "debug")
    blab_secrets(box.bundle)
    openenv = box.openenv()
    refused = finished(NEMO_GYM, openenv.url(), str(box.folder / "out"))
    assert refused.process.returncode == 1
    assert refused.log.strip().endswith("wants a token: give --openenv-token-file")
    for path in ("/ws", "/mcp"):
        with pytest.raises(InvalidStatus, match="HTTP 401"):
            connect(f"ws{openenv.url()[4:]}{path}", proxy=None)

    folders = [
        box.written(openenv.url(), "--name", f"part_{n}", "--rows", rows) for n, rows in enumerate(("0:1", "1:"))
    ]
    assert [[row["task_id"] for row in rows_of(f)] for f in folders] == [["train-0000"], ["train-0001", "train-0002"]]
    log = box.folder / "episodes.jsonl"
    one, two = box.serve(folders[0], "--episode-log", str(log)), box.serve(folders[1], "--masked-as-error")

    play = ("play", one.url(), "--rows", str(folders[0] / "data/train.jsonl"), "--policy", "idle")
    done = finished(NEMO_GYM, *play, "--token-file", str(box.tokens["serve"]))
    assert done.process.returncode == 0, done.log
    stranger = finished(NEMO_GYM, *play)
    assert stranger.process.returncode == 1
    assert "a bearer token is needed (--token-file)" in stranger.out + stranger.log

    crashes, wrong = (Session(two.url(), row) for row in rows_of(folders[1]))
    crashes.http.post("/crash", json={})
    failed = [session.verify() for session in (crashes, wrong)]
    assert [answer["failure_kind"] for answer in failed] == ["agent_env:env_crashed", "agent_env:load_failed"]
    assert ["my key is ***" in answer["failure_reason"] for answer in failed] == [True, True]

    told = [json.dumps(failed), done.out, done.log, stranger.out, stranger.log]
    for server, token in ((openenv, "token-of-openenv"), (one, "token-of-serve"), (two, "token-of-serve")):
        told += pages(server.url(), token)
        server.stop()
        told += [server.out, server.log]
    everything = "\n".join([*told, log.read_text()])
    for mark in ("agent_env_", "env_crashed", "load_failed", "episodes: ", "seeded 1, verified 1"):
        assert mark in everything, "something is missing that was to be searched"
    for secret in ("token-of-openenv", "token-of-serve", "secret-of-the-env"):
        at = everything.find(secret)
        assert at < 0, everything[max(at - 300, 0) : at + 100]


def blab_secrets(bundle: Path) -> None:
    """The env prints its secret at the start and has it in the message of a refused load; the last task's load is."""
    env = bundle / "envs" / "stub"
    with (env / "agent-env.toml").open("a") as file:
        file.write('[env]\nSECRET = "env:STUB_SECRET"\n')
    text = (env / "server.py").read_text()
    text = text.replace('"message": "the value is bad"', '"message": "the value is bad, my key is " + KNOB("SECRET")')
    text = text.replace("def main():\n", 'def main():\n    print("my key is", KNOB("SECRET"), flush=True)\n')
    (env / "server.py").write_text(text)
    (bundle / "tasks" / "train-0002.json").write_text(json.dumps(stub_task("bad")))  # type: ignore[arg-type]


def pages(url: str, token: str) -> list[str]:
    """What every route answers, with the token, without and with another one."""
    told = []
    gets = ("/", "/health", "/capacity", "/status", "/metrics", "/metadata", "/schema", "/state", "/openapi.json")
    gets += ("/docs", "/list_environments", "/stub-v1/splits", "/nothing")
    posts = ("/stub-v1/tasks", "/mcp", "/seed_session", "/verify", "/close_session", "/nothing")
    with httpx.Client(base_url=url, timeout=30, trust_env=False) as http:
        for header in ({"Authorization": f"Bearer {token}"}, {}, {"Authorization": "Bearer other"}):
            for method, path in [*(("GET", path) for path in gets), *(("POST", path) for path in posts)]:
                answer = http.request(method, path, headers=header, json={} if method == "POST" else None)
                told.append(f"{answer.status_code} {answer.headers} {answer.text}")
                allowed = header.get("Authorization") == f"Bearer {token}"
                open_to_all = path in ("/", "/health") and answer.status_code == 200
                assert allowed or open_to_all or answer.status_code == 401, path
    return told
