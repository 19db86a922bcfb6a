from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path

import pytest

from agent_env.bundle import load_bundle
from agent_env.errors import ConfigError
from agent_env.examples.gridsim import bundle
from agent_env.examples.gridsim.bundle import SYSTEM_PROMPT, write_bundle
from agent_env.examples.gridsim.prices import Day


@pytest.fixture
def few(days: tuple[Day, ...]) -> tuple[Day, ...]:
    return days[:3] + days[-2:]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_default_bundle_has_every_day_in_two_evals(tmp_path: Path, days: tuple[Day, ...]) -> None:
    folder = write_bundle(tmp_path / "gridsim-v1")
    names = {split: [f"{split}-{n:04}" for n in range(count)] for split, count in (("train", 2000), ("eval", 200))}
    for split, listed in names.items():
        assert tomllib.loads((folder / f"evals/{split}.toml").read_text()) == {"tasks": listed}
    assert {path.stem for path in (folder / "tasks").iterdir()} == {*names["train"], *names["eval"]}
    last = json.loads((folder / "tasks/eval-0199.json").read_text())
    assert last[1]["directives"][0]["args"]["prices"] == list(days[-1].prices)


def test_writing_again_gives_the_same_bytes(tmp_path: Path, few: tuple[Day, ...]) -> None:
    folder = write_bundle(tmp_path / "a", days=few)
    before = contents(folder)
    assert contents(write_bundle(tmp_path / "a", days=few)) == before
    assert contents(write_bundle(tmp_path / "b", days=few)) == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_a_smaller_bundle_leaves_nothing_of_the_larger_one(tmp_path: Path, few: tuple[Day, ...]) -> None:
    folder = write_bundle(tmp_path / "a", days=few)
    write_bundle(folder, days=few[:1])
    assert [path.name for path in (folder / "tasks").iterdir()] == ["train-0000.json"]
    assert [path.name for path in (folder / "evals").iterdir()] == ["train.toml"]


def test_the_files_are_those_of_the_format(tmp_path: Path, few: tuple[Day, ...]) -> None:
    folder = write_bundle(tmp_path / "a", days=few)
    assert sorted(contents(folder)) == [
        "README.md",
        "artifacts/verify/verify.py",
        "envs/gridsim/.dockerignore",
        "envs/gridsim/Dockerfile",
        "envs/gridsim/agent-env.toml",
        "envs/gridsim/env.toml",
        "envs/gridsim/requirements.txt",
        "envs/gridsim/server.py",
        "evals/eval.toml",
        "evals/train.toml",
        *(f"tasks/{name}.json" for name in ("eval-0000", "eval-0001", "train-0000", "train-0001", "train-0002")),
    ]
    assert (folder / "envs/gridsim/env.toml").read_text() == 'env_provider_type = "server"\n'
    assert "agent-env.toml" in (folder / "envs/gridsim/.dockerignore").read_text().split()
    assert (folder / "envs/gridsim/Dockerfile").read_text().startswith("ARG BASE_IMAGE=")
    settings = tomllib.loads((folder / "envs/gridsim/agent-env.toml").read_text())
    assert settings["command"] == ["python", "server.py"]
    assert settings["requirements"] == "requirements.txt"


def test_a_task_loads_its_day_asks_once_and_is_graded(tmp_path: Path, few: tuple[Day, ...]) -> None:
    folder = write_bundle(tmp_path / "a", days=few)
    steps = json.loads((folder / "tasks/train-0000.json").read_text())
    assert [step["type"] for step in steps] == [
        "deploy_env",
        "apply_server_config",
        "deploy_agent",
        "prompt_agent",
        "env_outcome_verifier",
    ]
    day = few[0]
    assert steps[1]["directives"][0]["args"] == {"date": day.date, "hub": day.hub, "prices": list(day.prices)}
    assert steps[2]["system_prompt"] == SYSTEM_PROMPT
    assert steps[3] == {"id": "ask", "type": "prompt_agent", "prompt": steps[3]["prompt"]}
    assert day.date in steps[3]["prompt"]
    assert day.hub in steps[3]["prompt"]


def test_the_readme_s_first_line_describes_the_bundle_and_says_that_days_are_synthetic(
    tmp_path: Path, few: tuple[Day, ...]
) -> None:
    lines = (write_bundle(tmp_path / "a", days=few) / "README.md").read_text().splitlines()
    assert lines[0].startswith("GridSim: ")
    assert any("synthetic" in line for line in lines)
    assert "3 train days" in " ".join(lines)


@pytest.mark.parametrize("name", ["notes.txt", "tasks/mine.json", "README.md", "envs/other/Dockerfile"])
def test_a_folder_with_something_else_in_it_is_refused(tmp_path: Path, few: tuple[Day, ...], name: str) -> None:
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).write_text("mine")
    with pytest.raises(ConfigError, match="name another folder"):
        write_bundle(tmp_path, days=few)
    assert (tmp_path / name).read_text() == "mine"


def test_a_folder_that_holds_only_folders_is_not_empty(tmp_path: Path, few: tuple[Day, ...]) -> None:
    (tmp_path / "plans" / "2026").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"holds plans"):
        write_bundle(tmp_path, days=few)


def test_a_bundle_that_was_run_in_place_can_be_written_again(tmp_path: Path, few: tuple[Day, ...]) -> None:
    folder = write_bundle(tmp_path / "a", days=few)
    cached = folder / "envs" / "gridsim" / "__pycache__" / "server.cpython-311.pyc"
    cached.parent.mkdir()
    cached.write_bytes(b"")
    write_bundle(folder, days=few)
    assert not cached.exists()


def test_an_own_file_in_a_written_bundle_is_not_overwritten(tmp_path: Path, few: tuple[Day, ...]) -> None:
    folder = write_bundle(tmp_path / "a", days=few)
    (folder / "tasks" / "mine.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"holds tasks/mine\.json"):
        write_bundle(folder, days=few)
    assert (folder / "tasks" / "mine.json").exists()


def test_a_file_in_the_folder_s_place_is_refused(tmp_path: Path, few: tuple[Day, ...]) -> None:
    (tmp_path / "a").write_text("mine")
    with pytest.raises(ConfigError, match="is a file"):
        write_bundle(tmp_path / "a", days=few)
    with pytest.raises(ConfigError, match="can't write the bundle"):
        write_bundle(tmp_path / "a" / "b", days=few)


def test_a_write_that_fails_leaves_the_earlier_bundle(
    tmp_path: Path, few: tuple[Day, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_bundle(tmp_path / "a", days=few)
    before = contents(folder)

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(bundle, "_write", full)
    with pytest.raises(ConfigError, match="No space left on device"):
        write_bundle(folder, days=few)
    assert contents(folder) == before
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_an_earlier_bundle_comes_back_when_the_new_one_can_not_be_moved_in(
    tmp_path: Path, few: tuple[Day, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_bundle(tmp_path / "a", days=few)
    before, replace = contents(folder), os.replace

    def refuse_new(source: Path, target: Path) -> None:
        if source.name == "new":
            raise OSError(13, "Permission denied")
        replace(source, target)

    monkeypatch.setattr(os, "replace", refuse_new)
    with pytest.raises(ConfigError, match="Permission denied"):
        write_bundle(folder, days=few[:1])
    assert contents(folder) == before


def test_an_empty_folder_is_filled_and_missing_parents_are_made(tmp_path: Path, few: tuple[Day, ...]) -> None:
    (tmp_path / "empty").mkdir()
    assert (write_bundle(tmp_path / "empty", days=few) / "README.md").is_file()
    assert (write_bundle(tmp_path / "x" / "y" / "z", days=few) / "README.md").is_file()


def test_the_bundle_reader_finds_nothing_wrong(tmp_path: Path, few: tuple[Day, ...]) -> None:
    read = load_bundle(write_bundle(tmp_path / "gridsim-v1", days=few))
    assert read.description.startswith("GridSim: ")
    assert {split: len(tasks) for split, tasks in read.splits().items()} == {"all": 5, "train": 3, "eval": 2}
    assert read.envs["gridsim"].settings.command == ("python", "server.py")
    assert read.ignored == ()
