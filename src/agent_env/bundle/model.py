"""What a bundle is once read: plain, frozen data. Nothing here touches the file system."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Json = Any
"""A parsed JSON value."""


@dataclass(frozen=True, slots=True)
class EnvSettings:
    """The sidecar `envs/<name>/agent-env.toml`: what only this toolkit reads. All keys are optional."""

    command: tuple[str, ...] = ()
    """argv of the env's server in the `process` sandbox; the first word `python` means the venv's own."""
    requirements: str | None = None
    """requirements file, relative to the env folder, of the `process` sandbox's venv and the graders'."""
    isolation: str = "container"
    preload: tuple[str, ...] = ()
    start_timeout: float | None = None
    """seconds from start to the card's first answer; None: the deploy deadline alone"""
    memory: int | None = None
    """bytes"""
    cpus: float | None = None
    pids: int | None = None
    network: str = "none"
    build_args: Mapping[str, str] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    cap_add: tuple[str, ...] = ()
    read_only: bool = False
    on_tool_timeout: str = "mask"
    on_oom: str = "mask"
    on_turn_timeout: str = "mask"


@dataclass(frozen=True, slots=True)
class Env:
    """`envs/<name>/`."""

    name: str
    path: Path
    environment_name: str
    """the name its card declares"""
    digest: str
    """sha256 hex over the build context; never depends on where the bundle lies"""
    dockerfile: str = "Dockerfile"
    """relative to `path`"""
    image_ref: str | None = None
    """a registry image in place of the Dockerfile"""
    provider_type: str = "gateway"
    settings: EnvSettings = EnvSettings()
    type: str = "mcp_server"
    """mcp_server | multi | website | computer_driver; only the first can be deployed"""
    context: Path | None = None
    """the build context when it is not `path`: the folder of the image artifact that `image` names"""
    config: Mapping[str, Json] = field(default_factory=dict)
    """env.toml's keys of the other types"""
    id: str | None = None
    """declared in env.toml"""

    @property
    def sources(self) -> Path:
        """The folder with the Dockerfile and the server: the env's own, or the image artifact's."""
        return self.context or self.path


@dataclass(frozen=True, slots=True)
class Agent:
    """`agents/<name>/`: read and checked, not run; episodes are played by the trainer's agent."""

    name: str
    path: Path
    image_ref: str | None = None
    default_env_vars: Mapping[str, str] = field(default_factory=dict)
    metadata: Mapping[str, Json] = field(default_factory=dict)
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Skill:
    """`skills/<name>/`: read and checked, not run."""

    name: str
    path: Path
    files: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Artifact:
    """`artifacts/<name>/`."""

    name: str
    path: Path
    type: str
    """file | file_artifact_universe | docker_image | environment | environment_universe | cli"""
    files: tuple[str, ...]
    """relative POSIX paths, sorted"""
    config: Mapping[str, Json] = field(default_factory=dict)
    """the other keys of artifact.toml"""
    id: str | None = None
    """declared in artifact.toml"""


@dataclass(frozen=True, slots=True)
class Step:
    """One element of a task file."""

    id: str
    type: str
    depends_on: tuple[str, ...]
    """resolved: an absent `depends_on` names every earlier step"""
    fields: Mapping[str, Json]
    """the type's own fields: everything but id, type, version, depends_on, fail_task_on_error, retry_config"""
    fail_task_on_error: bool | None = None
    """None: the step type's default"""
    retry_config: Mapping[str, Json] | None = None


@dataclass(frozen=True, slots=True)
class Task:
    """`tasks/<name>.json`."""

    name: str
    """the file stem"""
    steps: tuple[Step, ...]
    source: str
    """path inside the bundle, for messages: `tasks/<name>.json`"""
    bundle: Bundle | None = field(default=None, repr=False, compare=False)
    """the bundle it belongs to; set when the bundle is made"""


@dataclass(frozen=True, slots=True)
class Eval:
    """`evals/<name>.toml`: a list of tasks; becomes a split."""

    name: str
    tasks: tuple[str, ...]
    """task names"""
    type: str = "eval"
    id: str | None = None


@dataclass(frozen=True, slots=True)
class Bundle:
    """A folder of environments, tasks and graders, read and checked."""

    name: str
    path: Path
    description: str
    digest: str
    """sha256 hex over every file that is part of the bundle"""
    envs: Mapping[str, Env]
    artifacts: Mapping[str, Artifact]
    tasks: Mapping[str, Task]
    """by name, in name order"""
    evals: Mapping[str, Eval]
    ignored: tuple[str, ...] = ()
    """relative paths of entries that are not part of the format and were passed over"""
    agents: Mapping[str, Agent] = field(default_factory=dict)
    skills: Mapping[str, Skill] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    """aliases.toml: short id -> `envs/<name>` or `agents/<name>` of this bundle"""
    id_root: str = "@local"
    """what the ids of entities that declare none begin with"""

    def __post_init__(self) -> None:
        for task in self.tasks.values():
            object.__setattr__(task, "bundle", self)

    def splits(self) -> dict[str, tuple[Task, ...]]:
        """`all` (every task, in name order) and one split per eval (in listed order)."""
        splits = {"all": tuple(self.tasks.values())}
        for entry in self.evals.values():
            splits[entry.name] = tuple(self.tasks[name] for name in entry.tasks)
        return splits
