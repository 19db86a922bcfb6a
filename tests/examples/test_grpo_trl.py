"""The TRL example on a CPU: its environment class against the real OpenEnv server, its rows and its arguments."""

from __future__ import annotations

import importlib.util
import inspect
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from stubs.processes import OPENENV, Command, command

from agent_env.examples.gridsim.battery import optimum
from agent_env.examples.gridsim.bundle import write_bundle
from agent_env.examples.gridsim.prices import synthetic_days

SCRIPT = Path(__file__).parents[2] / "examples" / "grpo_trl.py"

pytestmark = pytest.mark.integration  # its import takes seconds


@pytest.fixture(scope="module")
def trl_example() -> ModuleType:
    pytest.importorskip("openenv")
    spec = importlib.util.spec_from_file_location("grpo_trl", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def served(
    trl_example: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[ModuleType, Command]]:
    """The example pointed at a server of six days."""
    days = [day for day in synthetic_days() if day.split == "train"][:6]
    bundle = write_bundle(tmp_path / "gridsim-v1", days=days)
    with command(OPENENV, "serve", str(bundle), "--port", "0", "--sandbox", "process") as server:
        monkeypatch.setattr(trl_example, "URL", server.url())
        yield trl_example, server


def test_rollouts_side_by_side_earn_what_their_schedules_are_worth(served: tuple[ModuleType, Command]) -> None:
    example, _ = served
    rows = example.rows("train")
    assert [row["index"] for row in rows] == list(range(6))
    assert [message["role"] for message in rows[0]["prompt"]] == ["system", "user"]
    rollouts = [example.GridSim() for _ in rows[:3]]
    for rollout, row in zip(rollouts, rows, strict=False):
        rollout.reset(**row)
    for rollout in rollouts:
        prices = json.loads(rollout.get_prices())["prices"]
        assert "this one has 1" in rollout.submit_schedule([99])
        assert '"accepted": true' in rollout.submit_schedule(optimum(prices)[1])
    assert [rollout.get_reward() for rollout in rollouts] == [1.0, 1.0, 1.0]
    again = rollouts[0]
    again.reset(**rows[4])
    again.submit_schedule([0] * 24)
    assert again.get_reward() == 0.2
    again.reset(**rows[5])
    assert again.get_reward() == 0.0, "nothing submitted is the model's fault, and has a score"


def test_a_server_that_goes_away_gives_no_reward_and_the_model_a_sentence(served: tuple[ModuleType, Command]) -> None:
    example, server = served
    rollout = example.GridSim()
    rollout.reset(**example.rows("train")[0])
    server.kill()
    assert "The environment failed" in rollout.submit_schedule([0] * 24)
    assert rollout.get_reward() is None


def test_trl_would_find_the_envs_two_tools(trl_example: ModuleType) -> None:
    """TRL offers every public method of the class but `reset` and `get_reward`, and wants docstrings with types."""
    methods = dict(inspect.getmembers(trl_example.GridSim, predicate=inspect.isfunction))
    tools = {name for name in methods if not name.startswith("_")} - {"reset", "get_reward"}
    assert tools == {"get_prices", "submit_schedule"}
    assert "schedule: Positive charges" in inspect.getdoc(methods["submit_schedule"])  # type: ignore[operator]


def test_the_arguments_make_four_groups_of_eight(trl_example: ModuleType) -> None:
    arguments = trl_example.training_arguments(trl_example.parser().parse_args([]))
    per_step = arguments["per_device_train_batch_size"] * arguments["gradient_accumulation_steps"]
    assert (per_step, arguments["num_generations"]) == (32, 8)


@pytest.mark.trl
def test_the_arguments_are_ones_that_trl_knows(trl_example: ModuleType) -> None:
    trl = importlib.import_module("trl")
    arguments = trl_example.training_arguments(trl_example.parser().parse_args([]))
    assert trl.GRPOConfig(**arguments | {"bf16": False}).num_generations == 8
