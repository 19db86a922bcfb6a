from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from stubs.stub_taskapi import SUBMIT, StubTaskApi, served, task

from agent_env.training.nemo_gym.cli import main
from agent_env.training.nemo_gym.folder import read_folder


def stub(**fields: Any) -> StubTaskApi:
    train = [task(f"train-{number:04}") for number in range(7)]
    held_out = [task(f"eval-{number:04}") for number in range(3)]
    return StubTaskApi(**{"splits": {"all": [*held_out, *train], "train": train, "eval": held_out}} | fields)


def write(api: StubTaskApi, out: Path, *flags: str) -> int:
    with served(api.app()) as url:
        return main([url, str(out), *flags])


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_writes_one_file_per_eval_and_prints_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    api = stub(env="gridsim-v1")
    with served(api.app()) as url:
        assert main([url, "gym-root"]) == 0
    assert capsys.readouterr().out == "wrote gym-root/resources_servers/gridsim_v1\n"
    data = tmp_path / "gym-root/resources_servers/gridsim_v1/data"
    counts = {path.name: len(lines(path)) for path in data.glob("*.jsonl")}
    assert counts == {"train.jsonl": 7, "eval.jsonl": 3, "example.jsonl": 5}
    assert lines(data / "example.jsonl") == lines(data / "train.jsonl")[:5]


def test_deploys_one_env_when_the_tasks_share_their_tools(tmp_path: Path) -> None:
    api = stub()
    assert write(api, tmp_path) == 0
    assert api.played == [("train", 0)]
    assert api.actions == ["reset", "list_tools", "close"]


def test_a_row_is_exactly_as_specified(tmp_path: Path) -> None:
    assert write(stub(), tmp_path) == 0
    first = (tmp_path / "resources_servers/demo_v1/data/train.jsonl").read_bytes().split(b"\n")[0]
    expected = {
        "responses_create_params": {
            "input": [
                {"role": "system", "content": "Be brief.", "type": "message"},
                {"role": "user", "content": "Do train-0000.", "type": "message"},
            ],
            "tools": [
                {
                    "type": "function",
                    "name": "submit",
                    "description": "Submits an answer.",
                    "parameters": SUBMIT["input_schema"],
                    "strict": False,
                }
            ],
            "parallel_tool_calls": True,
        },
        "split": "train",
        "index": 0,
        "task_id": "train-0000",
        "agent_ref": {"type": "responses_api_agents", "name": "demo_v1_simple_agent"},
    }
    assert first.decode() == json.dumps(expected, separators=(",", ":"))


def test_the_config_has_two_blocks_that_serve_reads(tmp_path: Path) -> None:
    api = stub(tools={"t1": [SUBMIT | {"name": "a.b"}]})
    with served(api.app()) as url:
        assert main([f"{url}/", str(tmp_path)]) == 0
    folder = tmp_path / "resources_servers/demo_v1"
    config = yaml.safe_load((folder / "configs/demo_v1.yaml").read_text())
    assert list(config) == ["demo_v1_resources_server", "demo_v1_simple_agent"]
    server = config["demo_v1_resources_server"]["resources_servers"]["demo_v1"]
    assert (server["entrypoint"], server["domain"]) == ("app.py", "agent")
    assert server["agent_env"] == {
        "format": 1,
        "openenv_url": url,
        "env": "demo-v1",
        "bundle_digest": "d" * 64,
        "aliases": {"a_b": "a.b"},
        "reset_timeout": 600,
        "idle_timeout": 600,
    }
    agent = config["demo_v1_simple_agent"]["responses_api_agents"]["simple_agent"]
    assert agent["resources_server"] == {"type": "resources_servers", "name": "demo_v1_resources_server"}
    assert [(entry["name"], entry["type"], entry.get("license")) for entry in agent["datasets"]] == [
        ("train", "train", "TBD"),
        ("eval", "validation", "TBD"),
        ("example", "example", None),
    ]
    assert agent["datasets"][0]["jsonl_fpath"] == "resources_servers/demo_v1/data/train.jsonl"
    assert read_folder(folder).aliases == {"a_b": "a.b"}


def test_the_newer_flavour_adds_the_environment_server(tmp_path: Path) -> None:
    assert write(stub(), tmp_path) == 0
    flavour = yaml.safe_load((tmp_path / "resources_servers/demo_v1/configs/demo_v1_v07.yaml").read_text())
    assert flavour["config_paths"] == ["resources_servers/demo_v1/configs/demo_v1.yaml"]
    legacy = flavour["demo_v1_environment_server"]["environment_servers"]["legacy_agent"]
    assert legacy["agent_server"] == {"type": "responses_api_agents", "name": "demo_v1_simple_agent"}


def test_the_readme_names_commands_of_this_very_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    api = stub()
    with served(api.app()) as url:
        assert main([url, "gym-root"]) == 0
    text = (tmp_path / "gym-root/resources_servers/demo_v1/README.md").read_text()
    assert "nemo_gym serve gym-root/resources_servers/demo_v1 --port 9100" in text
    assert "--rows gym-root/resources_servers/demo_v1/data/eval.jsonl" in text
    assert f"python -m agent_env.training.nemo_gym {url} gym-root --name demo_v1" in text
    assert "$" not in text
    assert (tmp_path / "gym-root/resources_servers/demo_v1/requirements.txt").read_text().startswith("agent-env")


def test_a_bundle_without_evals_gets_all(tmp_path: Path) -> None:
    api = stub(splits={"all": [task("only")]})
    assert write(api, tmp_path) == 0
    data = tmp_path / "resources_servers/demo_v1/data"
    assert sorted(path.name for path in data.iterdir()) == ["all.jsonl", "example.jsonl", "example_metrics.json"]
    assert lines(data / "example.jsonl") == lines(data / "all.jsonl") * 5


def test_the_folder_holds_what_nemo_gyms_commands_ask_for(tmp_path: Path) -> None:
    assert write(stub(splits={"eval": [task("only")]}), tmp_path) == 0
    folder = tmp_path / "resources_servers/demo_v1"
    assert (folder / "requirements.txt").read_text().splitlines()[1:] == ["pytest"]
    assert "AgentEnvServer.run_webserver()" in (folder / "app.py").read_text()
    assert 'NAME = "demo_v1"' in (folder / "tests/test_app.py").read_text()
    metrics = json.loads((folder / "data/example_metrics.json").read_text())
    assert metrics["Number of examples"] == len(lines(folder / "data/example.jsonl")) == 5
    assert metrics["jsonl_fpath"] == "resources_servers/demo_v1/data/example.jsonl"


def test_each_toolset_is_played_once_and_rows_list_their_own_tools(tmp_path: Path) -> None:
    tasks = [task("a"), task("b", toolset="t2"), task("c"), task("d", toolset="t2")]
    api = stub(
        splits={"all": tasks, "train": tasks},
        tools={"t1": [SUBMIT], "t2": [SUBMIT | {"name": "other"}, SUBMIT | {"name": "hint", "description": None}]},
    )
    assert write(api, tmp_path) == 0
    assert sorted(api.played) == [("train", 0), ("train", 1)]
    rows = lines(tmp_path / "resources_servers/demo_v1/data/train.jsonl")
    names = [[tool["name"] for tool in row["responses_create_params"]["tools"]] for row in rows]
    assert names == [["submit"], ["other", "hint"], ["submit"], ["other", "hint"]]
    originals = json.loads((tmp_path / "resources_servers/demo_v1/tools.json").read_text())
    assert [tool["name"] for tool in originals["t2"]] == ["other", "hint", "end_turn"]


def test_end_turn_is_offered_where_there_is_a_next_prompt(tmp_path: Path) -> None:
    tasks = [task("one"), task("two", turns=2)]
    assert write(stub(splits={"train": tasks}), tmp_path) == 0
    rows = lines(tmp_path / "resources_servers/demo_v1/data/train.jsonl")
    names = [[tool["name"] for tool in row["responses_create_params"]["tools"]] for row in rows]
    assert names == [["submit"], ["submit", "end_turn"]]


def test_no_system_item_when_the_task_has_none(tmp_path: Path) -> None:
    assert write(stub(splits={"train": [task("a", system_prompt=None)]}), tmp_path) == 0
    row = lines(tmp_path / "resources_servers/demo_v1/data/train.jsonl")[0]
    assert [item["role"] for item in row["responses_create_params"]["input"]] == ["user"]


@pytest.mark.parametrize(("turns", "offered"), [(1, ["submit"]), (2, ["submit", "end_turn"])])
def test_a_server_that_tells_no_toolset_has_its_first_task_played(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], turns: int, offered: list[str]
) -> None:
    api = stub(told=False, turns=turns)
    assert write(api, tmp_path) == 0
    assert api.played == [("train", 0)]
    assert "--probe all" in capsys.readouterr().err
    row = lines(tmp_path / "resources_servers/demo_v1/data/eval.jsonl")[0]
    assert [tool["name"] for tool in row["responses_create_params"]["tools"]] == offered


def test_a_version_that_is_no_digest_is_not_taken_for_one(tmp_path: Path) -> None:
    assert write(stub(digest="1.0.0"), tmp_path) == 0
    assert read_folder(tmp_path / "resources_servers/demo_v1").bundle_digest is None


def test_probe_all_gives_each_row_its_own_tools(tmp_path: Path) -> None:
    api = stub(told=False, splits={"train": [task("a"), task("b")]}, tools={"t1": [SUBMIT], "b": []})
    assert write(api, tmp_path, "--probe", "all") == 0
    rows = lines(tmp_path / "resources_servers/demo_v1/data/train.jsonl")
    assert [len(row["responses_create_params"]["tools"]) for row in rows] == [1, 0]


def test_a_sample_that_disagrees_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    api = stub(told=False, splits={"train": [task("a"), task("b")]}, tools={"t1": [SUBMIT], "b": []})
    assert write(api, tmp_path, "--probe", "2") == 2
    assert "offer different tools: --probe all" in capsys.readouterr().err
    assert not (tmp_path / "resources_servers/demo_v1").exists()


def test_name_and_rows_write_a_bundle_as_several_servers(tmp_path: Path) -> None:
    assert write(stub(), tmp_path, "--name", "Part B", "--rows", "4:", "--split", "train") == 0
    folder = tmp_path / "resources_servers/part_b"
    assert sorted(path.name for path in (folder / "data").glob("*.jsonl")) == ["example.jsonl", "train.jsonl"]
    rows = lines(folder / "data/train.jsonl")
    assert [row["index"] for row in rows] == [4, 5, 6]
    assert rows[0]["agent_ref"]["name"] == "part_b_simple_agent"


def test_a_split_outside_the_range_gets_no_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write(stub(), tmp_path, "--rows", "4:6") == 0
    assert "split 'eval' has no row in the range" in capsys.readouterr().err
    assert not (tmp_path / "resources_servers/demo_v1/data/eval.jsonl").exists()


def test_writing_again_replaces_what_was_written_and_keeps_what_others_added(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers/demo_v1"
    assert write(stub(), tmp_path) == 0
    (folder / "data/train_metrics.json").write_text("{}")
    smaller = stub(splits={"eval": [task("eval-0000")]})
    assert write(smaller, tmp_path) == 0
    assert sorted(path.name for path in (folder / "data").iterdir()) == [
        "eval.jsonl",
        "example.jsonl",
        "example_metrics.json",
        "train_metrics.json",
    ]
    assert [path.name for path in folder.parent.iterdir()] == ["demo_v1"]


def test_an_edited_file_stops_the_command_unless_forced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = tmp_path / "resources_servers/demo_v1/data/train.jsonl"
    assert write(stub(), tmp_path) == 0
    rows.write_text("mine")
    assert write(stub(), tmp_path) == 2
    assert "data/train.jsonl changed since it was written" in capsys.readouterr().err
    assert rows.read_text() == "mine"
    assert write(stub(), tmp_path, "--force") == 0
    assert (tmp_path / "resources_servers/demo_v1.bak-1/data/train.jsonl").read_text() == "mine"
    assert len(lines(rows)) == 7


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_others_made_is_never_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str) -> None:
    place = tmp_path / "resources_servers/demo_v1"
    mine = place / "app.py" if kind == "folder" else place
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    assert write(stub(), tmp_path) == 2
    assert "was not written by this command" in capsys.readouterr().err
    assert mine.read_text() == "mine"
    assert write(stub(), tmp_path, "--force") == 0
    aside = place.with_name("demo_v1.bak-1")
    assert (aside / "app.py" if kind == "folder" else aside).read_text() == "mine"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"env": "openenv"}, "'openenv' is the name of one of NeMo Gym's own servers"),
        ({"splits": {"all": [task("a")], "example": [task("a")]}}, "the eval 'example' can't be a data file"),
        ({"splits": {"all": [task("a")], "train_metrics": [task("a")]}}, "'train_metrics' can't be a data file"),
        ({"splits": {"all": [task("a")], "../up": [task("a")]}}, "the split '../up' can't be a file name"),
        ({"splits": {"all": []}}, "no row is left to write"),
        ({"splits": {"all": [task("a", prompt=None)]}}, "task 0 of split 'all' (a): it has no prompt"),
        ({"splits": {"all": [task("a", index=3)]}}, "lists index 3 there"),
        ({"tools": {"t1": [SUBMIT | {"name": "a.b"}, SUBMIT | {"name": "a_b"}]}}, "would both be called 'a_b'"),
        ({"tools": {"t1": [SUBMIT | {"name": ""}]}}, "empty name"),
        ({"token": "secret"}, "wants a token: give --openenv-token-file"),
        (
            {
                "reset_answer": {
                    "type": "observation",
                    "data": {
                        "observation": {"failure": {"kind": "deploy_failed", "reason": "no port"}},
                        "reward": None,
                        "done": True,
                    },
                }
            },
            "the task train 0 (train-0000) can't be played: deploy_failed: no port",
        ),
        (
            {
                "reset_answer": {
                    "type": "observation",
                    "data": {"observation": {}, "done": True, "metadata": {"status": "error", "error": "Boom: x"}},
                }
            },
            "can't be played: Boom: x",
        ),
        (
            {"reset_answer": {"type": "error", "data": {"code": "CAPACITY_REACHED", "message": "full"}}},
            "is full, and the task train 0 (train-0000) must be played once",
        ),
    ],
)
def test_what_can_not_be_written_is_one_clear_line_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], fields: dict[str, Any], said: str
) -> None:
    assert write(stub(**fields), tmp_path) in (1, 2)
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1
    assert said in errors[0]
    assert not any(tmp_path.iterdir())


def test_a_schema_too_deep_for_any_row_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    schema: dict[str, Any] = {}
    for _ in range(400):
        schema = {"type": "object", "properties": {"next": schema}}
    assert write(stub(tools={"t1": [SUBMIT | {"input_schema": schema}]}), tmp_path) == 2
    assert "error: the tools of the task train 0 (train-0000) can't be put into rows" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_heavy_tools_are_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    api = stub(tools={"t1": [SUBMIT | {"description": "x" * 300_000}]})
    assert write(api, tmp_path) == 0
    assert "warning: the tools take 293 KiB of every row" in capsys.readouterr().err


def test_a_server_that_is_not_up_is_one_clear_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["http://127.0.0.1:1", str(tmp_path)]) == 1
    assert "no OpenEnv server answers at http://127.0.0.1:1" in capsys.readouterr().err
    assert not any(tmp_path.iterdir())


def test_an_unknown_split_names_the_known_ones(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert write(stub(), tmp_path, "--split", "test") == 2
    assert "no split 'test': it has all, train, eval" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        [],
        ["http://x"],
        ["http://x", "out", "--rows", "3"],
        ["http://x", "out", "--rows", "5:5"],
        ["http://x", "out", "--no"],
        ["http://x", "out", "--probe", "0"],
    ],
)
def test_wrong_usage_exits_with_two(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(argv)
    assert stop.value.code == 2
    assert "error: " in capsys.readouterr().err


def test_a_flag_can_come_from_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_ENV_NAME", "from_env")
    monkeypatch.setenv("AGENT_ENV_FORCE", "0")
    assert write(stub(), tmp_path) == 0
    assert write(stub(), tmp_path, "--name", "given") == 0
    assert sorted(path.name for path in (tmp_path / "resources_servers").iterdir()) == ["from_env", "given"]


def test_a_token_is_sent_to_the_openenv_server(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret-there\n")
    assert write(stub(token="secret-there"), tmp_path / "out", "--openenv-token-file", str(tmp_path / "token")) == 0
