"""`agent-env serve`: a bundle as an OpenEnv server under uvicorn."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agent_env.commands import flags
from agent_env.commands.console import fail, key_values, set_up_logging
from agent_env.limits import Deadlines


def serve(
    bundle: Annotated[Path, typer.Argument(help="The bundle's folder.", show_default=False)],
    host: Annotated[str, typer.Option(envvar="AGENT_ENV_HOST", help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(envvar="AGENT_ENV_PORT", help="Port; 0 takes a free one and prints it.")] = 8200,
    max_concurrent_envs: Annotated[
        int, typer.Option(envvar="AGENT_ENV_MAX_CONCURRENT_ENVS", help="Episodes that run at once.", min=1)
    ] = 8,
    max_starting: Annotated[
        int | None,
        typer.Option(
            envvar="AGENT_ENV_MAX_STARTING", help="Sandboxes that start at once.", min=1, show_default="core count"
        ),
    ] = None,
    queue: Annotated[
        int, typer.Option(envvar="AGENT_ENV_QUEUE", help="Resets that may wait for a place, in order.", min=0)
    ] = 1024,
    sandbox: Annotated[
        str,
        typer.Option(
            envvar="AGENT_ENV_SANDBOX", help="docker, process, or auto: docker where its daemon answers, else process."
        ),
    ] = "auto",
    build_arg: Annotated[
        list[str] | None,
        typer.Option("--build-arg", metavar="KEY=VALUE", help="For docker builds, such as BASE_IMAGE=...; repeatable."),
    ] = None,
    build_network: Annotated[
        str | None, typer.Option(envvar="AGENT_ENV_BUILD_NETWORK", help="Network of docker builds, such as host.")
    ] = None,
    runtime: Annotated[
        str | None, typer.Option(envvar="AGENT_ENV_RUNTIME", help="Docker runtime, such as runsc.")
    ] = None,
    sandbox_image: flags.SandboxImage = None,
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
            help="Step whose score is the reward.",
            show_default="the task's single scoring step",
        ),
    ] = None,
    deploy_timeout: Annotated[
        float, typer.Option(envvar="AGENT_ENV_DEPLOY_TIMEOUT", help="Seconds from start to the env's first answer.")
    ] = Deadlines.deploy,
    load_timeout: Annotated[
        float, typer.Option(envvar="AGENT_ENV_LOAD_TIMEOUT", help="Seconds a loading step may take.")
    ] = Deadlines.load,
    tool_timeout: Annotated[
        float, typer.Option(envvar="AGENT_ENV_TOOL_TIMEOUT", help="Seconds a tool call may take.")
    ] = Deadlines.tool,
    verify_timeout: Annotated[
        float, typer.Option(envvar="AGENT_ENV_VERIFY_TIMEOUT", help="Seconds a grader may take.")
    ] = Deadlines.verify,
    teardown_timeout: Annotated[
        float, typer.Option(envvar="AGENT_ENV_TEARDOWN_TIMEOUT", help="Seconds to remove an episode's sandboxes.")
    ] = Deadlines.teardown,
    turn_timeout: Annotated[
        float | None,
        typer.Option(
            envvar="AGENT_ENV_TURN_TIMEOUT", help="Seconds a turn may take.", show_default="each prompt's own"
        ),
    ] = None,
    log_format: Annotated[str, typer.Option(envvar="AGENT_ENV_LOG_FORMAT", help="text or json.")] = "text",
    log_level: Annotated[
        str, typer.Option(envvar="AGENT_ENV_LOG_LEVEL", help="debug, info, warning or error.")
    ] = "info",
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
    if host not in ("127.0.0.1", "localhost", "::1"):
        fail(f"--host {host}: this server checks no token, so it listens on loopback only (127.0.0.1, localhost, ::1)")
    from agent_env.commands.http import bind, run_app

    sock = bind(host, port)
    from agent_env.openenv import build_app

    options: dict[str, object] = {"build_args": key_values(build_arg or [], "--build-arg")}
    if build_network is not None:
        options["build_network"] = build_network
    if runtime is not None:
        options["runtime"] = runtime
    if sandbox_image is not None:
        options["sandbox_image"] = sandbox_image
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
        )
        run_app(app, sock, f"serving {bundle}")
    finally:
        sock.close()
