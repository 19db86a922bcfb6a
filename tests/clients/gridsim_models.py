"""Models that play GridSim well, badly, and in every shape that tool calls can have."""

from __future__ import annotations

import json
from random import Random

from clients.scripted_model import Call, Conversation, Policy, Reply

from agent_env.examples.gridsim.policies import schedule_for

READ = Call("get_prices")


def player(policy: str) -> Policy:
    """Reads the prices, submits what the named GridSim policy submits, and says so."""

    def play(conversation: Conversation) -> Reply:
        if conversation.turn == 0:
            return Reply(calls=(READ,))
        if conversation.turn == 1:
            return Reply("I submit this.", (_submission(conversation.results[0], policy),))
        return Reply(f"Submitted: {conversation.results[-1]}")

    return play


optimal = player("optimal")


def talker(conversation: Conversation) -> Reply:
    """Calls no tool."""
    return Reply("I would buy in the morning and sell in the evening.")


def parallel(conversation: Conversation) -> Reply:
    """Several calls in one turn, which must run in their order: the last submission counts."""
    if conversation.turn == 0:
        return Reply(calls=(READ, Call.of("submit_schedule", {"schedule": [0] * 24}), READ))
    if conversation.turn == 1:
        best = _submission(conversation.results[0], "optimal")
        return Reply(calls=(Call.of("submit_schedule", {"schedule": [0] * 24}), best))
    return Reply("Both are submitted.")


def broken(conversation: Conversation) -> Reply:
    """Every call is refused by the env, for a different reason; nothing valid is submitted."""
    day = [0] * 24
    wrong = (day[1:], [-1, *day[1:]], [11, *day[1:]], [10] * 24, ["1", *day[1:]], [0.5, *day[1:]], "buy low")
    calls = tuple(Call.of("submit_schedule", {"schedule": schedule}) for schedule in wrong)
    turns = (calls[:4], (*calls[4:], Call("submit_schedule")))
    return Reply(calls=turns[conversation.turn]) if conversation.turn < len(turns) else Reply("Submitted.")


def not_json(conversation: Conversation) -> Reply:
    """Writes text where JSON belongs, then an array, then a tool that isn't there; then plays well."""
    wrong = (
        Call("submit_schedule", '{"schedule": [0, 0,'),
        Call("submit_schedule", json.dumps([0] * 24)),
        Call("sell_everything", '{"hour": 17}'),
    )
    if conversation.turn == 0:
        return Reply(calls=(*wrong, READ))
    if conversation.turn == 1:
        return Reply(calls=(_submission(conversation.results[3], "optimal"),))
    return Reply("It worked in the end.")


def never_json(conversation: Conversation) -> Reply:
    """Writes nothing but text that is not JSON."""
    return Reply(calls=(Call("submit_schedule", "schedule=0,0,0"),)) if conversation.turn == 0 else Reply("Done.")


def submit_at_once(conversation: Conversation) -> Reply:
    """Submits an idle day without a look at the prices, in its first turn."""
    return Reply(calls=(Call.of("submit_schedule", {"schedule": [0] * 24}),)) if conversation.turn == 0 else Reply("ok")


def _submission(prices: str, policy: str) -> Call:
    schedule = schedule_for(policy, json.loads(prices)["prices"], Random(0))
    return Call.of("submit_schedule", {"schedule": schedule})
