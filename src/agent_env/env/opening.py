"""An env that answers: its card, and the connections to it."""

from __future__ import annotations

from dataclasses import dataclass

from agent_env.bundle.model import Env
from agent_env.env.card import CARD_PATH, Card, NotReady, read_card, wait_ready
from agent_env.env.http import EnvHttp, HttpError
from agent_env.sandbox.base import Sandbox

ANSWERS_WITHIN = 1.0
"""seconds for the card of an env that has answered before and has had nothing to do since"""


@dataclass(frozen=True, slots=True)
class OpenEnv:
    http: EnvHttp
    card: Card

    async def answers(self) -> bool:
        """Is it still there, and the same? Leaves a connection that the next request can use."""
        try:
            response = await self.http.request("GET", CARD_PATH, timeout=ANSWERS_WITHIN, idempotent=True)
            return read_card(response).name == self.card.name
        except (HttpError, NotReady, TimeoutError):
            return False

    async def aclose(self) -> None:
        await self.http.aclose()


async def open_env(sandbox: Sandbox, env: Env, *, timeout: float) -> OpenEnv:
    """Wait for the env's card. Raises `EpisodeFailure`, as `wait_ready` does."""
    http = EnvHttp(sandbox)
    try:
        card = await wait_ready(sandbox, timeout=timeout, expected_name=env.environment_name, http=http)
    except BaseException:
        await http.aclose()
        raise
    return OpenEnv(http, card)
