"""`agent-env check`: what of a bundle would fail in training."""

from __future__ import annotations

import logging
import sys
from typing import TYPE_CHECKING, Annotated

import orjson
import typer

from agent_env.commands import flags
from agent_env.commands.console import set_up_logging
from agent_env.limits import Deadlines

if TYPE_CHECKING:
    from agent_env.commands.checking import Report


def check(
    bundle: flags.BundlePath,
    json: Annotated[
        bool, typer.Option("--json", envvar="AGENT_ENV_JSON", help="Print the report as one JSON object.")
    ] = False,
    concurrency: Annotated[
        int, typer.Option(envvar="AGENT_ENV_CONCURRENCY", help="Episodes that shall run at once.", min=1)
    ] = 8,
    all: Annotated[
        bool, typer.Option("--all", envvar="AGENT_ENV_ALL", help="Play every task, not one of each toolset.")
    ] = False,
    reward: Annotated[
        str | None, typer.Option(envvar="AGENT_ENV_REWARD", metavar="STEP", help="Step whose score is the reward.")
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(
            envvar="AGENT_ENV_POLICY",
            metavar="P",
            help="Play with it, as agent-env run does.",
            show_default="call each tool once with made-up arguments",
        ),
    ] = None,
    max_starting: flags.MaxStarting = None,
    sandbox: flags.Sandbox = "auto",
    build_arg: flags.BuildArg = None,
    build_network: flags.BuildNetwork = None,
    sandbox_image: flags.SandboxImage = None,
    runtime: flags.RuntimeName = None,
    isolation: flags.Isolation = None,
    deploy_timeout: flags.DeployTimeout = Deadlines.deploy,
    load_timeout: flags.LoadTimeout = Deadlines.load,
    tool_timeout: flags.ToolTimeout = Deadlines.tool,
    verify_timeout: flags.VerifyTimeout = Deadlines.verify,
    log_format: flags.LogFormat = "text",
    log_level: flags.LogLevel = "error",
) -> None:
    """Say what of a bundle would fail in training, each finding with its place and what to do.

    Reads it; looks at this machine for the asked concurrency; builds every env; plays one task of each toolset and
    grades it twice. Exits with 1 when something would fail.

    Examples:

        agent-env check bundles/gridsim-v1

        agent-env check bundles/gridsim-v1 --concurrency 96 --json

        agent-env check bundles/shop --all --policy mine:clever --sandbox docker
    """
    set_up_logging(log_level, log_format)
    if log_level == "error":
        logging.getLogger("agent_env.episode").setLevel(logging.CRITICAL)  # the report says it
    from agent_env.commands.checking import Check, check_bundle
    from agent_env.commands.episodes import Ground
    from agent_env.commands.interrupts import run_to_end
    from agent_env.commands.players import policy_player

    ground = Ground(
        sandbox=sandbox,
        options=flags.sandbox_options(build_arg, build_network, runtime, sandbox_image, isolation),
        places=concurrency,
        starting=max_starting,
        deadlines=Deadlines(deploy=deploy_timeout, load=load_timeout, tool=tool_timeout, verify=verify_timeout),
    )
    asked = Check(bundle, ground, reward, all)
    player = None if policy is None else policy_player(policy)
    report = run_to_end(check_bundle(asked, player, _say))
    if json:
        sys.stdout.buffer.write(orjson.dumps(report.as_json(), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
        sys.stdout.flush()
    else:
        typer.echo(as_text(report))
    if not report.ok:
        raise typer.Exit(1)


def as_text(report: Report) -> str:
    """The report for people: what is right, then each finding with its remedy below it."""
    lines = [f"ok       {line}" for line in report.done]
    lines += [f"note     {line}" for line in report.notes]
    for finding in report.findings:
        more = f" (and {finding.more:,} more alike)" if finding.more else ""
        lines.append(f"{finding.level:<8} {finding.where}: {finding.problem}{more}")
        lines.append(f"         -> {finding.remedy}")
    counts = [(level, sum(finding.level == level for finding in report.findings)) for level in ("error", "warning")]
    said = ", ".join(f"{count} {level}{'s' if count > 1 else ''}" for level, count in counts if count)
    verdict = "ready for training" if report.ok else "not ready for training"
    lines.append(f"{report.bundle}: {verdict}{f': {said}' if said else ''}")
    return "\n".join(lines)


def _say(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
