"""The example configs hold the published keys in the published spelling, and point at what our commands write."""

from __future__ import annotations

import ast
import tomllib
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
ROWS = "gym-root/resources_servers/gridsim_v1/data"

PUBLISHED_TRAINING = {
    "max_steps": 40,
    "deployment.num_train_gpus": 1,
    "deployment.num_infer_gpus": 3,
    "model.name": "qwen3-4b-gridsim-sft",
    "trainer.optim.lr": 2e-5,
    "trainer.model.lora.rank": 32,
    "trainer.model.lora.alpha": 64.0,
    "orchestrator.batch_size": 32,
    "orchestrator.concurrency.max_inflight": 64,
    "orchestrator.renderer.name": "qwen3",
    "orchestrator.renderer.enable_thinking": False,
    "orchestrator.train.group_size": 8,
    "orchestrator.train.sampling.temperature": 1.1,
    "orchestrator.train.sampling.max_completion_tokens": 1024,
    "orchestrator.eval.interval": 20,
    "inference.vllm.tool_call_parser": "hermes",
    "rollout_transport.port": 5565,
}
PUBLISHED_SOURCE = {
    "env.taskset.id": "nemo-gym",
    "env.taskset.task.resources_url": "http://127.0.0.1:9100",
    "env.taskset.task.request_timeout": 600,
    "env.agent.harness.id": "null",
    "env.agent.max_turns": 4,
    "env.agent.runtime.type": "subprocess",
}
PUBLISHED_EVAL = {
    "model": "sft",
    "client.base_url": "http://127.0.0.1:8100/v1",
    "client.api_key_var": "VLLM_API_KEY",
    "sampling.temperature": 1.1,
    "sampling.max_tokens": 1024,
    "sampling.chat_template_kwargs": {"enable_thinking": False},
    "env.taskset.id": "nemo-gym",
    "env.taskset.dataset": f"{ROWS}/eval.jsonl",
    "env.taskset.task.resources_url": "http://127.0.0.1:9100",
    "env.agent.max_turns": 4,
    "env.agent.harness.id": "null",
    "env.agent.runtime.type": "subprocess",
}


def load(name: str) -> dict[str, Any]:
    return tomllib.loads((EXAMPLES / name).read_text("utf-8"))


def at(config: dict[str, Any], key: str) -> Any:
    place: Any = config
    for part in key.split("."):
        place = place[part]
    return place


@pytest.mark.parametrize(("key", "value"), PUBLISHED_TRAINING.items())
def test_the_training_config_has_the_published_key(key: str, value: object) -> None:
    assert at(load("prime_rl_gridsim.toml"), key) == value


@pytest.mark.parametrize(("split", "name", "file"), [("train", "gridsim", "train"), ("eval", "gridsim-eval", "eval")])
def test_each_source_plays_the_written_rows(split: str, name: str, file: str) -> None:
    sources = load("prime_rl_gridsim.toml")["orchestrator"][split]["source"]
    assert [source["name"] for source in sources] == [name]
    assert {key: at(sources[0], key) for key in PUBLISHED_SOURCE} == PUBLISHED_SOURCE
    assert at(sources[0], "env.taskset.dataset") == f"{ROWS}/{file}.jsonl"


def test_evals_sample_as_training_does_and_do_not_think() -> None:
    orchestrator = load("prime_rl_gridsim.toml")["orchestrator"]
    assert orchestrator["eval"]["sampling"] == orchestrator["train"]["sampling"]
    sampling = at(orchestrator["eval"]["source"][0], "env.agent.sampling")
    assert sampling == {"chat_template_kwargs": {"enable_thinking": False}}


def test_a_sequence_holds_all_turns_of_a_rollout() -> None:
    config = load("prime_rl_gridsim.toml")
    assert config["seq_len"] >= 4 * at(config, "orchestrator.train.sampling.max_completion_tokens") + 2048


@pytest.mark.parametrize(("key", "value"), PUBLISHED_EVAL.items())
def test_the_eval_config_has_the_published_key(key: str, value: object) -> None:
    assert at(load("eval.toml"), key) == value


def test_the_eval_config_waits_as_long_as_a_busy_server_may_take() -> None:
    assert at(load("eval.toml"), "env.taskset.task.request_timeout") == 600


def test_the_serve_example_serves_the_published_bundle_on_loopback() -> None:
    tree = ast.parse((EXAMPLES / "serve.py").read_text("utf-8"))
    calls = {ast.unparse(node.func): node for node in ast.walk(tree) if isinstance(node, ast.Call)}
    assert ast.unparse(calls["build_app"]) == "build_app('bundles/gridsim-v1', max_concurrent_envs=96)"
    assert ast.unparse(calls["uvicorn.run"]) == "uvicorn.run(app, host='127.0.0.1', port=8200)"
