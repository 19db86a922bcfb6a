from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent_env.bundle import Bundle, load_bundle
from agent_env.errors import BundleError

WriteBundle = Callable[..., Path]

CARD = '@environment_card(name="shop")\nclass Shop: ...\n'
STEPS = [{"id": "env", "type": "deploy_env", "env_id": "shop"}]


def refusal(path: Path | str) -> tuple[str, ...]:
    with pytest.raises(BundleError) as caught:
        load_bundle(path)
    return caught.value.problems


def test_a_small_bundle_is_read_whole(write_bundle: WriteBundle) -> None:
    bundle = load_bundle(write_bundle())
    assert (bundle.name, bundle.description, bundle.ignored) == ("shop-v1", "Shop", ())
    assert bundle.envs["shop"].environment_name == "shop"
    assert bundle.envs["shop"].provider_type == "gateway"
    assert (bundle.artifacts["check"].type, bundle.artifacts["check"].files) == ("file", ("verify.py",))
    assert [step.id for step in bundle.tasks["refund"].steps] == ["env", "agent", "ask", "grade"]
    assert bundle.tasks["refund"].source == "tasks/refund.json"
    assert bundle.evals["quick"].tasks == ("refund",)
    assert {name: len(tasks) for name, tasks in bundle.splits().items()} == {"all": 1, "quick": 1}


def test_a_path_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "nowhere"
    assert refusal(path) == (f"{path}: there is no such folder, and no installed bundle of that name",)


def test_a_file_is_one_clear_line(tmp_path: Path) -> None:
    path = tmp_path / "bundle.zip"
    path.write_text("")
    assert refusal(path) == (f"{path}: is a file; a bundle is a folder with tasks/, envs/, ...",)


def test_a_folder_without_a_kind_folder_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "task").mkdir()
    kinds = "envs/, agents/, artifacts/, skills/, tasks/, evals/"
    assert refusal(tmp_path) == (f"{tmp_path}: is no bundle: it has none of {kinds}",)


def test_the_name_is_the_folders_own_however_it_was_reached(
    write_bundle: WriteBundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_bundle()
    monkeypatch.chdir(folder / "tasks")
    assert load_bundle("..").name == "shop-v1"
    (folder.parent / "link").symlink_to(folder)
    assert load_bundle(folder.parent / "link").name == "shop-v1"


def test_all_six_kinds_are_read(write_bundle: WriteBundle) -> None:
    bundle = load_bundle(
        write_bundle(
            {
                "agents/clerk/Dockerfile": "FROM x\n",
                "agents/clerk/agent.toml": '[default_env_vars]\nMODE = "quiet"\n[metadata]\ndefault_model = "m"\n',
                "skills/refunds/SKILL.md": "---\nname: refunds\n---\n",
                "aliases.toml": '[envs]\nshop = ["store"]\n[agents]\nclerk = ["desk"]\n',
            }
        )
    )
    assert bundle.agents["clerk"].default_env_vars == {"MODE": "quiet"}
    assert bundle.agents["clerk"].metadata == {"default_model": "m"}
    assert bundle.skills["refunds"].files == ("SKILL.md",)
    assert bundle.aliases == {"store": "envs/shop", "desk": "agents/clerk"}


def test_what_is_not_part_of_the_format_is_passed_over_and_listed(write_bundle: WriteBundle) -> None:
    others = {
        "notes/plan.txt": "",
        "LICENSE": "",
        "tasks/notes.txt": "",
        "envs/notes.txt": "",
        "evals/x.json": "",
        ".git/config": "",
        "tasks/.draft.json": "{",
        "tasks/__pycache__/x": "",
        "envs/.old/x": "",
    }
    bundle = load_bundle(write_bundle(others))
    assert bundle.ignored == ("LICENSE", "envs/notes.txt", "evals/x.json", "notes", "tasks/notes.txt")
    assert list(bundle.tasks) == ["refund"]


def test_tasks_and_evals_come_in_name_order_and_splits_in_listed_order(write_bundle: WriteBundle) -> None:
    files = {f"tasks/{name}.json": STEPS for name in ("b", "a", "a-b", "aB")}
    bundle = load_bundle(write_bundle({**files, "evals/a.toml": 'tasks = ["b", "a"]', "evals/Z.toml": 'tasks = ["a"]'}))
    assert list(bundle.tasks) == ["a", "a-b", "aB", "b", "refund"]
    assert list(bundle.splits()) == ["all", "Z", "a", "quick"]
    assert [task.name for task in bundle.splits()["a"]] == ["b", "a"]


def test_names_are_normalised_so_that_they_are_equal_on_every_file_system(write_bundle: WriteBundle) -> None:
    decomposed = {"tasks/cafe\u0301.json": STEPS, "evals/e.toml": 'tasks = ["cafe\u0301"]'}
    bundle = load_bundle(write_bundle(decomposed))
    assert "caf\u00e9" in bundle.tasks
    assert bundle.evals["e"].tasks == ("caf\u00e9",)


def test_an_eval_may_name_tasks_by_id(write_bundle: WriteBundle) -> None:
    folder = write_bundle()
    (folder / "evals/e.toml").write_text(f'tasks = ["@local{folder}/refund"]')
    assert load_bundle(folder).evals["e"].tasks == ("refund",)


def test_links_inside_the_bundle_are_followed(write_bundle: WriteBundle) -> None:
    folder = write_bundle({"shared/common.py": "x = 1\n"})
    (folder / "tasks/again.json").symlink_to("refund.json")
    (folder / "envs/shop/common.py").symlink_to("../../shared/common.py")
    (folder / "artifacts/copy").symlink_to("check")
    bundle = load_bundle(folder)
    assert bundle.tasks["again"].steps == bundle.tasks["refund"].steps
    assert bundle.artifacts["copy"].files == ("verify.py",)


@pytest.mark.parametrize(
    ("link", "target", "line"),
    [
        ("tasks/x.json", "/etc/hostname", "links to something outside the bundle; put a copy of it inside"),
        ("tasks/x.json", "nowhere.json", "a broken link"),
        ("envs/shop/etc", "/etc", "links to something outside the bundle; put a copy of it inside"),
        ("envs/shop/self", ".", "links back to a folder that holds it"),
        ("artifacts/check/up", "../..", "links back to a folder that holds it"),
        ("tasks", "/tmp", "links to something outside the bundle; put a copy of it inside"),
    ],
)
def test_a_link_that_leads_out_or_nowhere_is_named(
    write_bundle: WriteBundle, link: str, target: str, line: str
) -> None:
    folder = write_bundle({"evals/quick.toml": None} if link == "tasks" else {})
    if link == "tasks":
        shutil.rmtree(folder / "tasks")
    (folder / link).symlink_to(target)
    assert f"{link}: {line}" in refusal(folder)


def test_a_link_out_of_the_bundle_is_no_fault_where_docker_would_not_look(write_bundle: WriteBundle) -> None:
    folder = write_bundle({"envs/shop/.dockerignore": ".venv\n"})
    (folder / "envs/shop/.venv/bin").mkdir(parents=True)
    (folder / "envs/shop/.venv/bin/python").symlink_to("/usr/bin/env")
    (folder / "elsewhere").symlink_to("/etc")
    assert load_bundle(folder).ignored == ("elsewhere",)


def test_a_pipe_is_named_and_not_waited_for(write_bundle: WriteBundle) -> None:
    folder = write_bundle()
    os.mkfifo(folder / "tasks/pipe.json")
    os.mkfifo(folder / "envs/shop/pipe")
    assert refusal(folder) == tuple(
        f"{path}: neither a regular file nor a folder" for path in ("envs/shop/pipe", "tasks/pipe.json")
    )


def test_a_name_that_is_not_utf8_is_named(write_bundle: WriteBundle) -> None:
    folder = write_bundle()
    Path(os.fsdecode(os.fsencode(folder) + b"/tasks/caf\xe9.json")).write_text("[]")
    assert refusal(folder) == (r"tasks/caf\udce9.json: the name isn't UTF-8",)


def test_every_problem_of_every_file_is_reported_at_once(write_bundle: WriteBundle) -> None:
    faults: dict[str, Any] = {
        "tasks/a.json": "{",
        "tasks/b.json": [{"id": "x"}],
        "evals/e.toml": 'tasks = ["nope"]',
        "envs/shop/env.toml": "zip = 1",
        "aliases.toml": "[",
    }
    lines = refusal(write_bundle(faults))
    assert [line.partition(":")[0] for line in lines] == sorted(faults, key=lambda path: path)


def test_a_task_with_problems_is_still_known_to_evals(write_bundle: WriteBundle) -> None:
    lines = refusal(write_bundle({"tasks/refund.json": "[]"}))
    assert lines == ("tasks/refund.json: has no steps",)


def test_a_byte_order_mark_and_windows_line_ends_do_no_harm(write_bundle: WriteBundle) -> None:
    bundle = load_bundle(
        write_bundle(
            {
                "tasks/t.json": b"\xef\xbb\xbf" + b'[\r\n{"id": "a", "type": "x"}]\r\n',
                "evals/quick.toml": b'\xef\xbb\xbftasks = ["t"]\r\n',
                "README.md": b"\xef\xbb\xbf# T\r\n",
            }
        )
    )
    assert bundle.description == "T"
    assert bundle.evals["quick"].tasks == ("t",)


def test_two_thousand_tasks_are_read_well_within_a_second(write_bundle: WriteBundle) -> None:
    prices = [round(20 + 0.01 * hour, 2) for hour in range(24)]
    load = {"id": "load", "type": "apply_server_config", "directives": [{"args": {"prices": prices}}]}
    names = [f"train-{number:04}" for number in range(2200)]
    files: dict[str, Any] = {f"tasks/{name}.json": [*STEPS, load] for name in names}
    files["evals/train.toml"] = f"tasks = {names!r}"
    folder = write_bundle(files)
    best = min(_timed(folder)[0] for _ in range(3))
    assert len(_timed(folder)[1].tasks) == 2201
    assert best < 1.0


def _timed(folder: Path) -> tuple[float, Bundle]:
    started = time.process_time()
    bundle = load_bundle(folder)
    return time.process_time() - started, bundle


FILES = ["tasks/t.json", "evals/e.toml", "envs/e/env.toml", "envs/e/agent-env.toml", "envs/e/s.py", "aliases.toml"]
FILES += ["artifacts/a/artifact.toml", "agents/g/agent.toml", "envs/e/Dockerfile", "envs/e/.dockerignore", "README.md"]
SCRAPS = ["", "[", "{", '[{"id": "a"}]', "[envs]", "a = 1\n", "type = ", '"multi"\n', "image = {ref = 'x'}\n", "\0"]
SCRAPS += ["\ud800", "tasks = [1]\n", "[[type]]\n", "environment_card(", "-" * 5000, "(" * 500, "\xff", "id = []\n"]


@given(
    st.dictionaries(
        st.sampled_from(FILES), st.lists(st.sampled_from(SCRAPS) | st.text(), max_size=4).map("".join), min_size=1
    )
)
@settings(max_examples=80, deadline=None)
def test_whatever_is_in_the_files_it_is_read_or_its_problems_are_named(files: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder, contextlib.suppress(BundleError):
        for path, text in files.items():
            file = Path(folder, path)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text.encode("utf-8", "surrogatepass"))
        load_bundle(folder)
