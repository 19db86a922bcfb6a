"""Writes a resources server's folder for the tasks that an OpenEnv server lists: config, rows, texts.

The rows of a task list its own tools, which no Task API tells. So one task of each toolset is played as far as its tool
list; against servers that don't tell toolsets, the first task, or as many as `--probe` says.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from agent_env.errors import ConfigError
from agent_env.training.nemo_gym import staging, template
from agent_env.training.nemo_gym.names import check_split, folder_name, tool_aliases
from agent_env.training.nemo_gym.probe import Probed, probe
from agent_env.training.nemo_gym.rows import TaskEntry, build_row, for_task, function_tools, write_rows
from agent_env.training.nemo_gym.taskapi import OpenEnvError, TaskApi

Json = Any

_HEAVY_TOOLS = 128 * 1024
_UNTOLD = ""
"""the toolset of every task of a server that tells none"""


@dataclass(frozen=True, slots=True)
class WriterOptions:
    url: str
    out: str
    name: str | None = None
    rows: tuple[int, int | None] = (0, None)
    """which rows of each split: from, to (not included)"""
    splits: tuple[str, ...] = ()
    probe: int | None = 1
    """tasks to play per toolset; None: all"""
    force: bool = False
    token: str | None = None
    timeout: float = 1200.0
    """seconds for one task to deploy, load and list its tools"""
    concurrency: int = 4


@dataclass(frozen=True, slots=True)
class Written:
    path: str
    """`<OUT>/resources_servers/<name>`, OUT as given"""
    counts: Mapping[str, int]
    """split -> rows"""
    played: int
    """tasks that were deployed to learn their tools"""


async def write(options: WriterOptions, tell: Callable[[str], None]) -> Written:
    """Writes the folder; `tell` gets lines for people. Raises ConfigError or OpenEnvError, and then changes nothing."""
    async with TaskApi(options.url, options.token) as api:
        env = await api.environment()
        name = folder_name(options.name or env)
        path = Path(options.out) / "resources_servers" / name
        former = staging.survey(path)
        if not options.force:
            staging.refuse(path, former)
        digest = await api.digest()
        splits = await _read_splits(api, env, options, tell)
        tools = await _learn(api.url, list(itertools.chain(*splits.values())), options, tell)
    server = template.Server(
        name=name,
        path=path.as_posix(),
        openenv_url=api.url,
        env=env,
        digest=digest,
        aliases=tool_aliases(str(tool["name"]) for probed in tools.played.values() for tool in probed.tools),
        splits={split: len(tasks) for split, tasks in splits.items()},
    )
    with staging.staged(path, former) as stage:
        _fill(stage.path, server, splits, tools, tell)
    if stage.aside:
        tell(f"the former folder is kept as {stage.aside}")
    return Written(server.path, server.splits, len(tools.played))


async def _read_splits(
    api: TaskApi, env: str, options: WriterOptions, tell: Callable[[str], None]
) -> dict[str, list[TaskEntry]]:
    known = await api.splits(env)
    wanted = list(options.splits) or [split for split in known if split != "all"] or known
    unknown = [split for split in wanted if split not in known]
    if unknown:
        raise ConfigError(f"the OpenEnv server has no split {unknown[0]!r}: it has {', '.join(known)}")
    for split in wanted:
        if split != "all":
            check_split(split)
    start, stop = options.rows
    ordered = sorted(dict.fromkeys(wanted), key=lambda split: split != "train")
    read = {split: await api.tasks(env, split, start, stop) for split in ordered}
    for split in [split for split, tasks in read.items() if not tasks]:
        tell(f"warning: split {split!r} has no row in the range, so it gets no file")
        del read[split]
    if not read:
        raise ConfigError("no row is left to write: the splits are empty there, see --split and --rows")
    return read


@dataclass(frozen=True, slots=True)
class _Tools:
    """What the played tasks showed."""

    played: Mapping[TaskEntry, Probed]
    by_toolset: Mapping[str, Probed]

    def of(self, task: TaskEntry) -> Probed:
        return self.played.get(task) or self.by_toolset[task.toolset or _UNTOLD]


async def _learn(url: str, tasks: Sequence[TaskEntry], options: WriterOptions, tell: Callable[[str], None]) -> _Tools:
    groups: dict[str, list[TaskEntry]] = {}
    for task in tasks:
        groups.setdefault(task.toolset or _UNTOLD, []).append(task)
    chosen = {toolset: _sample(group, options.probe) for toolset, group in groups.items()}
    if _UNTOLD in chosen and options.probe == 1:
        tell(
            "warning: the OpenEnv server does not tell which tasks share their tools: every row gets those of "
            f"{chosen[_UNTOLD][0].label}; --probe all plays each task once, --probe N a sample of N"
        )
    todo = [task for group in chosen.values() for task in group]
    played = await _probe_all(url, todo, options, tell)
    by_toolset = {toolset: played[group[0]] for toolset, group in chosen.items()}
    if options.probe is not None:
        for toolset, group in chosen.items():
            _check_alike(toolset, [(task, played[task]) for task in group])
    return _Tools(played, by_toolset)


def _sample(group: Sequence[TaskEntry], count: int | None) -> list[TaskEntry]:
    """`count` tasks spread over the group, the first among them."""
    if count is None or count >= len(group):
        return list(group)
    return [group[position * len(group) // count] for position in range(count)]


def _check_alike(toolset: str, played: Sequence[tuple[TaskEntry, Probed]]) -> None:
    first, expected = played[0]
    for task, probed in played:
        if probed.tools != expected.tools or (task.turns is None and probed.turns != expected.turns):
            shared = f" though they share the toolset {toolset!r}" if toolset else ""
            raise ConfigError(
                f"the tasks {first.label} and {task.label} offer different tools{shared}: "
                "--probe all plays each task once, so that each row gets its own"
            )


async def _probe_all(
    url: str, tasks: Sequence[TaskEntry], options: WriterOptions, tell: Callable[[str], None]
) -> dict[TaskEntry, Probed]:
    places = asyncio.Semaphore(options.concurrency)
    found: dict[TaskEntry, Probed] = {}

    async def one(task: TaskEntry) -> None:
        async with places:
            found[task] = await probe(url, task, token=options.token, timeout=options.timeout)
            tell(f"played {task.label} for its tools ({len(found)} of {len(tasks)})")

    try:
        async with asyncio.TaskGroup() as group:
            for task in tasks:
                group.create_task(one(task))
    except* OpenEnvError as errors:
        raise errors.exceptions[0] from None
    return found


def _fill(
    stage: Path,
    server: template.Server,
    splits: Mapping[str, Sequence[TaskEntry]],
    tools: _Tools,
    tell: Callable[[str], None],
) -> None:
    template.render(server, stage)
    data = stage / "data"
    data.mkdir(exist_ok=True)
    offered: dict[int, list[dict[str, Json]]] = {}
    heaviest = 0

    def row(task: TaskEntry) -> dict[str, Json]:
        nonlocal heaviest
        probed = tools.of(task)
        if id(probed) not in offered:
            offered[id(probed)] = shown = function_tools(probed.tools, server.aliases)
            heaviest = max(heaviest, _weight(shown, task))
        turns = task.turns if task.turns is not None else probed.turns
        return build_row(task, for_task(offered[id(probed)], turns), server.agent)

    for split, tasks in splits.items():
        write_rows(data / f"{split}.jsonl", (row(task) for task in tasks))
    examples = itertools.islice(itertools.cycle(itertools.chain(*splits.values())), template.EXAMPLES)
    write_rows(data / "example.jsonl", (row(task) for task in examples))
    originals = {toolset or "any": list(probed.tools) for toolset, probed in tools.by_toolset.items()}
    (stage / "tools.json").write_bytes(orjson.dumps(originals, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
    if heaviest > _HEAVY_TOOLS:
        tell(f"warning: the tools take {heaviest // 1024} KiB of every row and of every model request")


def _weight(tools: Sequence[Mapping[str, Json]], task: TaskEntry) -> int:
    """Bytes of JSON. Raises ConfigError for schemas that can't be written, which are those of over 250 levels."""
    try:
        return len(orjson.dumps(tools))
    except orjson.JSONEncodeError as error:
        raise ConfigError(f"the tools of the task {task.label} can't be put into rows: {error}") from None
