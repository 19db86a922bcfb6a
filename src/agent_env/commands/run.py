"""`agent-env run`: plays a bundle's tasks here, with a policy or a model, and says how each ended."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated

import typer

from agent_env.commands import flags
from agent_env.commands.console import set_up_logging
from agent_env.limits import Deadlines
from agent_env.policies import KNOWN


def run(
    bundle: flags.BundlePath,
    task: Annotated[
        list[str] | None,
        typer.Option(
            envvar="AGENT_ENV_TASK", metavar="T", help="Run this task; repeatable. Default: every eval's, or all."
        ),
    ] = None,
    eval: Annotated[
        list[str] | None,
        typer.Option(envvar="AGENT_ENV_EVAL", metavar="E", help="Run the tasks of this eval; repeatable."),
    ] = None,
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
        typer.Option(
            "--model-arg",
            envvar="AGENT_ENV_MODEL_ARG",
            metavar="KEY=VALUE",
            help="Field of each request, such as temperature=0.7; repeatable.",
        ),
    ] = None,
    max_turns: Annotated[
        int, typer.Option(envvar="AGENT_ENV_MAX_TURNS", help="Model turns a prompt, where the task sets none.", min=1)
    ] = 100,
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
    sandbox_image: flags.SandboxImage = None,
    runtime: flags.RuntimeName = None,
    isolation: flags.Isolation = None,
    out: Annotated[
        Path | None,
        typer.Option(
            envvar="AGENT_ENV_OUT", metavar="FILE", help="Write every task's record and messages, as JSON Lines."
        ),
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
    from agent_env.commands.interrupts import run_to_end
    from agent_env.commands.running import Endpoint, Ground, Run, run_bundle

    ground = Ground(
        sandbox=sandbox,
        options=flags.sandbox_options(build_arg, build_network, runtime, sandbox_image, isolation),
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
    endpoint = Endpoint(model, base_url, api_key_var, tuple(model_arg or ()), max_turns, request_timeout)
    asked = Run(bundle, tuple(task or ()), tuple(eval or ()), ground, policy, endpoint, seed, out)
    if not run_to_end(run_bundle(asked)):
        raise typer.Exit(1)
