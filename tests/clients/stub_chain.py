"""`serve` as a process of its own in front of a stub OpenEnv server in this one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clients.chain import GYM, Server, start_server
from clients.in_thread import serving
from stubs.stub_openenv import TOOLS, StubOpenEnv

from agent_env.training.nemo_gym import template


@contextmanager
def stub_chain(stub: StubOpenEnv, place: Path, *serve_flags: str) -> Iterator[Server]:
    """The resources server, with every session's episode gone at the end."""
    with serving(stub) as url:
        folder = stub_folder(stub, url, place)
        server = start_server(place / "serve.log", GYM, "serve", str(folder), "--port=0", *serve_flags)
        try:
            yield server
        finally:
            server.stop()
    assert stub.running == 0, "an episode was left behind"


def stub_folder(stub: StubOpenEnv, url: str, place: Path) -> Path:
    """What the writer would write for the stub, without its data."""
    folder = place / "gym-root" / "resources_servers" / "stub_v1"
    folder.mkdir(parents=True)
    server = template.Server(
        name=folder.name,
        path=str(folder),
        openenv_url=url,
        env=stub.env,
        digest=stub.digest,
        aliases={},
        splits=stub.splits,
    )
    template.render(server, folder)
    return folder


def stub_rows(prompts: Sequence[str]) -> list[dict[str, Any]]:
    """One row of the split `train` for each prompt, with the stub's tools."""
    tools = [
        {
            "type": "function",
            "name": tool["name"],
            "description": tool["description"],
            "parameters": tool["input_schema"],
            "strict": False,
        }
        for tool in TOOLS
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
