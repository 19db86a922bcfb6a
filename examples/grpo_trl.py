"""GRPO on GridSim with TRL, through OpenEnv: the trainer holds one session on the OpenEnv server for each rollout.

    python examples/grpo_trl.py --model qwen3-4b-gridsim-sft      # needs GPUs, trl[vllm] and openenv
    python examples/grpo_trl.py --show 3                          # the first rows that would be trained on; any machine

`agent-env serve bundles/gridsim-v1 --max-concurrent-envs 96` runs meanwhile. TRL finds the tools by looking at the
public methods of `GridSim`, calls them when the model does, and asks `get_reward` at the end. An environment that
failed answers None there, which TRL 1.16 leaves out of the update and of the group's baseline.
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request
from typing import Any

from openenv.core.generic_client import GenericEnvClient

Json = Any

URL = "http://127.0.0.1:8200"
ENV = "gridsim-v1"


class GridSim:
    """One rollout's episode. Used again for the next one, as TRL does."""

    def __init__(self) -> None:
        # A reset may wait for a place, and an end of turn for the grader: far longer than the client's usual 60 s.
        self._client = GenericEnvClient(base_url=URL, message_timeout_s=1200).sync()
        self._failure: str | None = None

    def reset(self, split: str, index: int, **_: Json) -> None:
        """Begins the row's episode. `ready=False`: it is answered while the env still deploys, so that the envs of a
        batch, which TRL resets one after the other, deploy at the same time."""
        self._failure = None
        self._send(lambda: self._client.reset(split=split, index=index, ready=False))

    def get_prices(self) -> str:
        """
        The day's 24 hourly prices in $/MWh (the first is the hour from midnight), and the battery.

        Returns:
            The prices and the battery, as JSON.
        """
        return self._call("get_prices", {})

    def submit_schedule(self, schedule: list[int]) -> str:
        """
        Submit the day's schedule: 24 integers, one an hour, in MWh. The last valid schedule counts.

        Args:
            schedule: Positive charges, negative sells, 0 idles.

        Returns:
            The profit, or why the schedule was refused.
        """
        return self._call("submit_schedule", {"schedule": schedule})

    def get_reward(self) -> float | None:
        """Ends the turn, which grades the episode. None: the environment failed, and nobody knows the reward."""
        result = self._send(lambda: self._client.step(_action("end_turn", {"response": ""})))
        return None if self._failure or result is None else result.reward

    def _call(self, name: str, arguments: dict[str, Json]) -> str:
        result = self._send(lambda: self._client.step(_action(name, arguments)))
        if result is None:
            return f"The environment failed, so no tool can be called any more ({self._failure})."
        told = result.observation
        return str(told["error"]["message"] if told.get("error") else told["result"]["data"])

    def _send(self, message: Any) -> Any:
        if self._failure:
            return None
        try:
            result = message()
        except (OSError, RuntimeError, TimeoutError) as error:  # the connection is lost, or the server is full
            self._failure = f"{type(error).__name__}: {error}"
            return None
        if failure := result.observation.get("failure"):
            self._failure = f"{failure['kind']}: {failure['reason']}"
            return None
        return result


def _action(name: str, arguments: dict[str, Json]) -> dict[str, Json]:
    return {"type": "call_tool", "tool_name": name, "arguments": arguments}


def rows(split: str) -> list[dict[str, Json]]:
    """The split's tasks as TRL takes them: the prompt, and what `reset` needs to know."""
    body = json.dumps({"split": split}).encode()
    request = urllib.request.Request(f"{URL}/{ENV}/tasks", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        tasks = json.load(answer)
    return [
        {
            "prompt": [
                {"role": "system", "content": task["system_prompt"]},
                {"role": "user", "content": task["prompt"]},
            ],
            "split": split,
            "index": task["index"],
        }
        for task in (tasks["tasks"] if isinstance(tasks, dict) else tasks)
    ]


def training_arguments(options: argparse.Namespace) -> dict[str, Json]:
    """What `trl.GRPOConfig` gets: four days a step, eight rollouts each."""
    return {
        "output_dir": options.out,
        "max_steps": options.steps,
        "learning_rate": 2e-5,
        "lr_scheduler_type": "constant",
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 4,
        "num_generations": 8,
        "temperature": 1.1,
        "max_completion_length": 4096,
        "max_tool_calling_iterations": 4,
        "chat_template_kwargs": {"enable_thinking": False},
        "use_vllm": True,
        "vllm_mode": "colocate",
        "bf16": True,
        "gradient_checkpointing": True,
        "logging_steps": 1,
        "report_to": "none",
    }


def train(options: argparse.Namespace) -> None:
    from datasets import Dataset
    from peft import LoraConfig
    from trl import GRPOConfig, GRPOTrainer

    trainer = GRPOTrainer(
        model=options.model,
        args=GRPOConfig(**training_arguments(options)),
        train_dataset=Dataset.from_list(rows("train")),
        environment_factory=GridSim,
        peft_config=LoraConfig(r=32, lora_alpha=64, target_modules="all-linear", task_type="CAUSAL_LM"),
    )
    trainer.train()
    trainer.save_model(options.out)


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--model", default="qwen3-4b-gridsim-sft", help="what sft_gridsim.py saved, or a name on the hub")
    made.add_argument("--out", default="qwen3-4b-gridsim-grpo")
    made.add_argument("--steps", type=int, default=40)
    made.add_argument("--show", type=int, metavar="N", help="print the first N rows and stop")
    return made


def main() -> int:
    options = parser().parse_args()
    try:
        if options.show:
            for row in rows("train")[: options.show]:
                print(row["index"], row["prompt"][-1]["content"])
        else:
            train(options)
    except ImportError as missing:
        print(
            f"error: training needs trl with vllm, and peft ({missing}): pip install 'trl[vllm,peft]'", file=sys.stderr
        )
        return 1
    except urllib.error.URLError as error:
        print(f"error: no OpenEnv server answers at {URL} ({error.reason}): agent-env serve BUNDLE", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
