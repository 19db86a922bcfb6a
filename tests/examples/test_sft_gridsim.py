"""The warm start: its rows are what a rollout of optimal play looks like, word for word."""

from __future__ import annotations

import argparse
import asyncio
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from agent_env.bundle import Bundle, load_bundle
from agent_env.episode import EpisodeSpec
from agent_env.errors import ConfigError
from agent_env.examples.gridsim.battery import score
from agent_env.examples.gridsim.bundle import write_bundle
from agent_env.examples.gridsim.prices import synthetic_days
from agent_env.training.nemo_gym.rows import function_tools

SCRIPT = Path(__file__).parents[2] / "examples" / "sft_gridsim.py"


@pytest.fixture(scope="module")
def sft() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sft_gridsim", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty train days and four eval days."""
    days = synthetic_days()
    few = [day for day in days if day.split == "train"][:30] + [day for day in days if day.split == "eval"][:4]
    return write_bundle(tmp_path_factory.mktemp("bundles") / "gridsim-v1", days=few)


@pytest.fixture(scope="module")
def bundle(folder: Path) -> Bundle:
    return load_bundle(folder)


def test_a_row_reads_the_prices_and_submits_the_optimum(sft: ModuleType, bundle: Bundle) -> None:
    written = list(sft.rows(bundle))
    assert len(written) == 30
    for row in written:
        messages = row["messages"]
        assert [m["role"] for m in messages] == ["system", "user", *["assistant", "tool"] * 2, "assistant"]
        prices = json.loads(messages[3]["content"])["prices"]
        (call,) = messages[4]["tool_calls"]
        assert call["function"]["name"] == "submit_schedule"
        assert score(prices, call["function"]["arguments"]["schedule"]) == 1.0
        assert messages[0]["content"].startswith("You run a grid battery")
        assert [tool["function"]["name"] for tool in row["tools"]] == ["get_prices", "submit_schedule"]


def test_only_train_days_are_taken_shuffled_by_the_seed(sft: ModuleType, bundle: Bundle) -> None:
    def prompts(**options: Any) -> list[str]:
        return [row["messages"][1]["content"] for row in sft.rows(bundle, **options)]

    train = {step.fields["prompt"] for task in bundle.splits()["train"] for step in task.steps if step.id == "ask"}
    assert set(prompts()) == train
    assert prompts() == prompts(seed=0) != prompts(seed=1)
    assert prompts(days=7) == prompts()[:7]


def test_another_bundle_is_refused_by_name(sft: ModuleType, bundle: Bundle) -> None:
    with pytest.raises(ConfigError, match="no split 'test'"):
        list(sft.rows(bundle, split="test"))
    task = argparse.Namespace(steps=(), source="tasks/other.json")
    with pytest.raises(ConfigError, match=r"tasks/other\.json: not a day of GridSim"):
        sft.conversation(task)


class Template:
    """Behaves as Qwen3's: thinking off puts an empty thought before the reply to write, and the last reply keeps it."""

    def __init__(self, keeps_thought: bool = True) -> None:
        self.keeps_thought = keeps_thought

    def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: Any,
        tokenize: bool,
        add_generation_prompt: bool = False,
        enable_thinking: bool = True,
    ) -> str:
        assert tools
        assert not tokenize
        text = ""
        for place, message in enumerate(messages):
            last = place + 1 == len(messages)
            thought = "<t></t>" if message["role"] == "assistant" and last and self.keeps_thought else ""
            calls = "".join(f"<tool>{json.dumps(call['function'])}</tool>" for call in message.get("tool_calls", ()))
            text += f"<{message['role']}>{thought}{message['content']}{calls}<end>\n"
        return text + ("<assistant>" + ("" if enable_thinking else "<t></t>") if add_generation_prompt else "")


@pytest.mark.parametrize("keeps_thought", [True, False])
def test_every_reply_is_the_completion_of_what_stands_before_it(
    sft: ModuleType, bundle: Bundle, keeps_thought: bool
) -> None:
    row = next(sft.rows(bundle))
    pairs = sft.completions(row, Template(keeps_thought))
    assert len(pairs) == 3
    assert all(pair["prompt"].endswith("<assistant><t></t>") for pair in pairs)
    assert pairs[0]["completion"] == '<tool>{"name": "get_prices", "arguments": {}}</tool><end>'
    assert pairs[1]["completion"].startswith('<tool>{"name": "submit_schedule", "arguments": {"schedule": [')
    assert pairs[2]["completion"].startswith("The schedule is submitted. It earns $")
    assert pairs[0]["completion"] in pairs[1]["prompt"]


def test_a_template_that_rewrites_the_past_is_refused(sft: ModuleType, bundle: Bundle) -> None:
    class Forgetful(Template):
        def apply_chat_template(self, messages: list[dict[str, Any]], **options: Any) -> str:
            return super().apply_chat_template(messages[-2:], **options)

    with pytest.raises(ConfigError, match="rewrites earlier turns"):
        sft.completions(next(sft.rows(bundle)), Forgetful())


def test_the_arguments_are_those_of_the_flags(sft: ModuleType) -> None:
    options = sft.parser().parse_args(["b", "--epochs", "2", "--rank", "8", "--learning-rate", "3e-5", "--out", "m"])
    arguments = sft.training_arguments(options)
    assert (arguments["num_train_epochs"], arguments["learning_rate"]) == (2.0, 3e-5)
    assert (arguments["output_dir"], arguments["bf16"], arguments["use_cpu"]) == ("m-checkpoints", True, False)
    assert sft.adapter_arguments(options)["lora_alpha"] == 16
    assert str(sft.parser().parse_args(["b"]).out) == "qwen3-4b-gridsim-sft"


@pytest.mark.trl
def test_the_arguments_are_ones_that_trl_and_peft_know(sft: ModuleType) -> None:
    trl, peft = importlib.import_module("trl"), importlib.import_module("peft")
    options = sft.parser().parse_args(["b", "--cpu"])
    assert trl.SFTConfig(**sft.training_arguments(options)).completion_only_loss
    assert peft.LoraConfig(**sft.adapter_arguments(options)).r == 32


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, timeout=60, check=False
    )


def test_the_command_writes_the_rows_and_says_what_training_lacks(folder: Path, tmp_path: Path) -> None:
    data = tmp_path / "out" / "rows.jsonl"
    done = run(str(folder), "--data", str(data), "--days", "5", "--data-only")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"wrote {data}: 5 days, played at their best\n"
    assert len(data.read_text().splitlines()) == 5
    if importlib.util.find_spec("trl") is None:
        done = run(str(folder), "--data", str(data), "--days", "1")
        assert done.returncode == 2
        assert done.stderr.startswith("error: training needs trl and peft")


@pytest.mark.integration
def test_tools_and_answers_are_the_envs_own(sft: ModuleType, bundle: Bundle) -> None:
    """One day is played; the row must say what the env said."""
    task = bundle.splits()["train"][0]
    messages = sft.conversation(task)

    async def play() -> tuple[list[Any], list[str]]:
        episode = await EpisodeSpec.from_task(task).start("process")
        turn = await episode.next_turn()
        assert turn is not None
        assert (turn.system_prompt, turn.prompt) == (messages[0]["content"], messages[1]["content"])
        offered = [{"name": t.name, "description": t.description, "input_schema": t.input_schema} for t in turn.list()]
        texts = []
        for message in (messages[2], messages[4]):
            function = message["tool_calls"][0]["function"]
            texts.append((await turn.call(function["name"], function["arguments"])).text)
        await turn.end(messages[6]["content"])
        assert await episode.result() == {"grade": 1.0}
        return function_tools(offered, {}), texts

    offered, texts = asyncio.run(play())
    assert [messages[3]["content"], messages[5]["content"]] == texts
    shown = [{key: value for key, value in tool.items() if key not in ("type", "strict")} for tool in offered]
    assert [tool["function"] for tool in sft.TOOLS] == shown
