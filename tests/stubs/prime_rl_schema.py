"""What prime-rl takes in the config of `uv run rl`, version by version, for the tables that our example sets.

prime-rl's config classes are on no package index, so they are written down here. 0.8 is read off the classes of
0.8.1.dev67. 0.10 is the config that agentenv-framework publishes as one that ran on v0.10.0; where that says nothing,
the classes of the commits after 0.8.1. Every table refuses a key that it does not know, `inference.vllm` alone passes
on whatever vLLM takes. `.github/workflows/clients.yml` holds the example against the classes themselves.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Json = Any


@dataclass(frozen=True)
class Key:
    """One key: `kind` is what TOML must hold there; a whole number is a `float`, a boolean is no number."""

    kind: type
    required: bool = False
    """without it the config is refused, or does something else than run here"""
    fits: Callable[[Json], bool] = lambda value: True
    rule: str = ""
    """`fits` in words"""


def _number(kind: type, low: float, high: float = float("inf"), *, required: bool = False) -> Key:
    return Key(kind, required, lambda value: low <= value <= high, f"must be from {low:g} to {high:g}")


def _one_of(*values: str, required: bool = False) -> Key:
    return Key(str, required, lambda value: value in values, f"must be one of {', '.join(values)}")


def _under(prefix: str, keys: Mapping[str, Key]) -> dict[str, Key]:
    return {f"{prefix}.{name}": key for name, key in keys.items()}


_SAMPLING = {"temperature": _number(float, 0, 2), "max_completion_tokens": _number(int, 1), "extra_body": Key(dict)}

_SOURCE = {
    "name": Key(str),
    "group_size": _number(int, 1),
    "env.taskset.id": _one_of("nemo-gym", required=True),
    "env.taskset.dataset": Key(str, required=True),
    "env.taskset.task.resources_url": Key(str, required=True),
    "env.taskset.task.request_timeout": Key(float, False, lambda value: value > 0, "must be above 0"),
    "env.taskset.task.headers": Key(dict),
    # without these three a rollout is played by a shell, without an end, in a sandbox of Prime Intellect's cloud
    "env.agent.harness.id": Key(str, required=True),
    "env.agent.max_turns": _number(int, 1, required=True),
    "env.agent.runtime.type": _one_of("subprocess", "docker", "prime", required=True),
    "env.agent.retries": Key(dict),
    "env.agent.sampling.temperature": _number(float, 0, 2),
    "env.agent.sampling.max_tokens": _number(int, 1),
    "env.agent.sampling.chat_template_kwargs": Key(dict),
    "env.retries": Key(dict),
}

_COMMON = {
    "max_steps": _number(int, 1),
    "seq_len": _number(int, 1),
    "output_dir": Key(str),
    "run.name": Key(str),
    "deployment.type": _one_of("single_node", "multi_node"),
    "deployment.gpus_per_node": _number(int, 1),
    "deployment.num_train_gpus": _number(int, 1),
    "deployment.num_infer_gpus": _number(int, 1),
    "model.name": Key(str),
    "trainer.optim.lr": Key(float, False, lambda value: value >= 0, "must not be negative"),
    "trainer.model.lora.rank": _number(int, 1),
    "trainer.model.lora.alpha": Key(float, False, lambda value: value >= 0, "must not be negative"),
    "ckpt.interval": _number(int, 1),
    "ckpt.keep_last": _number(int, 1),
    "orchestrator.batch_size": _number(int, 1),
    "orchestrator.max_off_policy_steps": _number(int, 0),
    "orchestrator.concurrency.initial_inflight": _number(int, 1),
    "orchestrator.concurrency.min_inflight": _number(int, 1),
    "orchestrator.concurrency.max_inflight": _number(int, 1),
    # "auto" fails for a model whose name it does not know, such as a folder's
    "orchestrator.renderer.name": Key(str, required=True),
    "orchestrator.renderer.enable_thinking": Key(bool),
    **_under("orchestrator.train.sampling", _SAMPLING),
    **_under("orchestrator.train.source[]", _SOURCE),
    "orchestrator.eval.interval": _number(int, 1),
    "orchestrator.eval.skip_first_step": Key(bool),
    "orchestrator.eval.group_size": _number(int, 1),
    **_under("orchestrator.eval.sampling", _SAMPLING),
    **_under("orchestrator.eval.source[]", _SOURCE),
    "inference.vllm.*": Key(object),
    "inference.vllm.tool_call_parser": Key(str),
    "rollout_transport.port": _number(int, 1, 65534),
}

TABLES: dict[str, dict[str, Key]] = {
    "0.8": _COMMON | {"orchestrator.group_size": _number(int, 1)},
    "0.10": _COMMON | {"orchestrator.train.group_size": _number(int, 1)},
}
GROUP_SIZE = {"0.8": "orchestrator.group_size", "0.10": "orchestrator.train.group_size"}


def problems(config: Mapping[str, Json], version: str) -> list[str]:
    """What that version would refuse or misunderstand, each with the key's path; none when it is right."""
    table = TABLES[version]
    found = dict(leaves(config, table))
    told = [told for path, value in found.items() for told in _of_key(path, value, table)]
    return told + list(_missing(found, table)) + list(_between(found, version))


def leaves(config: Mapping[str, Json], table: Mapping[str, Key], path: str = "") -> Iterator[tuple[str, Json]]:
    """Every value by its path, list items as `path[0]`. A table that the schema does not take apart is one value."""
    for name, value in config.items():
        here = f"{path}.{name}" if path else name
        if isinstance(value, dict) and any(key.startswith(f"{general(here)}.") for key in table):
            yield from leaves(value, table, here)
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            for place, item in enumerate(value):
                yield from leaves(item, table, f"{here}[{place}]")
        else:
            yield here, value


def general(path: str) -> str:
    """The table's name of a path: `source[0].name` is `source[].name`."""
    return re.sub(r"\[\d+\]", "[]", path)


def _of_key(path: str, value: Json, table: Mapping[str, Key]) -> Iterator[str]:
    key = table.get(general(path)) or table.get(f"{general(path).rpartition('.')[0]}.*")
    if key is None:
        yield f"{path}: there is no such key"
    elif not _is(value, key.kind):
        yield f"{path}: {value!r} is no {key.kind.__name__}"
    elif not key.fits(value):
        yield f"{path}: {value!r}: {key.rule}"


def _is(value: Json, kind: type) -> bool:
    if isinstance(value, bool):
        return kind in (bool, object)
    return isinstance(value, (int, float) if kind is float else kind)


def _missing(found: Mapping[str, Json], table: Mapping[str, Key]) -> Iterator[str]:
    sources = sorted({path.partition("].")[0] + "]" for path in found if "].env." in path or "].name" in path})
    for name, key in table.items():
        if not key.required:
            continue
        group, inside, rest = name.partition("[].")
        places = [f"{source}.{rest}" for source in sources if source.startswith(f"{group}[")] if inside else [name]
        yield from (f"{place}: is missing" for place in places if place not in found)


def _between(found: Mapping[str, Json], version: str) -> Iterator[str]:
    """Rules about several keys."""
    size = found.get(GROUP_SIZE[version], 1)
    batch, most = found.get("orchestrator.batch_size"), found.get("orchestrator.concurrency.max_inflight")
    if _is(size, int) and _is(batch, int) and size and batch % size:
        yield f"orchestrator.batch_size: {batch} is no multiple of {GROUP_SIZE[version]}, {size}"
    if _is(size, int) and _is(most, int) and most < size:
        yield f"orchestrator.concurrency.max_inflight: {most} is less than {GROUP_SIZE[version]}, {size}"
    gpus = [found.get(f"deployment.num_{what}_gpus", 1) for what in ("train", "infer")]
    if all(_is(count, int) for count in gpus) and sum(gpus) > found.get("deployment.gpus_per_node", 8):
        yield f"deployment: {sum(gpus)} GPUs are more than deployment.gpus_per_node"
    for split in ("train", "eval"):
        names = [value for path, value in found.items() if general(path) == f"orchestrator.{split}.source[].name"]
        if len(set(map(str, names))) < len(names) or "agg" in names:
            yield f"orchestrator.{split}.source[].name: each name is used once, and none is 'agg'"
        group = any(path.startswith(f"orchestrator.{split}.") for path in found)
        if group and not any(path.startswith(f"orchestrator.{split}.source[") for path in found):
            yield f"orchestrator.{split}.source: is missing"
