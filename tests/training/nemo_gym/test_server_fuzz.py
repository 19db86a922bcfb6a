"""Random requests never end in a 500, a hang or a leak."""

from __future__ import annotations

import asyncio
import json
import os
import random
from typing import Any

import pytest
from stubs.gym_client import Bench, bench, response, row, until
from stubs.stub_openenv import Knobs, StubOpenEnv

pytestmark = [pytest.mark.anyio, pytest.mark.integration, pytest.mark.timeout(1800)]

REQUESTS = int(os.environ.get("AGENT_ENV_FUZZ_REQUESTS", "400"))

PATHS = [
    *("/seed_session", "/verify", "/close_session", "/aggregate_metrics", "/look", "/fail", "/end_turn", "/nope"),
    *(
        "/",
        "/health",
        "/status",
        "/metrics",
        "/capacity",
        "/reverify_mode",
        "/mcp",
        "//",
        "/a/b",
        "/..",
        "/%00",
        "/%ff",
        "/ng-rollout",
    ),
    *("/ng-rollout/x/look", "/ng-rollout/x/verify", "/look/", "/" + "x" * 3000, "/__proto__", "/na%C3%AFve", "/?q=1"),
]
METHODS = ["POST"] * 12 + ["GET", "GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"]
TYPED = {
    "resources_session_id": "s1",
    "episode_id": {"rollout_id": "r1", "attempt": 0},
    "task_id": {"taskset": "t", "task_id": "0"},
    "task_data": {"split": "train", "index": 0},
}
BODIES: list[Any] = [
    *(row(), row(index=3, task_id="train-0003"), row(index=-1), row(index=99999), row(split="eval"), row(split=None)),
    *({"response": response()}, {"response": {}}, {"response": None}, {"response": {"output": 3}}, {"response": []}),
    *(TYPED, {**TYPED, "resources_session_id": "s2"}, {**TYPED, "x": 1}, {**TYPED, "episode_id": 1}),
    {"resources_session_id": "s1", "episode_id": {"rollout_id": "r1", "attempt": 0}},
    *({}, [], None, 1, "x", True, {"at": "x"}, {"response": "bye"}, {"response": 3}, {"a": [[[[{}]]]]}),
]
RAW = [
    b"",
    b" ",
    b"{",
    b"\xff",
    b"NaN",
    b'{"a":NaN}',
    b'{"a":1e400}',
    b'{"a":"\\ud800"}',
    b"[" * 5000,
    b'{"a":1}x',
    b"\x00",
]
MEDIA = ("application/json", "text/plain; charset=utf-8", "text/plain; version=0.0.4; charset=utf-8")
COOKIES = ["", "x=y", "agent_env_session_stub_v1=", "agent_env_session_stub_v1=nope", "a=b; ; =; c", "\xff=\xfe"]


def drawn(rng: random.Random, cookies: list[str]) -> tuple[str, str, bytes, dict[str, bytes]]:
    body = rng.choice(RAW) if rng.random() < 0.2 else json.dumps(rng.choice(BODIES)).encode()
    if rng.random() < 0.1 and body:
        body = bytearray(body)
        body[rng.randrange(len(body))] = rng.randrange(256)
    headers = {"cookie": rng.choice(cookies + COOKIES).encode("latin-1")}
    if rng.random() < 0.1:
        headers["content-type"] = rng.choice([b"text/plain", b"application/json; charset=x", b"\xff"])
    if rng.random() < 0.05:
        headers["authorization"] = b"Bearer \xff"
    return rng.choice(METHODS), rng.choice(PATHS), bytes(body), headers


async def storm(b: Bench, rng: random.Random, count: int) -> None:
    cookies: list[str] = []
    for _ in range(count):
        method, path, body, headers = drawn(rng, cookies[-5:])
        b.http.cookies.clear()
        async with asyncio.timeout(10):
            answer = await b.http.request(method, path, content=body, headers=headers)
        assert answer.status_code < 500, (method, path, body, answer.text)
        assert "set-cookie" in answer.headers
        assert answer.headers["content-type"] in MEDIA
        if path.startswith("/seed") and answer.status_code == 200:
            cookies.append(answer.headers["set-cookie"].split(";")[0])


@pytest.mark.parametrize("foreign", [False, True])
async def test_random_requests_are_answered_and_leave_nothing(foreign: bool) -> None:
    knobs = {index: Knobs(fail={phase: ("env_crashed", "x")}) for index, phase in ((3, "tool"), (4, "start"))}
    seed = random.randrange(1 << 30)
    print("seed", seed)
    stub = StubOpenEnv(Knobs(prompts=("One.", "Two.")), places=100_000, foreign=foreign, by_index=knobs)
    async with bench(stub) as b:
        await asyncio.gather(*(storm(b, random.Random(seed + n), REQUESTS // 8) for n in range(4)))
        await until(lambda: b.app.sessions.waiting == 0)
        tally = b.tally
        ended = tally.verified + tally.masked.total() + tally.reclaimed + tally.closed
        assert tally.seeded == ended + b.app.sessions.open
        await until(lambda: stub.sessions <= b.app.sessions.open)
