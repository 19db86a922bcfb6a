"""Flags that several commands have: one name, one help text, one environment variable each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from agent_env.commands.console import key_values

BundlePath = Annotated[
    str, typer.Argument(metavar="BUNDLE", help="The bundle's folder, or an installed bundle's name.")
]
Sandbox = Annotated[
    str,
    typer.Option(
        envvar="AGENT_ENV_SANDBOX", help="docker, process, or auto: docker where its daemon answers, else process."
    ),
]
BuildArg = Annotated[
    list[str] | None,
    typer.Option(
        "--build-arg",
        envvar="AGENT_ENV_BUILD_ARG",
        metavar="KEY=VALUE",
        help="For docker builds, such as BASE_IMAGE=...; repeatable.",
    ),
]
BuildNetwork = Annotated[
    str | None, typer.Option(envvar="AGENT_ENV_BUILD_NETWORK", help="Network of docker builds, such as host.")
]
RuntimeName = Annotated[
    str | None, typer.Option("--runtime", envvar="AGENT_ENV_RUNTIME", help="Docker runtime, such as runsc.")
]
SandboxImage = Annotated[
    str | None,
    typer.Option(
        envvar="AGENT_ENV_SANDBOX_IMAGE",
        help="Image of sandboxes without a server, with docker.",
        show_default="python:3.12-slim",
    ),
]
Isolation = Annotated[
    str | None,
    typer.Option(
        envvar="AGENT_ENV_ISOLATION",
        help="container: a sandbox for each episode; fork: quicker, several in one (docs/isolation.md).",
        show_default="as each env's agent-env.toml says, else container",
    ),
]
MaxStarting = Annotated[
    int | None,
    typer.Option(
        envvar="AGENT_ENV_MAX_STARTING", help="Sandboxes that start at once.", min=1, show_default="core count"
    ),
]
DeployTimeout = Annotated[
    float, typer.Option(envvar="AGENT_ENV_DEPLOY_TIMEOUT", help="Seconds from start to the env's first answer.")
]
LoadTimeout = Annotated[float, typer.Option(envvar="AGENT_ENV_LOAD_TIMEOUT", help="Seconds a loading step may take.")]
ToolTimeout = Annotated[float, typer.Option(envvar="AGENT_ENV_TOOL_TIMEOUT", help="Seconds a tool call may take.")]
VerifyTimeout = Annotated[float, typer.Option(envvar="AGENT_ENV_VERIFY_TIMEOUT", help="Seconds a grader may take.")]
TeardownTimeout = Annotated[
    float, typer.Option(envvar="AGENT_ENV_TEARDOWN_TIMEOUT", help="Seconds to remove an episode's sandboxes.")
]
TurnTimeout = Annotated[
    float | None,
    typer.Option(envvar="AGENT_ENV_TURN_TIMEOUT", help="Seconds a turn may take.", show_default="each prompt's own"),
]
LogLevel = Annotated[str, typer.Option(envvar="AGENT_ENV_LOG_LEVEL", help="debug, info, warning or error.")]
LogFormat = Annotated[str, typer.Option(envvar="AGENT_ENV_LOG_FORMAT", help="text or json.")]


def sandbox_options(
    build_arg: Sequence[str] | None,
    build_network: str | None,
    runtime: str | None,
    sandbox_image: str | None,
    isolation: str | None = None,
) -> dict[str, Any]:
    """What the flags mean to `choose_provider`. Raises ConfigError."""
    given = {
        "build_network": build_network,
        "runtime": runtime,
        "sandbox_image": sandbox_image,
        "isolation": isolation,
    }
    return {
        "build_args": key_values(build_arg or [], "--build-arg"),
        **{name: value for name, value in given.items() if value is not None},
    }
