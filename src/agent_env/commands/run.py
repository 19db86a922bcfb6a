"""`agent-env run`: plays a bundle's tasks here, with a policy or a model, and says how each ended."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import IO, Annotated, Any

import orjson
import typer

from agent_env.bundle import Bundle, Env, load_bundle
from agent_env.commands import flags
from agent_env.commands.chat import ChatModel
from agent_env.commands.console import key_values, set_up_logging
from agent_env.commands.episodes import Ended, Ground, opened, play_tasks
from agent_env.commands.interrupts import run_to_end
from agent_env.commands.outcomes import Outcome, Status, Tally, means, table
from agent_env.commands.players import MOST_MODEL_TURNS, ModelPlayer, Player, PolicyPlayer
from agent_env.commands.selection import Selection, choose
from agent_env.commands.warned import say_warnings
from agent_env.episode import Deadlines, plan_bundle
from agent_env.errors import ConfigError
from agent_env.policies import KNOWN
from agent_env.progress import progress

_LISTED = 10
"""names of tasks that were not run"""


def run(
    bundle: flags.BundlePath,
    task: Annotated[
        list[str] | None, typer.Option(metavar="T", help="Run this task; repeatable. Default: every eval's, or all.")
    ] = None,
    eval: Annotated[list[str] | None, typer.Option(metavar="E", help="Run the tasks of this eval; repeatable.")] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            envvar="AGENT_ENV_POLICY", metavar="P", help=f"Play with {', '.join(KNOWN)} (GridSim) or module:function."
        ),
    ] = None,
    model: Annotated[
        str | None, typer.Option(envvar="AGENT_ENV_MODEL", metavar="M", help="Play with this model at --base-url.")
    ] = None,
    base_url: Annotated[
        str | None,
        typer.Option(
            envvar="AGENT_ENV_BASE_URL", metavar="U", help="OpenAI-compatible endpoint: http://127.0.0.1:8000/v1."
        ),
    ] = None,
    api_key_var: Annotated[
        str,
        typer.Option(envvar="AGENT_ENV_API_KEY_VAR", metavar="NAME", help="Variable that holds the endpoint's key."),
    ] = "OPENAI_API_KEY",
    model_arg: Annotated[
        list[str] | None,
        typer.Option("--model-arg", metavar="KEY=VALUE", help="Field of each request, such as temperature=0.7."),
    ] = None,
    max_turns: Annotated[
        int, typer.Option(envvar="AGENT_ENV_MAX_TURNS", help="Model turns a prompt, where the task sets none.", min=1)
    ] = MOST_MODEL_TURNS,
    request_timeout: Annotated[
        float, typer.Option(envvar="AGENT_ENV_REQUEST_TIMEOUT", help="Seconds for one answer of the model.", min=0.001)
    ] = 600.0,
    seed: Annotated[
        int, typer.Option(envvar="AGENT_ENV_SEED", help="Seeds the random numbers of every task's policy.")
    ] = 0,
    concurrency: Annotated[
        int, typer.Option(envvar="AGENT_ENV_CONCURRENCY", help="Tasks that run at once.", min=1)
    ] = 4,
    max_starting: flags.MaxStarting = None,
    sandbox: flags.Sandbox = "auto",
    build_arg: flags.BuildArg = None,
    build_network: flags.BuildNetwork = None,
    runtime: flags.RuntimeName = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write every task's record and messages, as JSON Lines.")
    ] = None,
    deploy_timeout: flags.DeployTimeout = Deadlines.deploy,
    load_timeout: flags.LoadTimeout = Deadlines.load,
    tool_timeout: flags.ToolTimeout = Deadlines.tool,
    verify_timeout: flags.VerifyTimeout = Deadlines.verify,
    teardown_timeout: flags.TeardownTimeout = Deadlines.teardown,
    turn_timeout: flags.TurnTimeout = None,
    log_format: flags.LogFormat = "text",
    log_level: flags.LogLevel = "warning",
) -> None:
    """Run tasks of a bundle and print how each ended.

    PASSED: every score is 1 or more. BELOW_ONE: some score is below. UNSCORED: no step scored. FAILED: the
    environment, a step, the policy or the model's endpoint failed. Exits with 1 only when a task FAILED.

    Prompts are played by a policy (`async def policy(play)`, as `python -m agent_env.training.nemo_gym play` takes
    it) or by a model; tasks without a prompt need neither.

    Examples:

        agent-env run bundles/gridsim-v1 --eval eval --policy greedy

        agent-env run bundles/shop --task refund --policy mine:clever --out refund.jsonl

        agent-env run bundles/shop --model my-model --base-url http://127.0.0.1:8000/v1 --concurrency 16
    """
    set_up_logging(log_level, log_format)
    if log_level == "warning":
        logging.getLogger("agent_env.episode").setLevel(logging.ERROR)  # the table says how each ended
    loaded = load_bundle(bundle)
    plans = plan_bundle(loaded)
    selection = choose(loaded, plans, tasks=task or (), evals=eval or ())
    say_warnings(chosen.plan for chosen in selection.tasks)
    ground = Ground(
        sandbox=sandbox,
        options=flags.sandbox_options(build_arg, build_network, runtime),
        places=concurrency,
        starting=max_starting,
        deadlines=Deadlines(
            deploy=deploy_timeout,
            load=load_timeout,
            tool=tool_timeout,
            verify=verify_timeout,
            teardown=teardown_timeout,
            turn=turn_timeout,
        ),
    )
    endpoint = _Endpoint(model, base_url, api_key_var, model_arg or (), max_turns, request_timeout)
    outcomes = run_to_end(_run(loaded, selection, ground, policy, endpoint, seed, out))
    if any(outcome.status is Status.FAILED for outcome in outcomes):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Endpoint:
    model: str | None
    base_url: str | None
    key_variable: str
    arguments: Sequence[str]
    max_turns: int
    timeout: float

    def player(self) -> ModelPlayer:
        if self.model is None or self.base_url is None:
            raise ConfigError("--model and --base-url go together: which model, and at which endpoint?")
        given = {key: _value(text) for key, text in key_values(self.arguments, "--model-arg").items()}
        key = os.environ.get(self.key_variable) or None
        model = ChatModel(self.model, self.base_url, key=key, arguments=given, timeout=self.timeout)
        return ModelPlayer(model, max_turns=self.max_turns)


async def _run(
    bundle: Bundle,
    selection: Selection,
    ground: Ground,
    policy: str | None,
    endpoint: _Endpoint,
    seed: int,
    out: Path | None,
) -> list[Outcome]:
    """Plays, and prints the table, also of what an interrupted run got done."""
    player = _player(selection, policy, endpoint, seed)
    outcomes: list[Outcome] = []
    started = time.perf_counter()
    used = ""
    try:
        with _log(out) as file:
            async with opened(ground, _envs(selection)) as runtime:
                used = runtime.provider.name
                tally = Tally(len(selection.tasks))
                with progress(tally) as advance:
                    await play_tasks(selection.tasks, runtime, player, _recorder(outcomes, file, advance))
    finally:
        if player is not None:
            await player.aclose()
        if outcomes:
            print(_report(selection, outcomes, used, time.perf_counter() - started), flush=True)
    return outcomes


def _player(selection: Selection, policy: str | None, endpoint: _Endpoint, seed: int) -> Player | None:
    prompted = next((task for task in selection.tasks if task.plan.prompts and not task.plan.unsupported), None)
    if policy is not None and endpoint.model is not None:
        raise ConfigError("--policy and --model: give one or the other")
    if policy is not None:
        if os.getcwd() not in sys.path:
            sys.path.insert(0, os.getcwd())  # for module:function, as `python -m` has it
        return PolicyPlayer(policy, seed=seed)
    if endpoint.model is not None or endpoint.base_url is not None:
        return endpoint.player()
    if prompted is not None:
        raise ConfigError(f"{prompted.plan.task.source} prompts an agent: give --policy, or --model and --base-url")
    return None


def _envs(selection: Selection) -> list[Env]:
    found: dict[str, Env] = {}
    for chosen in selection.tasks:
        if not chosen.plan.unsupported:
            found |= {env.digest: env for env in chosen.plan.envs}
    return list(found.values())


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
