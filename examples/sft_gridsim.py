"""Warm start for GridSim: rows of optimal play for supervised fine-tuning, and the training itself with TRL.

    python examples/sft_gridsim.py bundles/gridsim-v1 --data-only             # writes sft_gridsim.jsonl; any machine
    python examples/sft_gridsim.py bundles/gridsim-v1 --model Qwen/Qwen3-4B   # and trains: one GPU, trl and peft

Each train day becomes one conversation, in the form of chat templates: the task's own prompts, `get_prices`, the day's
optimal schedule as the arguments of `submit_schedule`, a closing line. Nothing is served for it: prices come from the
task's files, the optimum from the battery's rules, and tools and answers read word for word as the env gives them.

Training sees every assistant message once, as the completion of all that stands before it, rendered by the model's own
chat template with thinking off: what the model is shown is what it will be shown in a rollout. A LoRA adapter is
trained and merged, so that the folder holds a whole model.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agent_env.bundle import Bundle, Task, load_bundle
from agent_env.errors import AgentEnvError, ConfigError
from agent_env.examples.gridsim.battery import ENERGY, POWER, optimum, profit

Json = Any
Message = dict[str, Json]

TOOLS: list[dict[str, Json]] = [
    {
        "type": "function",
        "function": {
            "name": "get_prices",
            "description": "The day's 24 hourly prices in $/MWh (the first is the hour from midnight), "
            "and the battery.",
            "parameters": {"type": "object", "properties": {}, "title": "get_pricesArguments"},
        },
    },
    {
        "type": "function",
        "function": {
            "name": "submit_schedule",
            "description": "Submit the day's schedule: 24 integers, one an hour, in MWh.\n\n"
            "Positive charges, negative sells, 0 idles. The last valid schedule counts; an invalid one is refused.",
            "parameters": {
                "type": "object",
                "properties": {"schedule": {"items": {"type": "integer"}, "title": "Schedule", "type": "array"}},
                "required": ["schedule"],
                "title": "submit_scheduleArguments",
            },
        },
    },
]
"""as the rows offer them, in the form that chat templates take"""


# The data.


def rows(bundle: Bundle, split: str = "train", days: int | None = None, seed: int = 0) -> Iterator[dict[str, Json]]:
    """A conversation of each day, shuffled; `days` takes so many of them. Raises ConfigError for another bundle."""
    splits = bundle.splits()
    if split not in splits:
        raise ConfigError(f"{bundle.path}: there is no split {split!r}: it has {', '.join(splits)}")
    tasks = list(splits[split])
    random.Random(seed).shuffle(tasks)
    for task in tasks[:days]:
        yield {"messages": conversation(task), "tools": TOOLS}


def conversation(task: Task) -> list[Message]:
    """The day played at its best. Raises ConfigError when the task is not one of GridSim's."""
    fields = {step.type: step.fields for step in task.steps}
    try:
        day = fields["apply_server_config"]["directives"][0]["args"]
        system, prompt = fields["deploy_agent"]["system_prompt"], fields["prompt_agent"]["prompt"]
        prices = day["prices"]
    except (KeyError, IndexError, TypeError):
        raise ConfigError(f"{task.source}: not a day of GridSim: `agent-env example gridsim DIR` writes them") from None
    schedule = optimum(prices)[1]
    earned = profit(prices, schedule) / 1000
    return [
        {"role": "system", "content": system},
        {"role": "user", "content": prompt},
        _call("get_prices", {}),
        _answer("get_prices", prices_text(day)),
        _call("submit_schedule", {"schedule": schedule}),
        _answer("submit_schedule", json.dumps({"accepted": True, "profit": earned}, indent=2)),
        {"role": "assistant", "content": f"The schedule is submitted. It earns ${earned:,.2f}."},
    ]


def prices_text(day: Mapping[str, Json]) -> str:
    """What `get_prices` answers on that day."""
    battery = {"energy_mwh": ENERGY, "power_mw": POWER, "start_mwh": 0, "sold_share": 0.9}
    told = {"date": day["date"], "hub": day["hub"], "prices": day["prices"], "battery": battery}
    return json.dumps(told, separators=(",", ":"))


def _call(name: str, arguments: dict[str, Json]) -> Message:
    call = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def _answer(name: str, text: str) -> Message:
    return {"role": "tool", "name": name, "content": text}


def write(path: Path, conversations: Iterator[dict[str, Json]]) -> list[dict[str, Json]]:
    """The conversations, which now stand in the file, one a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = list(conversations)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in written), encoding="utf-8")
    return written


# The training.


def completions(row: Mapping[str, Json], tokenizer: Any) -> list[dict[str, str]]:
    """Every assistant message of a conversation, as the completion of what stands before it."""

    def text(messages: Sequence[Message], **options: Json) -> str:
        return str(tokenizer.apply_chat_template(list(messages), tools=row["tools"], tokenize=False, **options))

    found = []
    for place, message in enumerate(row["messages"]):
        if message["role"] != "assistant":
            continue
        before, through = row["messages"][:place], text(row["messages"][: place + 1])
        prompt = text(before, add_generation_prompt=True, enable_thinking=False)
        openings = (
            prompt,
            text(before, add_generation_prompt=True),
        )  # a turn that is not the last has no empty thought
        opening = next((opening for opening in openings if through.startswith(opening)), None)
        if opening is None:
            raise ConfigError(
                "the model's chat template rewrites earlier turns, so no prompt can be told from its reply"
            )
        found.append({"prompt": prompt, "completion": through.removeprefix(opening).rstrip("\n")})
    return found


def training_arguments(options: argparse.Namespace) -> dict[str, Json]:
    """What `trl.SFTConfig` gets."""
    return {
        "output_dir": f"{options.out}-checkpoints",
        "num_train_epochs": options.epochs,
        "learning_rate": options.learning_rate,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 10,
        "per_device_train_batch_size": options.batch_size,
        "gradient_accumulation_steps": options.accumulate,
        "gradient_checkpointing": True,
        "bf16": not options.cpu,
        "use_cpu": options.cpu,
        "max_length": 4096,
        "completion_only_loss": True,
        "logging_steps": 5,
        "save_strategy": "no",
        "report_to": "none",
        "seed": options.seed,
    }


def adapter_arguments(options: argparse.Namespace) -> dict[str, Json]:
    """What `peft.LoraConfig` gets."""
    return {
        "r": options.rank,
        "lora_alpha": 2 * options.rank,
        "target_modules": "all-linear",
        "task_type": "CAUSAL_LM",
    }


def train(conversations: Sequence[Mapping[str, Json]], options: argparse.Namespace) -> None:
    """Raises ConfigError when TRL, PEFT or a GPU is missing."""
    try:
        import torch
        from datasets import Dataset
        from peft import LoraConfig
        from transformers import AutoTokenizer
        from trl import SFTConfig, SFTTrainer
    except ImportError as missing:
        raise ConfigError(f"training needs trl and peft ({missing}): pip install trl peft") from None
    if not options.cpu and not torch.cuda.is_available():
        raise ConfigError("training needs a GPU, and torch finds none; --data-only writes the rows alone")
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    pairs = [pair for row in conversations for pair in completions(row, tokenizer)]
    print(f"training {options.model} on {len(pairs):,} replies of {len(conversations):,} days", flush=True)
    trainer = SFTTrainer(
        model=options.model,
        args=SFTConfig(**training_arguments(options)),
        train_dataset=Dataset.from_list(pairs),
        processing_class=tokenizer,
        peft_config=LoraConfig(**adapter_arguments(options)),
    )
    trainer.train()
    trainer.model.merge_and_unload().save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    print(f"wrote {options.out}", flush=True)


# The command.


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("bundle", type=Path, help="the GridSim bundle's folder")
    made.add_argument("--data", type=Path, default=Path("sft_gridsim.jsonl"), help="where the rows go")
    made.add_argument("--data-only", action="store_true", help="write the rows and stop")
    made.add_argument("--days", type=int, help="so many train days; all by default")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--model", default="Qwen/Qwen3-4B", help="a name on the hub, or a folder")
    made.add_argument("--out", type=Path, default=Path("qwen3-4b-gridsim-sft"), help="the trained model's folder")
    made.add_argument("--epochs", type=float, default=1.0)
    made.add_argument("--learning-rate", type=float, default=1e-4)
    made.add_argument("--rank", type=int, default=32, help="of the LoRA adapter; its alpha is twice that")
    made.add_argument("--batch-size", type=int, default=4)
    made.add_argument("--accumulate", type=int, default=8, help="batches before each update")
    made.add_argument("--cpu", action="store_true", help="train without a GPU: a tiny model, to try this out")
    return made


def main() -> int:
    options = parser().parse_args()
    try:
        conversations = write(options.data, rows(load_bundle(options.bundle), days=options.days, seed=options.seed))
        print(f"wrote {options.data}: {len(conversations):,} days, played at their best", flush=True)
        if not options.data_only:
            train(conversations, options)
    except (AgentEnvError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, ConfigError) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
