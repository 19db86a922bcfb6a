"""One long conversation with a resources server, and all that a client reads of its answers.

It is had with a server in front of a stub OpenEnv server whose tasks behave as `TASKS` says.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from stubs.gym_client import Rollout, message, response, row
from stubs.stub_openenv import Knobs, StubOpenEnv

Json = Any

TASKS = {
    "well": Knobs(),
    "fails its start": Knobs(fail={"start": ("deploy_failed", "it did not build")}),
    "fails its reset": Knobs(fail={"reset": ("image_missing", "there is no such image")}),
    "fails a call": Knobs(fail={"tool": ("provider_oom_killed", "it took too much")}),
    "fails the grading": Knobs(fail={"verify": ("judge_failed", "the judge was silent")}),
    "two turns": Knobs(prompts=("First.", "Second.")),
    "two scores": Knobs(scores={"one": 0.25, "two": 0.5}, reward=0.25),
    "slow": Knobs(tool_s=3.0, verify_s=3.0),
    "slowly graded and masked": Knobs(fail={"verify": ("judge_failed", "silent")}, verify_s=3.0),
}
INDEX = {name: index for index, name in enumerate(TASKS)}
PLACES = 1000
IDLE = 4.0
KEEPALIVE = 1.0
LIMIT = 100_000
"""bytes of a request"""
ENVIRONMENT = {
    "AGENT_ENV_IDLE_TIMEOUT": f"{IDLE:g}",
    "AGENT_ENV_KEEPALIVE_AFTER": f"{KEEPALIVE:g}",
    "AGENT_ENV_MAX_BODY": str(LIMIT),
}
_OF_ITS_OWN = re.compile(r'"(wait_s|longest_wait_s|id)":(?:\d+\.\d+|"[0-9a-f]{8}")')
"""times, and the ids of sessions without an episode"""
_OF_THE_TIME = ("up_s", "openenv", "event_loop_lag_s", "event_loop_lag_max_s", "health", "longest_wait_s")


@dataclass(frozen=True)
class Heard:
    """What a client reads of one answer."""

    status: int
    headers: dict[str, str]
    body: str


@dataclass
class Talk:
    """`heard` holds the answers by what was asked, in order."""

    http: httpx.AsyncClient
    stub: StubOpenEnv
    heard: dict[str, Heard] = field(default_factory=dict)

    async def seeded(self, name: str, task: str = "well", **fields: Json) -> Rollout:
        rollout = Rollout(self.http)
        index = INDEX[task]
        self.hear(f"{name}: seed", await rollout.seed(index=index, task_id=f"train-{index:04d}", **fields))
        return rollout

    def hear(self, name: str, answer: httpx.Response, own: str | None = None) -> httpx.Response:
        """Keeps the answer; its cookie is told as `own` (the rollout's) or another."""
        assert name not in self.heard
        headers = {key: value for key, value in answer.headers.items() if key != "date"}
        pair, _, attributes = headers.get("set-cookie", "").partition(";")
        if pair:
            value = "its own" if pair == own else "another"
            headers["set-cookie"] = f"{pair.partition('=')[0]}={value};{attributes}"
        body = _OF_ITS_OWN.sub(r'"\1":0', re.sub("^ +", " ", answer.text))
        if body != answer.text:
            headers.pop("content-length", None)
        self.heard[name] = Heard(answer.status_code, headers, body)
        return answer

    async def post(self, name: str, rollout: Rollout, path: str, body: Json, **headers: str) -> httpx.Response:
        return self.hear(name, await rollout.post(path, body, headers), rollout.cookie)

    async def status(self) -> dict[str, Json]:
        told: dict[str, Json] = (await self.http.get("/status")).json()
        return told

    async def until(self, true: Callable[[dict[str, Json]], bool]) -> None:
        """Returns once `/status` says so."""
        async with asyncio.timeout(20):
            while not true(await self.status()):  # noqa: ASYNC110
                await asyncio.sleep(0.05)

    async def full(self, name: str) -> Rollout:
        """Once every session has ended, one that takes the only place."""
        await self.until(lambda told: told["open"] == 0)
        self.stub.places = 1
        return await self.seeded(f"{name}: the only place")

    @asynccontextmanager
    async def left_alone(self, path: str, body: Json, cookie: str | None = None) -> Any:
        """A request whose client closes its connection at the end of the block, without having read the answer."""
        assert self.http.base_url.port
        reader, writer = await asyncio.open_connection(self.http.base_url.host, self.http.base_url.port)
        content = json.dumps(body).encode()
        head = [f"POST {path} HTTP/1.1", "Host: x", f"Content-Length: {len(content)}"]
        head += [f"Cookie: {cookie}"] if cookie else []
        writer.write("\r\n".join([*head, "", ""]).encode() + content)
        await writer.drain()
        try:
            yield reader
        finally:
            writer.close()


async def converse(url: str, stub: StubOpenEnv) -> dict[str, Heard]:
    async with httpx.AsyncClient(base_url=url, timeout=60, trust_env=False) as http:
        talk = Talk(http, stub)
        abandoned = await talk.seeded("expired")
        for part in _PARTS:
            await part(talk)
        await _expired(talk, abandoned)
        told = await http.get("/status")
        talk.hear("status: all of it", told)
        talk.heard["status: all of it"] = counts_of(talk.heard["status: all of it"])
        return talk.heard


def counts_of(told: Heard) -> Heard:
    """Of `/status` what does not tell the time."""
    kept = {key: value for key, value in json.loads(told.body).items() if key not in _OF_THE_TIME}
    kept["last_failures"] = [[failure[key] for key in ("task", "kind", "tool")] for failure in kept["last_failures"]]
    kept["times"] = {name: figures["count"] for name, figures in kept["times"].items()}
    kept["calls"] = {name: figures["count"] for name, figures in kept["calls"].items()}
    headers = {name: value for name, value in told.headers.items() if name != "content-length"}
    return Heard(told.status, headers, json.dumps(kept))


async def _health(talk: Talk) -> None:
    for path in ("/", "/health", "/healthz", "/livez", "/readyz", "/reverify_mode", "/no-such-path", "/docs"):
        talk.hear(f"GET {path}", await talk.http.get(path))
    talk.hear("HEAD /", await talk.http.head("/"))
    talk.hear("PUT /verify", await talk.http.put("/verify", json={}))


async def _normal(talk: Talk) -> None:
    rollout = await talk.seeded("normal")
    await talk.post("normal: call", rollout, "/look", {"at": "ü"})
    await talk.post("normal: call with the prefix", rollout, "/ng-rollout/0-0-a1/look", {"at": "it"})
    await talk.post("normal: call with a slash", rollout, "/look/", {"at": "it"})
    await talk.post("normal: a tool's error", rollout, "/fail", {})
    answered = b'{"output":[{"type":"message", "generation_token_ids":[1,2, 3]}],"id":"\xc3\xbc"}'
    body = b'{"responses_create_params":{"input" : "Play."},"index":0,"response":' + answered + b"}"
    await talk.post("normal: verify", rollout, "/verify", body)
    await talk.post("normal: duplicate verify", rollout, "/ng-rollout/0-0/verify", body)
    await talk.post("normal: call after verify", rollout, "/look", {})
    await talk.post("normal: close after verify", rollout, "/close_session", {})
    await talk.post("normal: verify after close", rollout, "/verify", body)


async def _cookies(talk: Talk) -> None:
    rollout = await talk.seeded("cookies")
    name, _, value = (rollout.cookie or "").partition("=")
    for kind, sent in {
        "foreign": f"agent=x; {name}={value}; Other___server=e30.x",
        "two": f"{name}=stale; {name}={value}",
        "long": f"junk={'x' * 5000}; {name}={value}",
        "tampered": f"{name}={value}x",
        "broken": f"{name}=\x7f\x01; ;=;;",
        "none": "",
    }.items():
        await talk.post(f"cookies: {kind}", rollout, "/look", {"at": kind}, cookie=sent)
    again = await talk.seeded("cookies: again")
    await talk.post("cookies: the second", again, "/look", {})


async def _calls(talk: Talk) -> None:
    rollout = await talk.seeded("calls")
    for name, body in {
        "list": [],
        "null": None,
        "number": 1,
        "text": '"x"',
        "broken": b'{"at": ',
        "nan": b'{"at": NaN}',
        "duplicated": b'{"at": 1, "at": 2}',
        "empty": b"",
        "surrogate": b'{"at": "\\ud800"}',
        "deep": b'{"at": ' + b"[" * 300 + b"]" * 300 + b"}",
        "large": json.dumps({"at": "x" * LIMIT}).encode(),
    }.items():
        sent = json.dumps(body).encode() if not isinstance(body, bytes | str) else body
        await talk.post(f"calls: {name}", rollout, "/look", sent)
    for tool in ("no_such_tool", "look/deeper", "docs", "stats", "openapi.json", "na%C3%AFve", "metrics"):
        await talk.post(f"calls: tool {tool}", rollout, f"/{tool}", {})
    await talk.post("calls: end_turn of the last turn", rollout, "/end_turn", {"response": "x"})
    await talk.post("calls: verify", rollout, "/verify", row() | {"response": response(message("Done."))})


async def _no_session(talk: Talk) -> None:
    nobody = Rollout(talk.http)
    await talk.post("no session: call", nobody, "/look", {})
    await talk.post("no session: verify", nobody, "/verify", row() | {"response": response()})
    await talk.post("no session: close", nobody, "/close_session", {})


async def _requests_that_are_wrong(talk: Talk) -> None:
    nobody = Rollout(talk.http)
    for name, body in {
        "nothing": b"",
        "broken": b"{",
        "list": [],
        "no split": {"index": 0},
        "no index": {"split": "train"},
        "index of text": row(index="0"),
        "index too large": row(index=10**6),
        "negative index": row(index=-1),
        "unknown split": row(split="test"),
        "other task": row(task_id="eval-0007"),
        "task of a number": row(task_id=1),
        "path of a task": row(task_id="tasks/train-0000"),
    }.items():
        await talk.post(f"wrong seed: {name}", nobody, "/seed_session", body)
    rollout = await talk.seeded("wrong verify")
    for name, body in {
        "nothing": b"",
        "broken": b'{"response": {',
        "no response": row(),
        "response of text": row() | {"response": "x"},
        "not utf-8": b'{"response": {"id": "\xff"}}',
    }.items():
        await talk.post(f"wrong verify: {name}", rollout, "/verify", body)
    await talk.post("wrong verify: right at last", rollout, "/verify", row() | {"response": response()})
    for name, body in {"no id": {"a": 1}, "list": [], "more": closing("x") | {"a": 1}}.items():
        await talk.post(f"wrong close: {name}", nobody, "/close_session", body)


async def _faults(talk: Talk) -> None:
    for task in ("fails its start", "fails its reset", "fails a call", "fails the grading"):
        rollout = await talk.seeded(task, task)
        await talk.post(f"{task}: call", rollout, "/look", {})
        await talk.post(f"{task}: call again", rollout, "/look", {})
        body = row() | {"response": response(message("Done."))}
        await talk.post(f"{task}: verify", rollout, "/verify", body)
        await talk.post(f"{task}: duplicate verify", rollout, "/verify", body)


async def _turns_and_scores(talk: Talk) -> None:
    rollout = await talk.seeded("two turns", "two turns")
    await talk.post("two turns: end_turn", rollout, "/end_turn", {"response": "x"})
    await talk.post("two turns: end_turn of a number", rollout, "/end_turn", {"response": 1})
    await talk.post("two turns: end_turn again", rollout, "/end_turn", {"response": "y"})
    await talk.post("two turns: verify", rollout, "/verify", row() | {"response": response(message("z"))})
    rollout = await talk.seeded("two scores", "two scores")
    await talk.post("two scores: verify", rollout, "/verify", row() | {"response": response()})


def typed(session: str, rollout: str = "0-0", index: int = 0) -> dict[str, Json]:
    task = {"task_id": {"taskset": "t", "task_id": "0"}, "task_data": row(index=index)}
    return closing(session, rollout) | task


def closing(session: str, rollout: str = "0-0") -> dict[str, Json]:
    return {"resources_session_id": session, "episode_id": {"rollout_id": rollout, "attempt": 0}}


async def _typed(talk: Talk) -> None:
    first = Rollout(talk.http)
    talk.hear("typed: seed", await first.seed(typed("one")))
    again = Rollout(talk.http)
    talk.hear("typed: repeated seed", await again.seed(typed("one")), first.cookie)
    await talk.post("typed: seed of another episode", Rollout(talk.http), "/seed_session", typed("one", "1-0"))
    await talk.post("typed: unknown key", Rollout(talk.http), "/seed_session", typed("two") | {"extra": 1})
    await talk.post("typed: attempt in the id", Rollout(talk.http), "/seed_session", typed("two", "0-0-a1"))
    await talk.post("typed: call", again, "/look", {})
    await talk.post("typed: verify", first, "/verify", row() | {"response": response()})
    await talk.post("typed: close", first, "/close_session", closing("one"))
    await talk.post("typed: repeated close", first, "/close_session", closing("one"))
    await talk.post("typed: seed after close", Rollout(talk.http), "/seed_session", typed("one"))
    await talk.post("typed: close of one that never was", Rollout(talk.http), "/close_session", closing("three"))
    await talk.post("typed: its seed", Rollout(talk.http), "/seed_session", typed("three"))
    second = Rollout(talk.http)
    talk.hear("typed: seed of a second", await second.seed(typed("four")))
    await talk.post("typed: close of it", second, "/close_session", closing("four"))
    await talk.post("typed: call after close", second, "/look", {})
    await talk.post("typed: verify after close", second, "/verify", row() | {"response": response()})


async def _slow(talk: Talk) -> None:
    """Slower than `--keepalive-after`: the answer begins with a space."""
    rollout = await talk.seeded("slow", "slow")
    await talk.post("slow: call", rollout, "/look", {})
    await talk.post("slow: verify", rollout, "/verify", row() | {"response": response()})
    rollout = await talk.seeded("slowly masked", "slowly graded and masked")
    await talk.post("slowly masked: verify", rollout, "/verify", row() | {"response": response()})
    holder = await talk.full("slow")
    waiting = asyncio.create_task(Rollout(talk.http).seed(index=0))
    await talk.until(lambda told: told["waiting"] == 1)
    await asyncio.sleep(1.5 * KEEPALIVE)
    await holder.verify()
    talk.hear("slow: seed that waits", await waiting)
    talk.stub.places = PLACES


async def _lost_connections(talk: Talk) -> None:
    rollout = await talk.seeded("lost in a call", "slow")
    async with talk.left_alone("/look", {"at": "lost"}, rollout.cookie):
        async with asyncio.timeout(10):
            while ("look", {"at": "lost"}) not in talk.stub.calls:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    await talk.post("lost in a call: verify", rollout, "/verify", row() | {"response": response()})

    rollout = await talk.seeded("lost in verify", "slow")
    said = response(message("lost in verify"))
    async with talk.left_alone("/verify", row() | {"response": said}, rollout.cookie):
        async with asyncio.timeout(10):
            while "lost in verify" not in talk.stub.replies:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    await talk.post("lost in verify: verify again", rollout, "/verify", row() | {"response": response(message("b"))})

    await talk.full("lost in seed")
    async with talk.left_alone("/seed_session", row()):
        await talk.until(lambda told: told["waiting"] == 1)
    await talk.until(lambda told: told["waiting"] == 0)
    talk.stub.places = PLACES


async def _expired(talk: Talk, rollout: Rollout) -> None:
    await talk.until(lambda told: told["open"] == 0)
    await talk.post("expired: call", rollout, "/look", {})
    await talk.post("expired: verify", rollout, "/verify", row() | {"response": response()})
    await talk.post("expired: duplicate verify", rollout, "/verify", row() | {"response": response()})


_PARTS = (
    _health,
    _normal,
    _cookies,
    _calls,
    _no_session,
    _requests_that_are_wrong,
    _faults,
    _turns_and_scores,
    _typed,
    _slow,
    _lost_connections,
)
