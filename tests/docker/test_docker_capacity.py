"""Forty deploys at once on eight places, judged by the daemon's own events and not by our counters."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import docker
import pytest

from agent_env.env.card import wait_ready
from agent_env.sandbox.base import SandboxSpec
from agent_env.sandbox.capacity import Capacity
from agent_env.sandbox.conformance import conformance_env
from agent_env.sandbox.docker import DockerProvider
from agent_env.sandbox.docker_daemon import streamed

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

DEPLOYS, PLACES, STARTING = 40, 8, 2


def events(api: docker.APIClient, mark: str, since: float) -> list[dict[str, Any]]:
    asked = {"type": ["container"], "label": [f"agent-env.test={mark}"], "event": ["create", "start", "destroy"]}
    until = f"{time.time():.6f}"
    with streamed(api, "/events", since=f"{since:.6f}", until=until, filters=json.dumps(asked)) as answer:
        return [json.loads(line) for line in answer.iter_lines()]


async def test_places_and_starts_are_kept_to(
    api: docker.APIClient,
    provider: DockerProvider,
    sources: Path,
    mark: str,
    whats_there: Callable[[], list[str]],
) -> None:
    prepared = await provider.prepare(conformance_env(sources))
    capacity = Capacity(PLACES, starting=STARTING)
    served: list[int] = []
    seen: list[dict[str, Any]] = []
    looked = time.time()
    full = asyncio.Event()

    async def deploy(number: int) -> None:
        async with await capacity.place():
            async with capacity.starting():
                sandbox = await provider.start(SandboxSpec(prepared=prepared, episode=f"{number:02}"))
                await wait_ready(sandbox, timeout=60, expected_name="conformance")
            served.append(number)
            if len(served) == PLACES:
                full.set()
            await full.wait()
            await sandbox.stop(grace=0)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(deploy(number)) for number in range(DEPLOYS)]
        while not all(task.done() for task in tasks):
            # The daemon remembers its last 256 events, of everybody's containers: fetch them as they come.
            await asyncio.wait(tasks, timeout=1, return_when=asyncio.ALL_COMPLETED)
            now = time.time()
            seen += await asyncio.to_thread(events, api, mark, looked)
            looked = now
    known = {(event["timeNano"], event["Action"], event["id"]): event for event in seen}
    there: set[str] = set()
    starting: set[str] = set()
    order: list[str] = []
    most = most_starting = 0
    for (_, action, container), event in sorted(known.items()):
        if action == "create":
            there.add(container)
            starting.add(container)
            order.append(event["Actor"]["Attributes"]["agent-env.episode"])
        elif action == "start":
            starting.discard(container)
        else:
            there.discard(container)
        most, most_starting = max(most, len(there)), max(most_starting, len(starting))
    assert len(order) == len(set(order)) == len(served) == DEPLOYS, "none lost, none started twice"
    assert most == PLACES
    assert most_starting <= STARTING
    displaced = [abs(place - int(episode)) for place, episode in enumerate(order)]
    assert max(displaced) < STARTING, f"first come, first served, but for what starts at once: {order}"
    assert whats_there() == []
