"""Rules of our own that keep containers on our bridges from this machine's services.

Docker's rules guard what is forwarded, not what is addressed to the machine itself: without these an env on a bridge
reaches every service that listens on all addresses, or on the bridge's. One chain of ours, jumped to first from INPUT,
drops what comes in from our bridges and is not an answer. It needs root on the daemon's machine.
"""

from __future__ import annotations

import asyncio
import os
import shutil

from agent_env.sandbox.locks import file_lock
from agent_env.state import state_dir

BRIDGE_PREFIX = "aenv-"
CHAIN = "AGENT-ENV"

_RULES = (
    ("-i", f"{BRIDGE_PREFIX}+", "-m", "conntrack", "--ctstate", "ESTABLISHED,RELATED", "-j", "RETURN"),
    ("-i", f"{BRIDGE_PREFIX}+", "-j", "DROP"),
)
_WAIT = ("-w", "10")


def can_set_rules() -> bool:
    return os.geteuid() == 0 and shutil.which("iptables") is not None


async def close_bridges() -> bool:
    """Put the chain in place, for IPv4 and, where there is such, IPv6. False when it can't be done here."""
    if not can_set_rules():
        return False
    async with file_lock(state_dir() / "firewall.lock"):
        done = await _put("iptables")
        if shutil.which("ip6tables"):
            await _put("ip6tables")
    return done


async def open_bridges() -> bool:
    """Take the chain away (`gc`); is there none left?"""
    if not can_set_rules():
        return False
    async with file_lock(state_dir() / "firewall.lock"):
        for tool in ("iptables", "ip6tables"):
            if shutil.which(tool):
                await _run(tool, "-D", "INPUT", "-j", CHAIN)
                await _run(tool, "-F", CHAIN)
                await _run(tool, "-X", CHAIN)
        return not await _run("iptables", "-n", "-L", CHAIN)


async def _put(tool: str) -> bool:
    if not await _run(tool, "-n", "-L", CHAIN) and not await _run(tool, "-N", CHAIN):
        return False
    for rule in _RULES:
        if not await _run(tool, "-C", CHAIN, *rule) and not await _run(tool, "-A", CHAIN, *rule):
            return False
    return await _run(tool, "-C", "INPUT", "-j", CHAIN) or await _run(tool, "-I", "INPUT", "-j", CHAIN)


async def _run(tool: str, *arguments: str) -> bool:
    process = await asyncio.create_subprocess_exec(
        tool,
        *_WAIT,
        *arguments,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    return await process.wait() == 0
