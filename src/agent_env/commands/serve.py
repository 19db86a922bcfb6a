"""`agent-env serve`: a bundle as an OpenEnv server under uvicorn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agent_env.commands import flags
from agent_env.commands.console import set_up_logging
from agent_env.limits import Deadlines
from agent_env.tokens import read_token, refuse_strangers


def serve(
    bundle: flags.BundlePath,
    host: Annotated[
        str, typer.Option(envvar="AGENT_ENV_HOST", help="Address to listen on; others than loopback need --token-file.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="AGENT_ENV_PORT", help="Port; 0 takes a free one and prints it.")] = 8200,
    max_concurrent_envs: Annotated[
        int, typer.Option(envvar="AGENT_ENV_MAX_CONCURRENT_ENVS", help="Episodes that run at once.", min=1)
    ] = 8,
    max_starting: flags.MaxStarting = None,
    queue: Annotated[
        int, typer.Option(envvar="AGENT_ENV_QUEUE", help="Resets that may wait for a place, in order.", min=0)
    ] = 1024,
    sandbox: flags.Sandbox = "auto",
    build_arg: flags.BuildArg = None,
    build_network: flags.BuildNetwork = None,
    sandbox_image: flags.SandboxImage = None,
    runtime: flags.RuntimeName = None,
    isolation: flags.Isolation = None,
    warm: Annotated[
        str,
        typer.Option(
            envvar="AGENT_ENV_WARM",
            help="Sandboxes of each env kept ready: a number, or auto: as many as were of use of late.",
        ),
    ] = "auto",
    reward: Annotated[
        str | None,
        typer.Option(
            envvar="AGENT_ENV_REWARD",
            metavar="STEP",
            help="Step whose score is the reward.",
            show_default="the task's single scoring step",
        ),
    ] = None,
    deploy_timeout: flags.DeployTimeout = Deadlines.deploy,
    load_timeout: flags.LoadTimeout = Deadlines.load,
    tool_timeout: flags.ToolTimeout = Deadlines.tool,
    verify_timeout: flags.VerifyTimeout = Deadlines.verify,
    teardown_timeout: flags.TeardownTimeout = Deadlines.teardown,
    turn_timeout: flags.TurnTimeout = None,
    episode_log: Annotated[
        Path | None,
        typer.Option(
            envvar="AGENT_ENV_EPISODE_LOG",
            metavar="FILE",
            help="Keep each episode as a line of JSON; rotated. See agent-env episodes.",
        ),
    ] = None,
    token_file: Annotated[
        str | None,
        typer.Option(
            envvar="AGENT_ENV_TOKEN_FILE", metavar="FILE", help="File with the bearer token that clients must send."
        ),
    ] = None,
    log_format: flags.LogFormat = "text",
    log_level: flags.LogLevel = "info",
) -> None:
    """Serve every task of a bundle as an OpenEnv environment.

    Builds what the envs need, then prints the URL. Ctrl-C abandons the running episodes and removes their sandboxes.

    Examples:

      agent-env serve bundles/gridsim-v1

      agent-env serve bundles/gridsim-v1 --port 0 --sandbox process --max-concurrent-envs 96

      agent-env serve bundles/gridsim-v1 --isolation fork --warm 4

      agent-env serve bundles/gridsim-v1 --sandbox docker --build-arg BASE_IMAGE=python:3.13-slim
    """
    set_up_logging(log_level, log_format)
    token = read_token(token_file)
    refuse_strangers(host, token)
    from agent_env.commands.http import bind, run_app

    sock = bind(host, port)
    from agent_env.openenv import build_app

    options = flags.sandbox_options(build_arg, build_network, runtime, sandbox_image)
    try:
        app = build_app(
            bundle,
            reward=reward,
            sandbox=sandbox,
            max_concurrent_envs=max_concurrent_envs,
            max_starting=max_starting,
            queue=queue,
            deploy_timeout=deploy_timeout,
            load_timeout=load_timeout,
            tool_timeout=tool_timeout,
            verify_timeout=verify_timeout,
            teardown_timeout=teardown_timeout,
            turn_timeout=turn_timeout,
            isolation=isolation,
            warm=warm,
            sandbox_options=options,
            episode_log=episode_log,
            token=token,
        )
        run_app(app, sock, f"serving {bundle}")
    finally:
        sock.close()
