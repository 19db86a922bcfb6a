"""The commands that the written folder's README names, run with nemo-gym 0.7.0 on GridSim; only the model is a script.

Nothing in the folder is edited. Added to each command: where its virtual environments are, and a free port for Gym's
head server.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from clients import gridsim_models as models
from clients.chain import Chain
from clients.gym_servers import Place, free_port
from clients.nemo_gym_venv import NemoGym
from clients.scripted_model import ScriptedModel
from clients.vf_eval import user_prompt

from agent_env.examples.gridsim.battery import offline_score

pytestmark = [pytest.mark.nemo_gym, pytest.mark.integration, pytest.mark.timeout(600)]

Json = Any
NEEDED = (
    "resources_servers/gridsim_v1",
    "responses_api_agents/simple_agent",
    "responses_api_models/vllm_model",
    "environment_servers/legacy_agent",
)


@dataclass(frozen=True)
class Readme:
    """The `gym` commands of a written folder, for a model at `model_url`."""

    folder: Path
    model_url: str
    place: Place
    head_port: int

    def command(self, start: str, *more: str) -> list[str]:
        """The one that begins with `start`, without the word `gym`."""
        text = (self.folder / "README.md").read_text()
        (line,) = [line for line in re.findall(r"^gym (.*)$", text, re.MULTILINE) if line.startswith(start)]
        line = line.replace("http://127.0.0.1:8000/v1", self.model_url).replace("MODEL", "scripted")
        return [*shlex.split(line), *more]

    @property
    def local(self) -> list[str]:
        """What a command that starts servers, or speaks to them, is told besides."""
        head = ["++head_server.host=127.0.0.1", f"++head_server.port={self.head_port}"]
        return [*self.place.offline(*NEEDED), *head]


@pytest.fixture(scope="module")
def model() -> Iterator[ScriptedModel]:
    with ScriptedModel(default=models.optimal).serving() as model:
        yield model


@pytest.fixture(scope="module")
def readme(
    nemo_gym: NemoGym, gridsim_chain: Chain, model: ScriptedModel, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Readme]:
    with Place.made(nemo_gym, tmp_path_factory.mktemp("cli") / "nemo-gym") as place:
        yield Readme(gridsim_chain.folder, model.url, place, free_port())


@pytest.fixture(scope="module")
def started(readme: Readme) -> Iterator[Place]:
    """NeMo Gym's servers, ready."""
    with ExitStack() as stack:
        stack.enter_context(readme.place.started(*readme.command("env start", *readme.local)[2:]))
        yield readme.place


def test_ten_rollouts_of_the_simple_agent_earn_what_their_policy_earns(
    readme: Readme, started: Place, gridsim_chain: Chain, model: ScriptedModel, say: Callable[[str], None]
) -> None:
    rows = gridsim_chain.rows("eval")[:10]
    policies = [models.optimal] * 4 + [models.player("greedy")] * 4 + [models.player("idle"), models.broken]
    model.policies = {user_prompt(row): policy for row, policy in zip(rows, policies, strict=True)}
    said = started.gym(*readme.command("eval run --no-serve", *readme.local))
    model.policies = {}
    by_prompt = {user_prompt(rollout): rollout for rollout in lines(started.root / "rollouts.jsonl")}
    rollouts = [by_prompt[user_prompt(row)] for row in rows]
    rewards = [rollout["reward"] for rollout in rollouts]
    say(f"gym eval run: {', '.join(f'{reward:.3f}' for reward in rewards)}")
    assert rewards == [earned(rollout) for rollout in rollouts]
    assert rewards[:4] == [1.0] * 4
    assert rewards[8:] == [pytest.approx(0.2), 0.0]
    assert not any(rollout["mask_sample"] for rollout in rollouts)
    assert lines(started.root / "rollouts_failures.jsonl") == []
    assert [rollout["response"]["output"][-1]["type"] for rollout in rollouts] == ["message"] * 10
    (metrics,) = json.loads((started.root / "rollouts_aggregate_metrics.json").read_text())
    assert metrics["agent_metrics"]["mean/reward"] == pytest.approx(sum(rewards) / 10)
    assert '"mean/reward"' in said


def test_collated_rows_are_routed_without_naming_the_agent(readme: Readme, started: Place) -> None:
    started.gym(*readme.command("dataset collate"))
    collated = started.root / "collated"
    assert (len(lines(collated / "train.jsonl")), len(lines(collated / "validation.jsonl"))) == (2000, 200)
    assert "agent_ref" not in lines(collated / "train.jsonl")[0]
    wanted = ["--input", str(collated / "train.jsonl"), "--output", "collated.jsonl", "--limit", "2"]
    started.gym("eval", "run", "--no-serve", *wanted, *readme.local)
    assert [rollout["reward"] for rollout in lines(started.root / "collated.jsonl")] == [1.0, 1.0]


def test_the_folder_has_all_that_gym_env_test_asks_for_once_its_examples_were_played(
    readme: Readme, started: Place, gridsim_chain: Chain
) -> None:
    root = gridsim_chain.folder.parents[1]
    where = ["--search-dir", str(root), "--resources-server", "gridsim_v1"]
    examples = ["--mode", "example_validation", "--output-dir", str(started.root / "examples")]
    started.gym("dataset", "collate", *where, *examples, cwd=root)
    played = ["--input", str(gridsim_chain.data("example")), "--output", str(gridsim_chain.data("example_rollouts"))]
    started.gym("eval", "run", "--no-serve", "--agent", "gridsim_v1_simple_agent", *played, *readme.local)
    said = started.gym("env", "test", *where, "+should_validate_data=true", *readme.local)
    assert "6 passed" in said
    assert "has been successfully validated" in said


def test_the_config_is_valid_in_both_flavours(readme: Readme) -> None:
    command = readme.command("env validate")
    said = readme.place.gym(*command)
    assert "Config is valid" in said
    assert "DEPRECATED: agents without an environment server" in said
    flavour = readme.place.gym(*command[:-1], "gridsim_v1/gridsim_v1_v07")
    assert "Config is valid" in flavour
    assert "DEPRECATED" not in flavour


def test_one_command_starts_everything_and_plays(readme: Readme, model: ScriptedModel) -> None:
    assert model.policies == {}
    beside = replace(readme, head_port=free_port())
    said = readme.place.gym(*readme.command("eval run --search-dir", *beside.local, "--output", "one.jsonl"))
    assert "DEPRECATED" not in said
    assert [rollout["reward"] for rollout in lines(readme.place.root / "one.jsonl")] == [1.0] * 10


def lines(file: Path) -> list[dict[str, Json]]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def earned(rollout: dict[str, Json]) -> float:
    """The score of the last valid submission, computed from what the rollout itself shows."""
    output = rollout["response"]["output"]
    answers = {item["call_id"]: item["output"] for item in output if item["type"] == "function_call_output"}
    calls = [item for item in output if item["type"] == "function_call"]
    prices = [json.loads(answers[call["call_id"]])["prices"] for call in calls if call["name"] == "get_prices"]
    valid = [
        json.loads(call["arguments"])["schedule"]
        for call in calls
        if call["name"] == "submit_schedule" and '"accepted"' in answers[call["call_id"]]
    ]
    return offline_score(prices[0], valid[-1]) if valid else 0.0
