"""Episodes of a real server on a real daemon, with everything that can go wrong going wrong at random moments."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import websockets

FAULTS = ("none", "leave", "kill", "stop", "remove", "oom", "exit")
EXPECTED = {
    "none": "measured",
    "leave": "left",
    "kill": "sandbox_lost",
    "stop": "sandbox_lost",
    "remove": "sandbox_lost",
    "oom": "provider_oom_killed",
    "exit": "env_crashed",
}
DISTURBED = frozenset(
    {
        *("measured", "left", "connection", "sandbox_lost", "env_crashed", "env_unreachable", "provider_unavailable"),
        *("provider_oom_killed", "server_shutdown", "deploy_failed", "verifier_error", "load_failed"),
    }
)
"""how an episode may end that ran while server or daemon went away: in many ways, but with no invented reward"""
_LONGEST = 90
_DOCKER = {"kill": ("kill",), "stop": ("stop", "-t", "1"), "remove": ("rm", "-f")}


@dataclass
class Server:
    """`agent-env serve` as a process, on one daemon and one state folder, restarted at will."""

    bundle: Path
    state: Path
    host: str
    base_image: str
    places: int = 6
    flags: tuple[str, ...] = ()
    url: str = ""
    log: list[str] = field(default_factory=list)
    process: asyncio.subprocess.Process | None = None
    _reader: asyncio.Task[None] | None = None

    async def start(self) -> None:
        command = [sys.executable, "-m", "agent_env", "serve", str(self.bundle), "--port", "0", "--sandbox", "docker"]
        command += ["--max-concurrent-envs", str(self.places), "--build-arg", f"BASE_IMAGE={self.base_image}"]
        command += self.flags
        self.process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "DOCKER_HOST": self.host, "AGENT_ENV_STATE": str(self.state)},
        )
        assert self.process.stdout is not None
        self._reader = asyncio.create_task(self._read())
        async with asyncio.timeout(120):
            while True:
                line = (await self.process.stdout.readline()).decode()
                assert line, "".join(self.log[-40:])
                if "http://" in line:
                    self.url = line.strip().rpartition(" ")[2]
                    return

    async def stop(self, number: int = signal.SIGTERM) -> int:
        assert self.process is not None
        assert self._reader is not None
        with suppress(ProcessLookupError):
            self.process.send_signal(number)
        async with asyncio.timeout(120):
            code = await self.process.wait()
        await self._reader
        return code

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stderr is not None
        while line := await self.process.stderr.readline():
            self.log.append(line.decode(errors="replace"))


class Storm:
    """Plays `episodes` of them, `at_once` at a time; `upsets` are what befalls server and daemon meanwhile."""

    def __init__(
        self,
        server: Server,
        *,
        episodes: int,
        at_once: int,
        seed: int,
        expected: Mapping[str, str] = EXPECTED,
        also: frozenset[str] = frozenset(),
    ) -> None:
        """`also`: further ways in which a disturbed episode may end."""
        self.server = server
        self.expected = expected
        self.also = also
        self.episodes = episodes
        self.at_once = at_once
        self.rng = random.Random(seed)
        self.tally: Counter[tuple[str, str]] = Counter()
        self.wrong: list[str] = []
        self.played = 0
        self._upset = 0
        """how many upsets have begun or ended: an episode that sees it change, or odd, was disturbed"""
        self._calm = asyncio.Event()
        self._calm.set()
        self._progress = asyncio.Condition()

    async def run(self, upsets: list[Any]) -> None:
        """The first half is left in peace, so that each fault is seen alone as well."""
        faults: list[str] = []
        while len(faults) < self.episodes:
            faults += self.rng.sample(list(self.expected), len(self.expected))
        waiting = list(enumerate(faults[: self.episodes]))

        async def player() -> None:
            while waiting:
                number, fault = waiting.pop(0)
                await self._calm.wait()
                await self._episode(number, fault, random.Random(self.rng.random()))

        async with asyncio.TaskGroup() as group:
            for _ in range(self.at_once):
                group.create_task(player())
            for n, upset in enumerate(upsets):
                await self._until(self.episodes // 2 + n * self.episodes // (2 * len(upsets) + 1))
                self._upset += 1
                self._calm.clear()
                try:
                    await upset()
                finally:
                    self._upset += 1
                    self._calm.set()

    async def _until(self, played: int) -> None:
        async with self._progress:
            await self._progress.wait_for(lambda: self.played >= played)

    async def _episode(self, number: int, fault: str, rng: random.Random) -> None:
        before = self._upset
        try:
            async with asyncio.timeout(_LONGEST):
                outcome = await self._play(fault, rng)
        except TimeoutError:
            outcome, reason = "too slow", f"more than {_LONGEST} s"
        except (OSError, websockets.WebSocketException) as error:
            outcome, reason = "connection", repr(error)
        else:
            outcome, _, reason = outcome.partition(": ")
        disturbed = before % 2 == 1 or self._upset != before
        self.tally[f"{fault} (disturbed)" if disturbed else fault, outcome] += 1
        if outcome not in DISTURBED | self.also if disturbed else outcome != self.expected[fault]:
            self.wrong.append(f"episode {number}, {fault}, disturbed {disturbed}: {outcome}: {reason}")
        async with self._progress:
            self.played += 1
            self._progress.notify_all()

    async def _play(self, fault: str, rng: random.Random) -> str:
        moment = rng.choice(("start", "turn"))
        async with websockets.connect(self.server.url.replace("http", "ws") + "/ws", proxy=None) as socket:

            async def ask(kind: str, **data: Any) -> dict[str, Any]:
                await socket.send(json.dumps({"type": kind, **({"data": data} if kind != "state" else {})}))
                reply: dict[str, Any] = json.loads(await socket.recv())
                assert reply["type"] != "error", reply
                return reply["data"]

            async def call(name: str, **arguments: Any) -> dict[str, Any]:
                return await ask("step", type="call_tool", tool_name=name, arguments=arguments)

            told = await ask("reset", split="all", index=rng.randrange(3), ready=False)
            if told["done"]:
                return failed(told)
            episode = (await ask("state"))["episode_id"]
            if fault == "leave" and moment == "start":
                return "left"
            if fault in _DOCKER and moment == "start" and not await self._strike(episode, fault):
                return EXPECTED[fault] + ": it was over before it was struck"
            told = await call("echo", text="hello")
            if not told["done"] and fault == "leave":
                await socket.send(
                    json.dumps(
                        {
                            "type": "step",
                            "data": {"type": "call_tool", "tool_name": "sleep", "arguments": {"seconds": 5}},
                        }
                    )
                )
                await asyncio.sleep(rng.random() / 4)
                return "left"
            if not told["done"] and fault == "oom":
                told = await call("big", size=1 << 30)
            elif not told["done"] and fault == "exit":
                told = await call("crash")
            elif not told["done"] and fault in _DOCKER:
                await self._strike(episode, fault)
                told = await call("echo", text="still there?")
            if told["done"]:
                return failed(told)
            value = rng.random()
            await call("submit", value=value)
            told = await call("end_turn", response="done")
            if told["reward"] is None:
                return failed(told)
            assert told["reward"] == value, "a reward that is not what was measured"
            return "measured"

    async def _strike(self, episode: str, fault: str) -> bool:
        """From outside, as soon as the container is there. One that was started as a spare is named in the journal."""
        while True:
            spare = _handed_over(self.server.state, episode)
            wanted = f"label=agent-env.sandbox={spare}" if spare else f"label=agent-env.episode={episode}"
            if found := await docker(self.server.host, "ps", "-q", "--filter", wanted):
                await docker(self.server.host, *_DOCKER[fault], found.split()[0])
                return True
            if self._upset % 2 == 1:
                return False
            await asyncio.sleep(0.02)


def _handed_over(state: Path, episode: str) -> str | None:
    for file in (state / "journal").glob("*"):
        for line in file.read_text().splitlines():
            entry = json.loads(line)
            if entry["episode"] == episode:
                return str(entry["sandbox"])
    return None


def failed(told: dict[str, Any]) -> str:
    failure = (told.get("observation") or {}).get("failure") or {}
    assert told["reward"] is None, told
    return f"{failure.get('kind')}: {failure.get('reason')}"


async def docker(host: str, *arguments: str) -> str:
    process = await asyncio.create_subprocess_exec(
        "docker", "-H", host, *arguments, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL
    )
    output, _ = await process.communicate()
    return output.decode().strip()
