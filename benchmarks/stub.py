"""`serve` in front of the tests' stub OpenEnv server: what our resources server costs alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from agent_env.training.nemo_gym.rows import Row
from benchmarks.context import free_port
from benchmarks.ours import instead, serve_command
from benchmarks.processes import Process, listening, started

TESTS = Path(__file__).parents[1] / "tests"
_CONFIG = """\
stub_v1:
  resources_servers:
    stub_v1:
      agent_env: {{format: 1, openenv_url: "{url}", env: stub-v1}}
"""
_TOOL = {
    "type": "function",
    "name": "look",
    "description": "Looks.",
    "parameters": {"type": "object", "properties": {"at": {"type": "string"}}},
    "strict": False,
}


@dataclass(frozen=True, slots=True)
class StubChain:
    stub: Process
    serve: Process


@contextmanager
def stub_chain(
    work: Path, *, places: int, start_s: float = 0.0, serve: Sequence[str] = (), script: Path | None = None
) -> Iterator[StubChain]:
    """`start_s`: seconds from a reset to a ready episode; `script`: what to run in place of `serve`."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [sys.executable, str(TESTS / "stubs" / "stub_openenv.py"), "--port", str(port)]
    command += ["--places", str(places), "--episode", str(start_s)]
    with listening(command, url, work / "stub.log") as stub:
        folder = write_folder(work / "stub_v1", url)
        command = serve_command(folder, *serve)
        if script is not None:
            command = instead(command, script)
        with started(command, work / "serve.log") as server:
            yield StubChain(stub, server)


def write_folder(folder: Path, openenv_url: str) -> Path:
    """A folder as the writer writes it, as far as `serve` reads it."""
    config = folder / "configs" / "stub_v1.yaml"
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text(_CONFIG.format(url=openenv_url))
    return folder


def rows(count: int) -> list[Row]:
    """Rows of the stub's split `train`, with its tool."""
    made = []
    for number in range(count):
        params = {"input": [{"role": "user", "content": "Play.", "type": "message"}], "tools": [_TOOL]}
        data = {"responses_create_params": params, "split": "train", "index": number, "task_id": f"train-{number:04d}"}
        made.append(Row(number, data, orjson.dumps(data)))
    return made
