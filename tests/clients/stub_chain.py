"""`serve` as a process of its own in front of a stub OpenEnv server in this one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clients.chain import GYM, Server, start_server
from clients.in_thread import serving
from stubs.stub_openenv import TOOLS, StubOpenEnv

_CONFIG = """\
{name}:
  resources_servers:
    {name}:
      agent_env: {{format: 1, openenv_url: "{url}", env: "{env}"}}
"""


@contextmanager
def stub_chain(stub: StubOpenEnv, place: Path, *serve_flags: str) -> Iterator[Server]:
    """The resources server, with every session's episode gone at the end."""
    folder = place / "stub_v1"
    (folder / "configs").mkdir(parents=True)
    with serving(stub) as url:
        config = _CONFIG.format(name="stub_v1", url=url, env=stub.env)
        (folder / "configs" / "stub_v1.yaml").write_text(config)
        server = start_server(place / "serve.log", GYM, "serve", str(folder), "--port=0", *serve_flags)
        try:
            yield server
        finally:
            server.stop()
    assert stub.running == 0, "an episode was left behind"


def stub_rows(prompts: Sequence[str]) -> list[dict[str, Any]]:
    """One row of the split `train` for each prompt, with the stub's tools."""
    tools = [
        {"type": "function", "name": t["name"], "description": t["description"], "parameters": t["input_schema"]}
        for t in TOOLS
    ]
    return [
        {
            "responses_create_params": {"input": [{"role": "user", "content": prompt}], "tools": tools},
            "split": "train",
            "index": index,
            "task_id": f"train-{index:04d}",
        }
        for index, prompt in enumerate(prompts)
    ]
