from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from stubs.stage import AGENT, ASK, ENV, GRADE, a_bundle, another_env, played, problems_of, refusals_of, staged

from agent_env.bundle import load_bundle
from agent_env.env.data import data_get
from agent_env.episode import Deadlines, EpisodeFailure
from agent_env.errors import FailureKind
from agent_env.steps.load import LONGEST, mime_type, time_limit

pytestmark = pytest.mark.integration

BOX = {"id": "box", "type": "deploy_sandbox", "sandbox_name": "box", "sandbox_mode": "vm"}
ORDERS = {"orders.json": '{"orders": [17]}', "artifact.toml": 'type = "environment"\nenvironment_name = "stub"\n'}


def load(**fields: Any) -> dict[str, Any]:
    return {"id": "load", "type": "load_artifact", **fields}


def text_of(path: str) -> str:
    return Path(path).read_text()


@pytest.mark.anyio
async def test_seed_data_goes_into_the_sandbox_and_then_through_the_data_plane(tmp_path: Path) -> None:
    steps = [ENV, load(env_id="stub", artifact_id="orders"), AGENT, ASK, GRADE]
    async with staged(a_bundle(tmp_path / "b", *steps, artifacts={"orders": ORDERS})) as start:
        episode = await start()
        turn = await episode.next_turn()
        (part,) = (await data_get(episode._context.envs["stub"].http, timeout=5))[0]["data"]["parts"]
        assert part["kind"] == "file"
        assert part["file"]["name"] == "orders.json"
        assert part["file"]["mimeType"] == "application/json"
        seen = urlsplit(part["file"]["uri"]).path
        assert seen.endswith("/data/orders.json")
        assert text_of(seen) == '{"orders": [17]}'
        await turn.end("")
        await episode.result()
        assert episode.timings["load_s"] > 0


@pytest.mark.anyio
async def test_each_load_drops_what_was_there(tmp_path: Path) -> None:
    steps = [ENV, load(env_id="stub", artifacts=[{"id": "orders"}, {"id": "more", "version": 3}]), AGENT, ASK, GRADE]
    more = {"more.csv": "a,b\n", "artifact.toml": 'type = "service"\nenvironment_name = "stub"\n'}
    async with staged(a_bundle(tmp_path / "b", *steps, artifacts={"orders": ORDERS, "more": more})) as start:
        episode = await start()
        await episode.next_turn()
        (part,) = (await data_get(episode._context.envs["stub"].http, timeout=5))[0]["data"]["parts"]
        assert (part["file"]["name"], part["file"]["mimeType"]) == ("more.csv", "text/csv")
        await episode.abandon("enough")


@pytest.mark.anyio
async def test_of_a_universe_each_env_gets_its_own_part(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    shop = {"shop.json": "{}", "artifact.toml": 'type = "environment"\nenvironment_name = "shop"\n'}
    both = {"artifact.toml": 'type = "environment_universe"\nenvironment_artifacts = ["orders", "shop-data"]\n'}
    steps = [ENV, load(env_id="stub", artifact_id="both"), AGENT, ASK, GRADE]
    artifacts = {"orders": ORDERS, "shop-data": shop, "both": both}
    async with staged(a_bundle(folder, *steps, artifacts=artifacts)) as start:
        episode = await start()
        await episode.next_turn()
        (part,) = (await data_get(episode._context.envs["stub"].http, timeout=5))[0]["data"]["parts"]
        assert part["file"]["name"] == "orders.json"
        await episode.abandon("enough")


@pytest.mark.anyio
async def test_seed_data_may_be_a_file_artifact_of_its_own(tmp_path: Path) -> None:
    data = {"artifact.toml": 'type = "environment"\nenvironment_name = "stub"\nfile = "raw"\n'}
    steps = [ENV, load(env_id="stub", artifact_id="data"), AGENT, ASK, GRADE]
    artifacts = {"raw": {"raw.txt": "x"}, "data": data}
    async with staged(a_bundle(tmp_path / "b", *steps, artifacts=artifacts)) as start:
        episode = await start()
        await episode.next_turn()
        (part,) = (await data_get(episode._context.envs["stub"].http, timeout=5))[0]["data"]["parts"]
        assert part["file"]["name"] == "raw.txt"
        await episode.abandon("enough")


@pytest.mark.anyio
async def test_files_go_into_a_sandbox_with_their_folders_and_modes(tmp_path: Path) -> None:
    steps = [
        BOX,
        load(sandbox_name="box", artifact_id="tree", destination_path="/srv/here"),
        {**load(sandbox_name="box", artifact_id="verify"), "id": "usual"},
        {**AGENT, "env_ids": []},
        ASK,
    ]
    script = tmp_path / "b" / "artifacts" / "tree" / "deep" / "er" / "run.sh"
    bundle = a_bundle(
        tmp_path / "b", *steps, artifacts={"tree": {"a.txt": "a", "deep/er/run.sh": "#!/bin/sh\necho ran"}}
    )
    script.chmod(0o755)
    async with staged(bundle) as start:
        episode = await start()
        turn = await episode.next_turn()
        box = episode._context.bare["box"]
        assert await box.get("/srv/here/a.txt") == b"a"
        ran = await box.exec([box.path("/srv/here/deep/er/run.sh")], timeout=10)
        assert (ran.exit_code, ran.stdout) == (0, b"ran\n")
        assert b"async def verify" in await box.get("/loaded/verify.py")
        await turn.end("")
        assert await episode.result() == {}
        assert not (await box.state()).running


@pytest.mark.anyio
async def test_files_go_into_an_env_too(tmp_path: Path) -> None:
    steps = [ENV, load(env_id="stub", artifact_id="verify", destination_path="/srv"), AGENT, ASK, GRADE]
    async with staged(a_bundle(tmp_path / "b", *steps)) as start:
        episode = await start()
        await episode.next_turn()
        assert b"async def verify" in await episode._context.envs["stub"].sandbox.get("/srv/verify.py")
        await episode.abandon("enough")


@pytest.mark.anyio
async def test_a_load_has_its_deadline(tmp_path: Path) -> None:
    steps = [ENV, load(env_id="stub", artifact_id="orders"), AGENT, ASK, GRADE]
    bundle = a_bundle(tmp_path / "b", *steps, artifacts={"orders": ORDERS}, env_vars={"STUB_DATA_DELAY": "30"})
    async with staged(bundle, deadlines=Deadlines(load=0.3)) as start:
        episode = await start()
        with pytest.raises(EpisodeFailure, match="step 'load': artifact 'orders' into env 'stub'") as caught:
            await episode.result()
        assert caught.value.kind is FailureKind.LOAD_TIMEOUT


@pytest.mark.anyio
async def test_a_load_that_the_env_refuses_names_the_step(tmp_path: Path) -> None:
    steps = [ENV, load(env_id="stub", artifact_id="orders"), AGENT, ASK, GRADE]
    bundle = a_bundle(tmp_path / "b", *steps, artifacts={"orders": ORDERS}, env_vars={"STUB_OPERATIONS": "data/get"})
    async with staged(bundle) as start:
        episode = await start()
        with pytest.raises(EpisodeFailure, match=r"step 'load': data/reset: .*not served") as caught:
            await episode.result()
        assert caught.value.kind is FailureKind.LOAD_FAILED


@pytest.mark.parametrize(
    ("base", "size", "expected"),
    [
        (900.0, 0, 900.0),
        (900.0, 500_000_000, 1500.0),
        (900.0, 10_000_000_000, LONGEST),
        (5000.0, 10_000_000_000, 5000.0),
        (2.0, 1_000_000_000, 1202.0),
    ],
)
def test_larger_loads_have_more_time(base: float, size: int, expected: float) -> None:
    assert time_limit(base, size) == expected


def test_an_unknown_kind_of_file_is_bytes() -> None:
    assert mime_type("x.unheard-of") == "application/octet-stream"


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"env_id": "stub"}, "names nothing to load: give artifact_id or artifacts"),
        ({"artifact_id": "orders"}, "names no target: give env_id or sandbox_name"),
        ({"artifact_id": "orders", "env_id": "stub", "sandbox_name": "box"}, "give one target: env_id or sandbox_name"),
        ({"artifact_id": "verify", "sandbox_name": "x"}, "sandbox_name: no earlier deploy_sandbox step deploys 'x'"),
        ({"artifact_id": "order", "env_id": "stub"}, "artifact_id: no artifact 'order' in this bundle"),
        ({"artifacts": [{"id": "order"}], "env_id": "stub"}, "artifacts.0.id: no artifact 'order' in this bundle"),
        ({"artifacts": [{}], "env_id": "stub"}, "artifacts.0.id is required"),
        (
            {"artifact_id": "orders", "artifacts": [{"id": "orders"}], "env_id": "stub"},
            "give either artifact_id or artifacts",
        ),
        (
            {"artifact_id": "others", "env_id": "stub"},
            "artifact 'others' holds data for 'shop', and env 'stub' serves 'stub'",
        ),
        (
            {"artifact_id": "verify", "sandbox_name": "box", "destination_path": "srv"},
            "destination_path must be absolute, not 'srv'",
        ),
        (
            {"artifact_id": "orders", "env_id": "stub", "env_step_id": "box"},
            "env_step_id: 'box' is no earlier step that deploys 'stub'",
        ),
    ],
)
def test_a_wrong_load_is_named(tmp_path: Path, fields: dict[str, Any], expected: str) -> None:
    others = {"d.json": "{}", "artifact.toml": 'type = "environment"\nenvironment_name = "shop"\n'}
    problems = problems_of(tmp_path / "b", ENV, BOX, load(**fields), artifacts={"orders": ORDERS, "others": others})
    assert any(line.startswith(f"step 'load': {expected}") for line in problems), problems


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"urls": ["http://x/y"], "sandbox_name": "box"}, "urls is not run here: put the files into an artifact"),
        ({"artifact_from_step_id": "q", "sandbox_name": "box"}, "artifact_from_step_id is not run here"),
        ({"artifact_id": "verify", "agent_name": "a"}, "agent_name: agents have no sandbox of their own here"),
        ({"artifact_id": "orders", "sandbox_name": "box"}, "artifact 'orders' is data for an env (environment)"),
        ({"artifact_id": "tool", "sandbox_name": "box"}, "artifact 'tool' is a cli, which is not loaded here"),
        (
            {"artifact_id": "verify", "sandbox_name": "box", "container_name": "c"},
            "container_name is not run here: sandboxes run no containers",
        ),
    ],
)
def test_what_is_not_loaded_here_is_refused_by_name(tmp_path: Path, fields: dict[str, Any], expected: str) -> None:
    tool = {"t.sh": "", "artifact.toml": 'type = "cli"\ncommand_name = "t"\nentrypoint = "t.sh"\n'}
    refusals = refusals_of(tmp_path / "b", ENV, BOX, load(**fields), artifacts={"orders": ORDERS, "tool": tool})
    assert any(line.startswith(f"step 'load': {expected}") for line in refusals), refusals


@pytest.mark.anyio
async def test_two_envs_are_loaded_each_with_its_own(tmp_path: Path) -> None:
    folder = tmp_path / "b"
    shop = {"shop.json": "{}", "artifact.toml": 'type = "environment"\nenvironment_name = "shop"\n'}
    other = [{"name": "buy", "inputSchema": {"type": "object"}}]
    steps = [
        ENV,
        {"id": "shop", "type": "deploy_env", "env_id": "shop"},
        load(env_id="stub", artifact_id="orders"),
        {**load(env_id="shop", artifact_id="shop-data"), "id": "load-shop"},
        AGENT,
        ASK,
        GRADE,
    ]
    another_env(folder, "shop", env_vars={"STUB_TOOLS": json.dumps(other)})
    a_bundle(folder, *steps, artifacts={"orders": ORDERS, "shop-data": shop})
    async with staged(load_bundle(folder)) as start:
        episode = await start()
        turn = await episode.next_turn()
        assert "buy" not in {tool.name for tool in turn.list()}
        for name, file in (("stub", "orders.json"), ("shop", "shop.json")):
            (part,) = (await data_get(episode._context.envs[name].http, timeout=5))[0]["data"]["parts"]
            assert part["file"]["name"] == file
        await turn.call("submit", {"value": 1.0})
        await turn.end("")
        assert await played(episode) == {"grade": 1.0}
