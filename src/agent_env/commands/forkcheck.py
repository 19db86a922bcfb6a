"""Plays a task in two forks at once, and beside that in two sandboxes of its own, and says what differs.

What differs between the latter two is not the forks' doing, and is passed over.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agent_env.commands.samples import sample
from agent_env.commands.selection import Chosen
from agent_env.episode import Episode, EpisodeFailure, EpisodeSpec, Runtime, Turn
from agent_env.errors import AgentEnvError
from agent_env.findings import Finding, error, warning
from agent_env.sandbox import Isolating
from agent_env.sandbox.capacity import Capacity
from agent_env.sandbox.fork_sandbox import ForkSandbox

CALL_TIMEOUT = 60.0
_SHOWN = 120
_KEEP_APART = 'isolation = "container" keeps it apart (docs/isolation.md)'

_LOOK = """
import json, os
found = []
for folder in ("/tmp", "/var/tmp", "/dev/shm", "/dev/mqueue", "/run/lock"):
    try: names = os.listdir(folder)
    except OSError: continue
    for path in (os.path.join(folder, name) for name in names):
        try: state = os.lstat(path)
        except OSError: continue
        if state.st_uid == os.getuid() and state.st_mode & 0o077: found.append(path)
print(json.dumps(found))
"""


@dataclass(slots=True)
class _Told:
    """What one play showed, by what it is about."""

    seen: dict[str, str] = field(default_factory=dict)
    failure: str = ""


async def compare_forks(task: Chosen, runtime: Runtime) -> list[Finding]:
    """Nothing for a task without an env that is forked."""
    forked = [env.name for env in task.plan.envs if runtime.prepared[env.digest].env.settings.isolation == "fork"]
    provider = runtime.provider
    if not forked or not isinstance(provider, Isolating):
        return []
    where = "+".join(f"envs/{name}" for name in forked)
    left: set[str] = set()
    forks = await _play_two(task, runtime, provider, left)
    apart = Runtime(
        Isolating(provider.provider, "container"),
        capacity=Capacity(2),
        judge=runtime.judge,
        deadlines=runtime.deadlines,
        close_provider=False,
    )
    try:
        await apart.prepare_tasks([task.plan])
        plain = await _play_two(task, apart, None, set())
    except AgentEnvError as wrong:
        return [warning(where, f"forks could not be compared with a sandbox of its own: {wrong}", "put that right")]
    finally:
        await apart.aclose()
    return [*_differences(where, forks, plain), *_shared(where, left)]


async def _play_two(task: Chosen, runtime: Runtime, provider: Isolating | None, left: set[str]) -> list[_Told]:
    told = [_Told(), _Told()]
    episodes = [await EpisodeSpec(task.plan).start(runtime=runtime) for _ in told]
    try:
        turns = await asyncio.gather(*(_begin(episode, one) for episode, one in zip(episodes, told, strict=True)))
        if provider is not None:
            found = await asyncio.gather(*(_left_by(sandbox) for sandbox in provider.sandboxes))
            left.update(path for paths in found for path in paths)
        await asyncio.gather(*(_end(*each) for each in zip(episodes, turns, told, strict=True)))
    finally:
        await asyncio.gather(*(episode.abandon("the comparison is over") for episode in episodes))
    return told


async def _begin(episode: Episode, told: _Told) -> Turn | None:
    try:
        turn = await episode.next_turn()
        if turn is not None:
            told.seen["its tools"] = json.dumps({tool.name: tool.input_schema for tool in turn.list()}, sort_keys=True)
            for tool in turn.list():
                result = await turn.call(tool.name, sample(tool.input_schema), timeout=CALL_TIMEOUT)
                told.seen[f"tool {tool.name!r}"] = result.text
    except EpisodeFailure as failure:
        told.failure = str(failure)
        return None
    return turn


async def _end(episode: Episode, turn: Turn | None, told: _Told) -> None:
    try:
        while turn is not None:
            await turn.end("")
            turn = await episode.next_turn()
        if not told.failure:
            told.seen |= {f"step {step!r}": f"{score:g}" for step, score in (await episode.result()).items()}
    except EpisodeFailure as failure:
        told.failure = str(failure)


async def _left_by(sandbox: ForkSandbox) -> list[str]:
    """What a fork has by now where its siblings can see it. Only its user tells it from theirs."""
    if sandbox.slot.uid is None:
        return []
    try:
        done = await sandbox.exec(["python3", "-c", _LOOK], timeout=30)
        found: list[str] = json.loads(done.stdout) if done.exit_code == 0 else []
    except (EpisodeFailure, ValueError):
        return []
    return found


def _differences(where: str, forks: list[_Told], plain: list[_Told]) -> list[Finding]:
    if any(told.failure for told in plain):
        return []  # that is reported where the task is played alone
    failed = next((told.failure for told in forks if told.failure), None)
    if failed is not None:
        return [error(where, f"fails in a fork, and not in a sandbox of its own: {failed}", _KEEP_APART)]
    return [
        error(where, f"{what}: in a fork {_short(seen)}, in a sandbox of its own {_short(expected)}", _KEEP_APART)
        for what, expected in _constant(plain).items()
        for seen in sorted({told.seen.get(what, "nothing") for told in forks} - {expected})[:1]
    ]


def _constant(plain: list[_Told]) -> Mapping[str, str]:
    first, second = plain
    return {what: seen for what, seen in first.seen.items() if second.seen.get(what) == seen}


def _shared(where: str, left: set[str]) -> list[Finding]:
    if not left:
        return []
    paths = ", ".join(sorted(left)[:3]) + (", ..." if len(left) > 3 else "")
    problem = f"leaves files where the forks beside it can see them: {paths}"
    return [warning(where, problem, f"have it use its temporary folder (TMPDIR), or {_KEEP_APART}")]


def _short(text: Any) -> str:
    shown = repr(text)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
