"""An env that answers: its card, and what was opened to it ahead of need."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from agent_env.bundle.model import Env
from agent_env.env.card import CARD_PATH, Card, NotReady, read_card, wait_ready
from agent_env.env.http import EnvHttp, HttpError
from agent_env.env.tools import ToolSession
from agent_env.errors import EpisodeFailure
from agent_env.sandbox.base import Sandbox

log = logging.getLogger(__name__)

ANSWERS_WITHIN = 1.0
"""seconds for the card of an env that has answered before and has had nothing to do since"""


@dataclass(frozen=True, slots=True)
class OpenEnv:
    http: EnvHttp
    card: Card
    session: ToolSession | None = None
    """an MCP session without a role, whose tools were listed when it was opened"""

    async def answers(self) -> bool:
        """Is it still there, and the same? Leaves a connection that the next request can use."""
        try:
            response = await self.http.request("GET", CARD_PATH, timeout=ANSWERS_WITHIN, idempotent=True)
            return read_card(response).name == self.card.name
        except (HttpError, NotReady, TimeoutError):
            return False

    async def aclose(self) -> None:
        await self.http.aclose()


async def open_env(sandbox: Sandbox, env: Env, *, timeout: float, ahead: bool = False) -> OpenEnv:
    """Wait for the env's card. Raises `EpisodeFailure`, as `wait_ready` does.

    Args:
        ahead: nobody waits for it, so also open an MCP session. The first takes a server many times as long as others.
    """
    http = EnvHttp(sandbox)
    try:
        card = await wait_ready(sandbox, timeout=timeout, expected_name=env.environment_name, http=http)
        return OpenEnv(http, card, await _session(http, card) if ahead else None)
    except BaseException:
        await http.aclose()
        raise


async def _session(http: EnvHttp, card: Card) -> ToolSession | None:
    try:
        return await ToolSession.open(http, card)
    except EpisodeFailure as failure:
        log.debug("no MCP session could be opened ahead, which the episode will find as well: %s", failure)
        return None
