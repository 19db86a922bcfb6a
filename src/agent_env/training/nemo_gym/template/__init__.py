"""The text of the written folder: the two config flavours, what NeMo Gym asks for, and every file below `files/`.

A file below `files/` is written to the same place in the folder, its `$name` placeholders (the keys of `placeholders`)
filled in; a dollar sign is `$$`.
"""

from __future__ import annotations

import importlib.metadata
import string
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path, PurePosixPath

import orjson

from agent_env import __version__
from agent_env.training.nemo_gym.folder import FORMAT
from agent_env.training.nemo_gym.options import ServeOptions

EXAMPLES = 5
"""rows of `example.jsonl`: NeMo Gym wants exactly so many, so those of a smaller bundle come again"""


@dataclass(frozen=True, slots=True)
class Server:
    """What the texts say."""

    name: str
    """folder name"""
    path: str
    """the folder as the user wrote it, `<OUT>/resources_servers/<name>`"""
    openenv_url: str
    env: str
    digest: str | None
    aliases: Mapping[str, str]
    """`{alias: tool}`"""
    splits: Mapping[str, int]
    """split -> number of rows"""

    @property
    def agent(self) -> str:
        return f"{self.name}_simple_agent"


def render(server: Server, folder: Path) -> None:
    """Writes everything but the data."""
    texts = {
        f"configs/{server.name}.yaml": config(server),
        f"configs/{server.name}_v07.yaml": config_v07(server),
        "requirements.txt": f"{requirement()}\npytest\n",
        "data/example_metrics.json": example_metrics(server),
        **_files(server),
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")


def config(server: Server) -> str:
    """The config with two blocks, which NeMo Gym 0.5 to 0.7 and NeMo RL take."""
    defaults = ServeOptions()
    return f"""\
# Written by `python -m agent_env.training.nemo_gym` {__version__}. Flags of `serve` win over these settings.
{server.name}_resources_server:
  resources_servers:
    {_q(server.name)}:
      entrypoint: app.py
      domain: agent
      verified: false
      description: {_q(f"Tasks of the agent_env bundle {server.env}")}
      agent_env:
        format: {FORMAT}
        openenv_url: {_q(server.openenv_url)}
        env: {_q(server.env)}
        bundle_digest: {_q(server.digest)}
        aliases: {_q(dict(server.aliases))}
        reset_timeout: {defaults.reset_timeout:g}
        idle_timeout: {defaults.idle_timeout:g}
{server.agent}:
  responses_api_agents:
    simple_agent:
      entrypoint: app.py
      resources_server:
        type: resources_servers
        name: {server.name}_resources_server
      model_server:
        type: responses_api_models
        name: policy_model
      datasets:
{_datasets(server)}
"""


def config_v07(server: Server) -> str:
    """The flavour with an environment server, which NeMo Gym 0.7.0 and newer want and older ones can't start."""
    return f"""\
# For NeMo Gym 0.7.0 and newer: {server.name}.yaml and an environment server. Older releases can't start this block.
config_paths:
- resources_servers/{server.name}/configs/{server.name}.yaml
{server.name}_environment_server:
  environment_servers:
    legacy_agent:
      entrypoint: app.py
      agent_server:
        type: responses_api_agents
        name: {server.agent}
"""


def example_metrics(server: Server) -> str:
    """What `gym env test` wants to find. `gym dataset collate` compares each value, so it holds none that releases
    compute differently."""
    facts = {
        "name": "example",
        "type": "example",
        "jsonl_fpath": f"resources_servers/{server.name}/data/example.jsonl",
        "Number of examples": EXAMPLES,
    }
    return orjson.dumps(facts, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()


def requirement() -> str:
    """What pip installs to get this toolkit as it is installed here: by version, or from the place it came from."""
    try:
        distribution = importlib.metadata.distribution("agent-env")
    except importlib.metadata.PackageNotFoundError:
        return f"agent-env=={__version__}"
    origin = orjson.loads(distribution.read_text("direct_url.json") or "{}")
    url = origin.get("url")
    if not url:
        return f"agent-env=={distribution.version}"
    vcs = origin.get("vcs_info")
    return f"agent-env @ {vcs['vcs']}+{url}@{vcs['commit_id']}" if vcs else f"agent-env @ {url}"


def placeholders(server: Server) -> dict[str, str]:
    example = "eval" if "eval" in server.splits else next(iter(server.splits))
    return {
        "name": server.name,
        "agent": server.agent,
        "path": server.path,
        "out": server.path.removesuffix(f"resources_servers/{server.name}").removesuffix("/") or ".",
        "openenv_url": server.openenv_url,
        "env": server.env,
        "digest": server.digest or "not told by the server",
        "version": __version__,
        "example_split": example,
        "example_type": _dataset_type(example),
        "split_table": "\n".join(f"| `data/{split}.jsonl` | {count} |" for split, count in server.splits.items()),
    }


def _datasets(server: Server) -> str:
    root = f"resources_servers/{server.name}/data"
    sets = [(split, _dataset_type(split), f"{root}/{split}.jsonl", ", license: TBD") for split in server.splits]
    sets.append(("example", "example", f"{root}/example.jsonl", ""))
    return "\n".join(
        f"      - {{name: {_q(name)}, type: {kind}, jsonl_fpath: {_q(path)}{license}}}"
        for name, kind, path, license in sets
    )


def _dataset_type(split: str) -> str:
    """NeMo Gym knows no other splits than these two."""
    return "train" if split == "train" else "validation"


def _files(server: Server) -> dict[str, str]:
    values = placeholders(server)
    return {
        name.as_posix(): string.Template(source.read_text(encoding="utf-8")).substitute(values)
        for name, source in _walk(resources.files(__name__) / "files", PurePosixPath())
    }


def _walk(folder: Traversable, at: PurePosixPath) -> list[tuple[PurePosixPath, Traversable]]:
    found: list[tuple[PurePosixPath, Traversable]] = []
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if entry.is_dir():
            found += _walk(entry, at / entry.name) if entry.name != "__pycache__" else []
        else:
            found.append((at / entry.name, entry))
    return found


def _q(value: object) -> str:
    """`value` as JSON, which YAML reads the same."""
    return orjson.dumps(value).decode()
