"""Runs the real `vf-eval` and reads what became of each rollout."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from clients.scripted_model import Policy, ScriptedModel
from clients.verifiers_venv import VerifiersClient

EVAL_TOML = Path(__file__).parents[2] / "examples" / "eval.toml"


@dataclass(frozen=True)
class Rollout:
    """One trace of traces.jsonl."""

    row: Mapping[str, Any]
    ok: bool
    reward: float | None
    errors: tuple[str, ...]
    """`type: message` of each"""
    stop: str | None
    metrics: Mapping[str, float]
    info: Mapping[str, Any]
    """the verify answer, less what the taskset takes out of it"""
    calls: tuple[tuple[str, str], ...]
    """(name, arguments as the model wrote them)"""
    tool_texts: tuple[str, ...]
    """what the tools answered, as the model read it"""

    @property
    def prompt(self) -> str:
        return user_prompt(self.row)


@dataclass(frozen=True)
class Run:
    """One `vf-eval`: its rollouts in the rows' order, and what it printed."""

    rollouts: tuple[Rollout, ...]
    output: str
    seconds: float

    @property
    def mean(self) -> float:
        """As `vf-eval` means it: over the rollouts that did not fail."""
        rewards = [rollout.reward for rollout in self.rollouts if rollout.ok and rollout.reward is not None]
        return sum(rewards) / len(rewards)

    @property
    def headline(self) -> str:
        """The last panel's title, such as `8/8 - 49s - reward 0.75 - err 0.00`."""
        found = re.findall(r"\d+/\d+ · [\dhms ]+ · reward .* · err [\d.]+", self.output)
        return found[-1] if found else ""


def adapted(template: Path, folder: Path, **replaced: tuple[str, str]) -> Path:
    """A copy of a config in `folder` with nothing but these values replaced: each old one must occur exactly once."""
    text = template.read_text()
    for old, new in replaced.values():
        assert text.count(f'"{old}"') == 1, f"{template} should hold {old!r} once"
        text = text.replace(f'"{old}"', json.dumps(new))
    path = folder / template.name
    path.write_text(text)
    return path


def play(
    client: VerifiersClient,
    url: str,
    folder: Path,
    rows: Sequence[Mapping[str, Any]],
    policies: Mapping[str, Policy],
    *flags: str,
) -> Run:
    """Play these rows, each by the policy of its prompt, eight at once, with the published config."""
    folder.mkdir(exist_ok=True)
    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with ScriptedModel(policies).serving() as model:
        config = published_config(folder, model.url, url, data)
        return run_vf_eval(client, config, "-n", str(len(rows)), "-c", "8", *flags, timeout=400)


def published_config(folder: Path, model_url: str, url: str, data: Path) -> Path:
    """examples/eval.toml with its three places adapted, and nothing else."""
    return adapted(
        EVAL_TOML,
        folder,
        model=("http://127.0.0.1:8100/v1", model_url),
        server=("http://127.0.0.1:9100", url),
        rows=("gym-root/resources_servers/gridsim_v1/data/eval.jsonl", str(data)),
    )


def run_vf_eval(client: VerifiersClient, config: Path, *flags: str, timeout: float = 300) -> Run:
    """Run `vf-eval @ config FLAGS -r 1 --no-push` beside the config, and read its traces.

    It exits 0 even when every rollout failed, so only the traces tell.
    """
    command = [str(client.vf_eval), "@", config.name, "-r", "1", "--no-push", *flags]
    started = time.monotonic()
    process = subprocess.Popen(
        command,
        cwd=config.parent,
        env=client.environment | {"VLLM_API_KEY": "unused", "COLUMNS": "120"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise
    assert process.returncode == 0, output
    return Run(tuple(_rollouts(config.parent)), output, time.monotonic() - started)


def user_prompt(row: Mapping[str, Any]) -> str:
    """What the row asks, which is the user's message that the model gets."""
    items: str | Sequence[Mapping[str, Any]] = row["responses_create_params"]["input"]
    if isinstance(items, str):
        return items
    return "\n".join(item["content"] for item in items if item.get("role") == "user")


def _rollouts(folder: Path) -> list[Rollout]:
    (file,) = folder.glob("outputs/*/traces.jsonl")
    episodes = [json.loads(line) for line in file.read_text().splitlines()]
    return sorted((_rollout(trace) for e in episodes for trace in e["traces"]), key=lambda r: int(r.row["index"]))


def _rollout(trace: Mapping[str, Any]) -> Rollout:
    score = (trace["rewards"].get("nemo_gym") or {}).get("score")
    messages = [node["message"] for node in trace["nodes"]]
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return Rollout(
        row=trace["task"]["data"]["row"],
        ok=trace["ok"],
        reward=score,
        errors=tuple(f"{error['type']}: {error['message']}" for error in trace["errors"]),
        stop=trace["stop_condition"],
        metrics=trace["metrics"],
        info=trace["info"].get("nemo_gym") or {},
        calls=tuple((call["name"], call["arguments"]) for call in calls),
        tool_texts=tuple(message["content"] for message in messages if message["role"] == "tool"),
    )
