"""docs/bundles.md, followed word by word: its files written, its commands run."""

from __future__ import annotations

import json
import re
import shlex
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest
from stubs.processes import NEMO_GYM, OPENENV, Command, command, finished

from agent_env.bundle.model import EnvSettings
from agent_env.grading.scores import AGGREGATORS
from agent_env.steps import registered

PAGE = Path(__file__).parents[2] / "docs" / "bundles.md"
TEXT = PAGE.read_text()


def files() -> dict[str, str]:
    """Each block that follows a line with nothing but a path."""
    return dict(re.findall(r"^`([\w./-]+)`\n\n```\w+\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL))


def commands() -> list[list[str]]:
    """The words of every command, in order."""
    blocks = re.findall(r"^```bash\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines]


def test_the_page_shows_a_whole_bundle() -> None:
    desk = "bundles/desk/"
    assert [path.removeprefix(desk) for path in files() if path.startswith(desk)] == [
        "envs/desk/server.py",
        "envs/desk/requirements.txt",
        "envs/desk/Dockerfile",
        "envs/desk/env.toml",
        "envs/desk/agent-env.toml",
        "artifacts/check_refund/verify.py",
        "tasks/refund-17.json",
        "evals/train.toml",
    ]


@pytest.mark.integration
@pytest.mark.timeout(300)
def test_from_an_empty_folder_to_a_played_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path, text in files().items():
        target = tmp_path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    monkeypatch.chdir(tmp_path)
    check, run, serve, write, serve_rows, play = commands()

    checked = here(check)
    assert checked.out.splitlines()[-1] == "desk: ready for training", checked.out + checked.log

    played = here(run)
    assert re.search(r"^refund-17 +PASSED +1\.0000 ", played.out, re.MULTILINE), played.out + played.log
    record = json.loads((tmp_path / "desk.jsonl").read_text())
    assert record["messages"][-1] == {"role": "assistant", "content": "It is refunded."}

    with ExitStack() as servers:
        openenv = servers.enter_context(command(*words(serve), "--port", "0", "--sandbox", "process"))
        written = here([openenv.url() if word == "http://127.0.0.1:8200" else word for word in write])
        assert written.out.strip().endswith("wrote gym-root/resources_servers/desk") or written.out.strip().endswith(
            "/gym-root/resources_servers/desk"
        )
        resources = servers.enter_context(command(*words(serve_rows), "--port", "0"))
        rewarded = here([resources.url() if word == "http://127.0.0.1:9100" else word for word in play])
        assert re.search(r"^clerk:clerk +1 +1\.000000 ", rewarded.out, re.MULTILINE), rewarded.out + rewarded.log


def words(line: list[str]) -> tuple[str, ...]:
    """`agent-env x` and `python -m module x` as module and arguments."""
    if line[0] == "agent-env":
        return (OPENENV, *line[1:])
    assert line[:2] == ["python", "-m"]
    assert line[2] == NEMO_GYM
    return tuple(line[2:])


def here(line: list[str]) -> Command:
    module, *arguments = words(line)
    chosen = ["--sandbox", "process"] if module == OPENENV else []
    done = finished(module, *arguments, *chosen)
    assert done.process.returncode == 0, f"{sys.executable} -m {module} {arguments}\n{done.out}{done.log}"
    return done


def row_of(table: str, key: str) -> str:
    found = re.search(rf"^\| `{re.escape(key)}`.*$", table, re.MULTILINE)
    assert found, f"{key} is not in the table"
    return found[0]


REFUSED = {
    "deploy_env": {"env_state_type", "env_state_instance_id", "artifact_id", "artifact_version"},
    "deploy_agent": {"skills", "sandbox_name", "enable_docker", "snapshot_config"},
    "load_artifact": {
        "urls",
        "artifact_from_step_id",
        "collected_artifacts_step_id",
        "agent_name",
        "container_name",
    },
    "prompt_agent": {
        "parts",
        "output_format",
        "agentenv_tools",
        "snapshot_config",
        "max_conversation_turns",
        "user_a2a_url",
    },
    "deploy_sandbox": {"image", "exposed_ports", "network_policy"},
    "verify_sandbox": {"agent_name"},
    "rubrics_verifier": {
        "use_agent_judge",
        "run_context_for_judge",
        "effort",
        "trajectory_filter",
        "agent_name",
        "judge_a2a_agent_id",
    },
}
"""fields that are read only to refuse them, or have no use here"""


@pytest.mark.parametrize("name", sorted(registered()))
def test_every_step_type_is_listed_with_its_fields(name: str) -> None:
    row = row_of(TEXT.partition("## Steps")[2], name)
    fields = registered()[name].model_fields.keys() - REFUSED.get(name, set())
    assert [field for field in sorted(fields) if f"`{field}`" not in row] == []


def test_every_aggregator_and_every_setting_of_an_env_is_listed() -> None:
    for name in AGGREGATORS:
        row_of(TEXT.partition("## Scores")[2], name)
    table = TEXT.partition("## agent-env.toml")[2]
    assert [key for key in EnvSettings.__slots__ if f"`{key}`" not in table] == []
