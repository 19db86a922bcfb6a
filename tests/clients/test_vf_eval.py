"""The published command of verifiers 0.4.0 plays GridSim through both servers; only the model is a script."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from clients import gridsim_models as models
from clients.chain import Chain
from clients.scripted_model import Policy, ScriptedModel
from clients.verifiers_venv import VerifiersClient
from clients.vf_eval import Run, published_config, run_vf_eval, user_prompt

from agent_env.bundle import load_bundle
from agent_env.episode import EpisodeSpec, Runtime
from agent_env.examples.gridsim.battery import offline_score
from agent_env.sandbox import provider

pytestmark = [pytest.mark.verifiers, pytest.mark.integration, pytest.mark.timeout(400)]


def play(client: VerifiersClient, chain: Chain, folder: Path, policies: Sequence[Policy], *flags: str) -> Run:
    """Play the first eval rows, each by its policy, with the published config."""
    by_prompt = {user_prompt(row): policy for row, policy in zip(chain.rows("eval"), policies, strict=False)}
    assert len(by_prompt) == len(policies)
    with ScriptedModel(by_prompt).serving() as model:
        config = published_config(folder, model.url, chain.url, chain.data("eval"))
        run = run_vf_eval(client, config, "-n", str(len(policies)), *flags)
    assert len(run.rollouts) == len(policies)
    return run


def test_eight_rows_played_well_earn_what_the_episode_api_scores(
    verifiers_client: VerifiersClient,
    gridsim: Path,
    gridsim_chain: Chain,
    tmp_path: Path,
    say: Callable[[str], None],
) -> None:
    run = play(verifiers_client, gridsim_chain, tmp_path, [models.optimal] * 4 + [models.player("greedy")] * 4)
    assert [rollout.errors for rollout in run.rollouts] == [()] * 8
    assert all(rollout.ok for rollout in run.rollouts)
    rewards = [rollout.reward for rollout in run.rollouts]
    assert rewards[:4] == [1.0] * 4

    scores = asyncio.run(episode_scores(gridsim, {r.row["task_id"]: r.calls for r in run.rollouts}))
    say(f"vf-eval in {run.seconds:.1f} s: {run.headline}")
    say(f"mean reward of vf-eval {run.mean!r}, of the Episode API {sum(scores.values()) / len(scores)!r}")
    assert rewards == list(scores.values())
    assert rewards == [offline(rollout.tool_texts[0], rollout.calls[1][1]) for rollout in run.rollouts]


def test_what_the_model_does_wrong_is_scored_and_never_masked(
    verifiers_client: VerifiersClient, gridsim_chain: Chain, tmp_path: Path
) -> None:
    policies = [models.broken, models.talker, models.parallel, models.not_json, models.never_json]
    run = play(verifiers_client, gridsim_chain, tmp_path, policies)
    assert [rollout.errors for rollout in run.rollouts] == [()] * 5
    assert [rollout.info["mask_sample"] for rollout in run.rollouts] == [False] * 5
    assert [rollout.reward for rollout in run.rollouts] == [0.0, 0.0, 1.0, 1.0, 0.0]

    broken, talker, parallel, not_json, never_json = run.rollouts
    assert len(broken.tool_texts) == 8
    assert "this one has 23" in broken.tool_texts[0]
    assert "hour 0" in broken.tool_texts[1]
    assert talker.tool_texts == ()
    assert [name for name, _ in parallel.calls][:3] == ["get_prices", "submit_schedule", "get_prices"]
    assert parallel.tool_texts[0] == parallel.tool_texts[2]
    assert json.loads(parallel.tool_texts[1]) == {"accepted": True, "profit": 0.0}
    assert not_json.tool_texts[0].startswith("error: invalid JSON in tool arguments")
    assert not_json.tool_texts[1].startswith("error: tool arguments must be a JSON object")
    assert not_json.tool_texts[2].startswith("error: unknown tool")
    assert never_json.tool_texts[0].startswith("error: invalid JSON in tool arguments")


def test_a_cap_of_one_turn_ends_a_rollout_with_the_score_it_has(
    verifiers_client: VerifiersClient, gridsim_chain: Chain, tmp_path: Path
) -> None:
    policies = [models.optimal, models.submit_at_once]
    run = play(verifiers_client, gridsim_chain, tmp_path, policies, "--env.agent.max-turns", "1")
    assert [rollout.errors for rollout in run.rollouts] == [(), ()]
    assert [rollout.stop for rollout in run.rollouts] == ["max_turns", "max_turns"]
    assert [rollout.reward for rollout in run.rollouts] == [0.0, 0.2]
    assert [rollout.info["mask_sample"] for rollout in run.rollouts] == [False, False]


def offline(prices: str, arguments: str) -> float:
    return offline_score(json.loads(prices)["prices"], json.loads(arguments)["schedule"])


async def episode_scores(folder: Path, calls: Mapping[str, Sequence[tuple[str, str]]]) -> dict[str, Any]:
    """The Episode API's score by task name, for the same calls."""
    bundle = load_bundle(folder)
    runtime = Runtime(provider("process"))
    scores = {}
    try:
        await runtime.prepare(bundle.envs.values())
        for task, made in calls.items():
            episode = await EpisodeSpec.from_task(bundle.tasks[task]).start(runtime=runtime)
            turn = await episode.next_turn()
            assert turn is not None
            for name, arguments in made:
                await turn.call(name, json.loads(arguments))
            await turn.end("done")
            (scores[task],) = (await episode.result()).values()
    finally:
        await runtime.aclose()
    return scores
