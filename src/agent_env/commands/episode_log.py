"""`agent-env episodes`: reads what servers kept with `--episode-log`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from agent_env.commands import flags
from agent_env.commands.console import fail, set_up_logging
from agent_env.errors import FailureKind
from agent_env.observe.record import Fate


def episodes(
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Episode logs; each with those rotated out of it.")
    ],
    task: Annotated[
        list[str] | None,
        typer.Option(
            envvar="AGENT_ENV_TASK", metavar="T", help="Sessions of this task, or of tasks like *; repeatable."
        ),
    ] = None,
    kind: Annotated[
        list[str] | None,
        typer.Option(envvar="AGENT_ENV_KIND", metavar="K", help="Sessions that failed for this kind; repeatable."),
    ] = None,
    fate: Annotated[
        list[str] | None,
        typer.Option(
            envvar="AGENT_ENV_FATE",
            metavar="F",
            help="Sessions counted as verified, masked, reclaimed, ...; repeatable.",
        ),
    ] = None,
    reward_below: Annotated[
        float | None, typer.Option(envvar="AGENT_ENV_REWARD_BELOW", metavar="X", help="Sessions with a reward below.")
    ] = None,
    reward_above: Annotated[
        float | None, typer.Option(envvar="AGENT_ENV_REWARD_ABOVE", metavar="X", help="Sessions with a reward above.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(
            envvar="AGENT_ENV_SINCE",
            metavar="T",
            help="Sessions from then on: 2026-11-30T20:00 (UTC), or 90m, 2h, 1d ago.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option(envvar="AGENT_ENV_LIMIT", metavar="N", help="The last N of them; 0: all.", min=0)
    ] = 50,
    json: Annotated[
        bool, typer.Option("--json", envvar="AGENT_ENV_JSON", help="Print their lines of the log, and nothing else.")
    ] = False,
    show: Annotated[
        str | None,
        typer.Option(
            envvar="AGENT_ENV_SHOW", metavar="SESSION", help="One session, by its id or its episode's, as a transcript."
        ),
    ] = None,
    regrade: Annotated[
        str | None,
        typer.Option(
            envvar="AGENT_ENV_REGRADE",
            metavar="BUNDLE",
            help="Score them again with this bundle's graders, and compare.",
        ),
    ] = None,
    replay: Annotated[
        bool,
        typer.Option(
            "--replay",
            envvar="AGENT_ENV_REPLAY",
            help="With --regrade: play their calls again in fresh envs, and grade those.",
        ),
    ] = False,
    concurrency: Annotated[
        int, typer.Option(envvar="AGENT_ENV_CONCURRENCY", help="Sessions that are played again at once.", min=1)
    ] = 4,
    sandbox: flags.Sandbox = "auto",
    build_arg: flags.BuildArg = None,
    build_network: flags.BuildNetwork = None,
    sandbox_image: flags.SandboxImage = None,
    runtime: flags.RuntimeName = None,
    isolation: flags.Isolation = None,
    log_level: flags.LogLevel = "warning",
) -> None:
    """Read episode logs: a table with totals, one session, or a check that the graders still give the same scores.

    The totals are those of the server's own summary line. With --regrade the exit code is 1 when a score differs;
    sessions that can't be scored again are listed with the reason.

    Examples:

        agent-env episodes episodes.jsonl --fate masked --since 2h

        agent-env episodes episodes.jsonl --show 1f0c9a2b

        agent-env episodes episodes.jsonl --reward-below 0.1 --limit 0 --json

        agent-env episodes episodes.jsonl --regrade bundles/gridsim-v1 --replay
    """
    set_up_logging(log_level)
    from agent_env.commands import logtable
    from agent_env.observe.reading import read

    logtable.check_names("--kind", kind or (), FailureKind)
    logtable.check_names("--fate", fate or (), Fate)
    if replay and regrade is None:
        fail("--replay plays again to grade again: give --regrade BUNDLE too")
    wanted = logtable.Wanted(
        tuple(task or ()),
        tuple(kind or ()),
        tuple(fate or ()),
        reward_below,
        reward_above,
        since=None if since is None else logtable.since(since),
    )
    log = read(files)
    for gap in logtable.gaps(log):
        print(f"note: {gap}", file=sys.stderr)
    if show is not None:
        from agent_env.commands.transcript import show_session

        print(show_session(log, show, json=json))
        return
    chosen = [entry for entry in log.entries if wanted(entry)]
    shown = chosen[-limit:] if limit else chosen
    if regrade is not None:
        from agent_env.commands.interrupts import run_to_end
        from agent_env.commands.regrading import regrade_entries
        from agent_env.commands.running import Ground

        options = flags.sandbox_options(build_arg, build_network, runtime, sandbox_image, isolation)
        ground = Ground(sandbox=sandbox, options=options, places=concurrency)
        if not run_to_end(regrade_entries(regrade, shown, ground if replay else None)):
            raise typer.Exit(1)
    elif json:
        for entry in shown:
            sys.stdout.write(entry.raw())
    else:
        if shown:
            print(logtable.table(shown))
        if len(shown) < len(chosen):
            print(f"({len(chosen) - len(shown)} earlier ones are not listed: --limit)")
        nothing = "no session of that kind" if log.entries else "no session yet"
        print("\n".join(logtable.totals(log, chosen) or [nothing]))
