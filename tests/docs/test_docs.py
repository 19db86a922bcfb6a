"""The documentation says what is so: commands parse, files exist, tables agree with the code, the site builds."""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import json
import re
import string
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from stubs.pages import DOCS, README, REPOSITORY, Block, blocks, our_commands, pages

from agent_env.cli import app
from agent_env.deploy import ray_servers
from agent_env.errors import FailureKind
from agent_env.examples.gridsim.battery import greedy_schedule, score
from agent_env.examples.gridsim.prices import synthetic_days
from agent_env.training.nemo_gym import cli as nemo_gym

BLOCKS = [block for page in pages() for block in blocks(page)]
MARKS = ("run", "covered", "parsed", "gpu")


def ids(block: Block) -> str:
    return block.where


# Commands.


def check_agent_env(words: list[str]) -> None:
    command: Any = typer.main.get_command(app)
    while nested := getattr(command, "commands", None):
        assert words, "it names no command"
        assert words[0] in nested, f"there is no command {words[0]!r}"
        command, words = nested[words[0]], words[1:]
    if "--help" not in words:
        command.make_context(command.name, [word for word in words if word != "--debug"])


def parser_of(word: str) -> Any:
    if word not in nemo_gym._COMMANDS:
        return nemo_gym._parser()
    module, _, _ = nemo_gym._COMMANDS[word]
    return importlib.import_module(module)._parser()


def check_nemo_gym(words: list[str]) -> None:
    word = words[0] if words else ""
    if "--help" not in words:
        parser_of(word).parse_args(words[1:] if word in nemo_gym._COMMANDS else words)


def test_every_command_of_ours_parses() -> None:
    seen = 0
    for where, words in our_commands():
        seen += 1
        try:
            if words[0] == "agent-env":
                check_agent_env(words[1:])
            elif words[2] == "agent_env.training.nemo_gym":
                check_nemo_gym(words[3:])
            elif words[2] == "agent_env.deploy.ray_servers":
                ray_servers._parser().parse_args(" ".join(words[3:]).partition(" -- ")[0].split())
            else:
                check_agent_env(words[3:])
        except (Exception, SystemExit) as error:
            pytest.fail(f"{where}: {' '.join(words)}: {error!r}")
    assert seen > 40


def our_flags() -> set[str]:
    found = {"--help", "--debug", "--version"}
    todo: list[Any] = [typer.main.get_command(app)]
    while todo:
        command = todo.pop()
        todo += (getattr(command, "commands", None) or {}).values()
        found |= {name for parameter in command.params for name in parameter.opts}
    for word in ("", *nemo_gym._COMMANDS):
        found |= {name for action in parser_of(word)._actions for name in action.option_strings}
    found |= {name for action in ray_servers._parser()._actions for name in action.option_strings}
    return found


FOREIGN = {
    # vLLM, gym, pip, docker, git, vf-eval, and our own example scripts
    *("--enable-auto-tool-choice", "--tool-call-parser", "--search-dir", "--no-serve", "--data-only", "--show"),
    *("--url", "--seeds", "--steps", "--eval-days"),
    *("--pid", "--rm", "--network", "--agent"),
    *("--ignore-requires-python", "--no-push", "--model", "--resources-server"),
}


def test_every_flag_that_the_text_names_exists() -> None:
    known = our_flags() | FOREIGN
    for page in pages():
        prose = re.sub(r"```.*?```", "", page.read_text("utf-8"), flags=re.DOTALL)
        for code in re.findall(r"`([^`]+)`", prose):
            for flag in re.findall(r"(?:^|\s)(--[a-z][a-z-]+)", code):
                if code.startswith(("gym ", "docker ", "uv ", "pip ", "git ", "python examples/", "vllm ")):
                    continue
                assert flag in known, f"{page.name}: `{code}`: no command has {flag}"


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "bash"], ids=ids)
def test_a_block_of_commands_says_who_runs_it(block: Block) -> None:
    assert block.mark in MARKS, f"{block.where}: put <!-- run -->, covered, parsed or gpu before it"
    if block.mark == "covered":
        assert (REPOSITORY / block.told).is_file(), f"{block.where}: there is no {block.told}"
    if block.mark == "gpu":
        first = block.text.splitlines()[0]
        assert first.startswith("#"), f"{block.where}: its first line must say that it needs GPUs"
        assert "GPU" in first


def test_gyms_commands_are_those_of_the_written_readme() -> None:
    """Which tests/clients/test_nemo_gym_cli.py runs."""
    source = REPOSITORY / "src/agent_env/training/nemo_gym/template/files/README.md"
    name, out = "gridsim_v1", "gym-root"
    readme = string.Template(source.read_text("utf-8")).safe_substitute(
        name=name,
        out=out,
        path=f"{out}/resources_servers/{name}",
        agent=f"{name}_simple_agent",
        example_split="eval",
        example_type="validation",
    )
    written = {" ".join(line.split()) for line in readme.splitlines() if line.startswith("gym ")}
    shown = [" ".join(c.split()) for block in BLOCKS for c in block.commands if c.startswith("gym ")]
    assert len(shown) >= 4
    assert set(shown) <= written


# Files, data, other languages.


OF_OTHERS = {
    "examples/nemo_gym/grpo_workplace_assistant_nemotron_nano_v2_9b.yaml",
    "examples/nemo_gym/run_grpo_nemo_gym.py",
}
"""in NeMo RL's checkout"""


def test_files_that_are_named_exist() -> None:
    pattern = re.compile(
        r"\b((?:examples|deploy|docs|scripts|benchmarks|tests|src)/[A-Za-z0-9_./-]+\.(?:py|toml|md|svg|json|yaml))\b"
    )
    for page in pages():
        for name in pattern.findall(page.read_text("utf-8")):
            assert name in OF_OTHERS or (REPOSITORY / name).exists(), f"{page.name}: there is no {name}"


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if block.language in ("toml", "json", "yaml", "python")], ids=ids
)
def test_a_block_is_valid_in_its_language(block: Block) -> None:
    match block.language:
        case "toml":
            tomllib.loads(block.text)
        case "json":
            json.loads(block.text)
        case "yaml":
            yaml.safe_load(block.text)
        case "python":
            compile(block.text, block.where, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.mark == "excerpt"], ids=ids)
def test_an_excerpt_says_what_the_file_says(block: Block) -> None:
    shown, whole = tomllib.loads(block.text), tomllib.loads((REPOSITORY / block.told).read_text("utf-8"))
    assert is_part(shown, whole), f"{block.where} differs from {block.told}"


def is_part(shown: Any, whole: Any) -> bool:
    if isinstance(shown, dict):
        return isinstance(whole, dict) and all(is_part(value, whole.get(key)) for key, value in shown.items())
    if isinstance(shown, list):
        return isinstance(whole, list) and all(is_part(*pair) for pair in zip(shown, whole, strict=False))
    return bool(shown == whole)


def test_no_page_names_this_machine_or_a_registry() -> None:
    wrong = re.compile(
        r"/work/|/root/|/home/|pypi\.org|files\.pythonhosted|registry\.npmjs|ghcr\.io|docker\.io|nvcr\.io"
    )
    for path in (*pages(), *REPOSITORY.glob("examples/*"), REPOSITORY / "mkdocs.yml", REPOSITORY / "CHANGELOG.md"):
        if path.is_file():
            assert not wrong.search(path.read_text("utf-8")), path.name


def test_the_readme_links_to_files_that_exist() -> None:
    for target in re.findall(r"\]\(([^)#]+)", README.read_text("utf-8")):
        assert target.startswith("http") or (REPOSITORY / target).exists(), target


@pytest.mark.integration
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert (tmp_path / "index.html").is_file()


# Tables.


def table(page: Path, heading: str) -> Iterator[list[str]]:
    """The rows below a heading and those under it, without heads and rules."""
    text = page.read_text("utf-8")
    level = heading.split()[0]
    start = text.index(f"\n{heading}\n") + len(heading) + 2
    end = re.search(rf"^{level} ", text[start:], re.MULTILINE)
    lines = text[start : start + end.start() if end else len(text)].splitlines()
    for above, line in zip(["", *lines], lines, strict=False):
        cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
        below_rule = bool(re.fullmatch(r"[|\-\s:]+", above)) and above.startswith("|")
        if line.startswith("|") and not re.fullmatch(r"[|\-\s:]+", line) and (below_rule or above.startswith("| ")):
            yield cells


UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
LIMITS = [row for row in table(DOCS / "sandboxes.md", "## Limits") if row[-1].startswith("`")]
NO_LIMITS = {
    # what is counted or looked at, not what bounds anything
    "agent_env.sandbox.fork_host.LOOK_EVERY",
}


def value_of(dotted: str) -> Any:
    """`limits.Deadlines.deploy` of agent_env: a constant, or the default of a dataclass's field."""
    parts = dotted.split(".")
    for length in range(len(parts) - 1, 0, -1):
        try:
            found: Any = importlib.import_module("agent_env." + ".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            if dataclasses.is_dataclass(found):
                return next(field.default for field in dataclasses.fields(found) if field.name == name)
            found = getattr(found, name)
        return found
    raise AssertionError(f"there is no agent_env.{dotted}")


@pytest.mark.parametrize("row", LIMITS, ids=lambda row: row[-1].strip("`"))
def test_a_limit_is_what_the_code_says(row: list[str]) -> None:
    value, told = value_of(row[-1].strip("`")), row[1]
    if value is None:
        assert not told[0].isdigit(), "it has no number of its own"
        return
    number, _, unit = told.partition(" ")
    assert value == float(number) * UNITS.get(unit, 1)


def test_every_deadline_of_an_episode_and_every_limit_of_serve_is_in_the_table() -> None:
    from agent_env.limits import Deadlines
    from agent_env.training.nemo_gym.options import ServeOptions

    listed = {row[-1].strip("`") for row in LIMITS}
    needed = {f"limits.Deadlines.{field.name}" for field in dataclasses.fields(Deadlines)}
    numbers = [f for f in dataclasses.fields(ServeOptions) if f.type in ("float", "int", "float | None")]
    other = {"port", "verify_timeout", "deploy_timeout", "load_timeout"}  # told with tool_timeout, or no limits
    needed |= {f"training.nemo_gym.options.ServeOptions.{f.name}" for f in numbers if f.name not in other}
    assert needed <= listed, needed - listed


def test_every_time_out_of_the_package_is_in_the_table() -> None:
    """Module constants whose name says that they bound something."""
    listed = {f"agent_env.{row[-1].strip('`')}" for row in LIMITS}
    pattern = re.compile(r"^([A-Z][A-Z_]*(?:TIMEOUT|_LIMIT|LONGEST_LIFE)|MAX_[A-Z_]+|TRIES)\b[^=\n]*= ", re.MULTILINE)
    internal = {
        # of our own processes among each other, which answer in milliseconds
        "agent_env.sandbox.fork_host.ASK_TIMEOUT",
        "agent_env.env.mcp.NOTIFY_TIMEOUT",
        "agent_env.env.mcp.CLOSE_TIMEOUT",
        "agent_env.env.http.MAX_REDIRECTS",
        "agent_env.env.jsontext.MAX_DEPTH",
        "agent_env.bundle.names.MAX_ID_BYTES",
        "agent_env.steps.rubrics.TRIES",
    }
    source = REPOSITORY / "src"
    for path in sorted(source.rglob("*.py")):
        module = ".".join(path.relative_to(source).with_suffix("").parts)
        if module.startswith("agent_env.commands."):  # for one terminal: docs/cli.md
            continue
        for name in pattern.findall(path.read_text("utf-8")):
            dotted = f"{module}.{name}"
            assert dotted in listed | internal, f"{dotted}: add it to the table of docs/sandboxes.md"


def test_no_answer_takes_as_long_as_clients_wait() -> None:
    from agent_env.training.nemo_gym.options import ServeOptions

    assert ServeOptions().longest_answer < 600


def test_the_keys_of_agent_env_toml_are_all_told() -> None:
    from agent_env.bundle.model import EnvSettings

    told = {
        key
        for row in table(DOCS / "sandboxes.md", "## What an env may set")
        for key in re.findall(r"`([a-z_]+)`", row[0])
    }
    assert told == {field.name for field in dataclasses.fields(EnvSettings)}


def test_every_failure_kind_has_its_line() -> None:
    rows = {row[0].strip("`"): row for row in table(DOCS / "troubleshooting.md", "## Failure kinds")}
    assert set(rows) == {kind.value for kind in FailureKind}
    for kind in FailureKind:
        assert rows[kind.value][1].strip("`") == kind.gym_word
        assert len(rows[kind.value]) == 5
        for flag in re.findall(r"--[a-z-]+", kind.remedy):
            assert flag in rows[kind.value][4], f"{kind}: the remedy names {flag}"


def test_the_share_of_groups_that_faults_hit() -> None:
    rows = list(table(DOCS / "training" / "masking.md", "## Why it matters"))
    assert len(rows) == 4
    for share, *groups in rows:
        fault = float(share.removesuffix(" %")) / 100
        for told, size in zip(groups, (8, 16), strict=True):
            assert round(100 * (1 - (1 - fault) ** size)) == int(told.removesuffix(" %"))
    assert round(100 * (1 - 0.97**8)) == 22


def test_greedy_earns_what_the_page_says() -> None:
    told = next(row for row in table(DOCS / "gridsim.md", "## Players without a model") if row[0] == "`greedy`")[2]
    means = []
    for split in ("train", "eval"):
        days = [day for day in synthetic_days() if day.split == split]
        means.append(sum(score(day.prices, greedy_schedule(day.prices)) for day in days) / len(days))
    assert told == ", ".join(f"{mean:.3f}" for mean in means)


def test_the_summary_lines_that_are_shown_are_the_servers_own() -> None:
    from agent_env.training.nemo_gym.tally import Tally

    words = re.sub(r"\d+(\.\d+)?", "0", Tally(lambda: 0.0).summary(0))
    shown = [line for block in BLOCKS for line in block.text.splitlines() if line.startswith("seeded ")]
    assert len(shown) >= 2
    assert {re.sub(r"\d+(\.\d+)?", "0", line) for line in shown} == {words}


def test_the_picture_has_a_title_and_a_description_and_loads_nothing() -> None:
    text = (DOCS / "img" / "rollout.svg").read_text("utf-8")
    assert "<title" in text
    assert "<desc" in text
    assert "prefers-color-scheme: dark" in text
    assert "href" not in text.replace("http://www.w3.org/2000/svg", "")


def test_the_pages_of_the_python_reference_name_what_exists() -> None:
    names = re.findall(r"^::: (\S+)", (DOCS / "reference" / "python.md").read_text("utf-8"), re.MULTILINE)
    assert len(names) > 10
    for name in names:
        module, _, attribute = name.rpartition(".")
        found = getattr(importlib.import_module(module), attribute)
        assert inspect.getdoc(found), name
