"""`agent-env gc`: removes what of ours nobody uses any more."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Annotated

import typer

from agent_env.commands import flags
from agent_env.commands.console import set_up_logging


def gc(
    dry_run: Annotated[
        bool, typer.Option("--dry-run", envvar="AGENT_ENV_DRY_RUN", help="Only say what would be removed.")
    ] = False,
    log_level: flags.LogLevel = "warning",
) -> None:
    """Remove containers, networks, images and folders of sandboxes and graders that are ours and unused.

    What a live process owns stays, whichever command it runs. Servers remove what dead ones left when they start and
    every minute; this does it when none runs, and removes images as well: they are built again when next needed.

    Examples:

        agent-env gc --dry-run

        agent-env gc

        DOCKER_HOST=tcp://10.0.0.7:2375 agent-env gc
    """
    set_up_logging(log_level)
    from agent_env.commands.interrupts import run_to_end
    from agent_env.sandbox.garbage import collect

    found = run_to_end(collect(dry_run=dry_run))
    for item in found.items:
        typer.echo(f"{'would remove' if dry_run else 'removed'} {item.kind} {item.name}")
    for line in found.skipped:
        print(f"skipped {line}", file=sys.stderr)
    typer.echo(_summary([item.kind for item in found.items], dry_run))


def _summary(kinds: list[str], dry_run: bool) -> str:
    counts = Counter(kinds)
    if not counts:
        return "nothing to remove"
    listed = ", ".join(f"{count} {kind}{'s' if count > 1 else ''}" for kind, count in counts.items())
    return f"{'to remove' if dry_run else 'removed'}: {listed}"
