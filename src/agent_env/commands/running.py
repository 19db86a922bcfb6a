"""What `agent-env run` does, once its flags are read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Any

import orjson

from agent_env.bundle import load_bundle
from agent_env.commands.chat import ChatModel
from agent_env.commands.console import key_values
from agent_env.commands.episodes import Ended, Ground, opened, play_tasks
from agent_env.commands.outcomes import Outcome, Status, Tally, means, table
from agent_env.commands.players import ModelPlayer, Player, policy_player
from agent_env.commands.selection import Selection, choose
from agent_env.commands.warned import say_warnings
from agent_env.episode import plan_bundle
from agent_env.errors import ConfigError
from agent_env.progress import progress

__all__ = ["Endpoint", "Ground", "Run", "run_bundle"]

_LISTED = 10
"""names of tasks that were not run"""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The flags that name a model. None of them: it is played without one."""

    model: str | None
    base_url: str | None
    key_variable: str
    arguments: Sequence[str]
    max_turns: int
    timeout: float

    def player(self) -> ModelPlayer:
        """Raises ConfigError."""
        if self.model is None or self.base_url is None:
            raise ConfigError("--model and --base-url go together: which model, and at which endpoint?")
        given = {key: _value(text) for key, text in key_values(self.arguments, "--model-arg").items()}
        key = os.environ.get(self.key_variable) or None
        model = ChatModel(self.model, self.base_url, key=key, arguments=given, timeout=self.timeout)
        return ModelPlayer(model, max_turns=self.max_turns)


@dataclass(frozen=True, slots=True)
class Run:
    """What was asked for."""

    bundle: str
    tasks: tuple[str, ...]
    evals: tuple[str, ...]
    ground: Ground
    policy: str | None
    endpoint: Endpoint
    seed: int
    out: Path | None


async def run_bundle(asked: Run) -> bool:
    """Plays, and prints the table, also of what an interrupted run got done. False when a task failed.

    Raises:
        BundleError: the bundle is wrong.
        ConfigError: a task, eval, policy or setting that there is not.
        AgentEnvError: nothing could be played at all: no sandbox, no endpoint.
    """
    bundle = load_bundle(asked.bundle)
    plans = plan_bundle(bundle)
    selection = choose(bundle, plans, tasks=asked.tasks, evals=asked.evals)
    say_warnings(chosen.plan for chosen in selection.tasks)
    player = _player(selection, asked)
    outcomes: list[Outcome] = []
    started = time.perf_counter()
    used = ""
    try:
        with _log(asked.out) as file:
            runnable = [chosen.plan for chosen in selection.tasks if not chosen.plan.unsupported]
            async with opened(asked.ground, runnable) as runtime:
                used = runtime.provider.name
                with progress(Tally(len(selection.tasks))) as advance:
                    await play_tasks(selection.tasks, runtime, player, _recorder(outcomes, file, advance))
    finally:
        if player is not None:
            await player.aclose()
        if outcomes:
            print(_report(selection, outcomes, used, time.perf_counter() - started), flush=True)
    return all(outcome.status is not Status.FAILED for outcome in outcomes)


def _player(selection: Selection, asked: Run) -> Player | None:
    policy, endpoint = asked.policy, asked.endpoint
    prompted = next((task for task in selection.tasks if task.plan.prompts and not task.plan.unsupported), None)
    if policy is not None and endpoint.model is not None:
        raise ConfigError("--policy and --model: give one or the other")
    if policy is not None:
        return policy_player(policy, seed=asked.seed)
    if endpoint.model is not None or endpoint.base_url is not None:
        return endpoint.player()
    if prompted is not None:
        raise ConfigError(f"{prompted.plan.task.source} prompts an agent: give --policy, or --model and --base-url")
    return None


def _recorder(outcomes: list[Outcome], file: IO[bytes] | None, advance: Ended) -> Ended:
    def ended(outcome: Outcome) -> None:
        outcomes.append(replace(outcome, messages=()))
        if file is not None:
            file.write(_line(outcome))
            file.flush()
        advance(outcome)

    return ended


def _line(outcome: Outcome) -> bytes:
    record: dict[str, Any] = asdict(outcome)
    failure = {"kind": record.pop("kind"), "reason": record.pop("reason")}
    messages = record.pop("messages")
    record |= {"seconds": round(outcome.seconds, 4), "failure": failure if failure["kind"] else None}
    record["messages"] = messages
    try:
        return orjson.dumps(record, option=orjson.OPT_APPEND_NEWLINE)
    except TypeError:  # half of a surrogate pair in a text, which UTF-8 can't carry and JSON's escapes can
        return json.dumps(record).encode() + b"\n"


def _report(selection: Selection, outcomes: Sequence[Outcome], sandbox: str, seconds: float) -> str:
    order = {chosen.name: place for place, chosen in enumerate(selection.tasks)}
    ordered = sorted(outcomes, key=lambda outcome: order[outcome.task])
    tally = Tally(len(selection.tasks))
    for outcome in ordered:
        tally.add(outcome)
    scores = ", ".join(f"{step} {mean:.4f}" for step, mean in means(ordered).items())
    lines = [table(ordered), f"{tally}; {seconds:.1f} s, {sandbox} sandbox"]
    if len(means(ordered)) > 1:
        lines.append(f"mean by step: {scores}")
    if selection.left:
        names = ", ".join(selection.left[:_LISTED])
        more = len(selection.left) - _LISTED
        lines.append(f"not run, in no chosen eval: {names}{f' and {more} more' if more > 0 else ''}")
    return "\n".join(lines)


@contextmanager
def _log(path: Path | None) -> Iterator[IO[bytes] | None]:
    if path is None:
        yield None
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("wb")
    except OSError as error:
        raise ConfigError(f"--out {path}: can't be written: {error.strerror or error}") from None
    with file:
        yield file


def _value(text: str) -> Any:
    """A number, a boolean, JSON; anything else is a text."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return text
