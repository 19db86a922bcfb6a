"""The real vf-eval against a resources server that asks for a token: `headers` of the task's config carries it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from clients.scripted_model import Call, Reply, ScriptedModel, script
from clients.stub_chain import stub_chain, stub_rows
from clients.verifiers_venv import VerifiersClient
from clients.vf_eval import Run, published_config, run_vf_eval
from stubs.stub_openenv import StubOpenEnv

pytestmark = [pytest.mark.verifiers, pytest.mark.integration, pytest.mark.timeout(400)]

TOKEN = "the-token-that-the-server-asks-for"
SENT: Mapping[str, str | None] = {"right": f"Bearer {TOKEN}", "wrong": "Bearer another", "absent": None}


def test_the_right_token_plays_and_a_wrong_or_absent_one_fails_the_rollout(
    verifiers_client: VerifiersClient, tmp_path: Path, say: Callable[[str], None]
) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in stub_rows(["look around"])))
    policies = {"look around": script(Reply(calls=(Call.of("look", {"at": "it"}),)))}
    with stub_chain(StubOpenEnv(), tmp_path, "--token-file", str(tmp_path / "token")) as server:
        with ScriptedModel(policies).serving() as model:

            def play(name: str, header: str | None) -> Run:
                (tmp_path / name).mkdir()
                config = published_config(tmp_path / name, model.url, server.url, rows)
                if header is not None:
                    url = f'resources_url = "{server.url}"'
                    text = config.read_text()
                    assert text.count(url) == 1
                    config.write_text(text.replace(url, f'{url}\nheaders = {{ Authorization = "{header}" }}'))
                run = run_vf_eval(verifiers_client, config, "-n", "1", timeout=180)
                say(f"vf-eval with the {name} token in {run.seconds:.1f} s: {run.headline}")
                return run

            with ThreadPoolExecutor() as pool:
                runs = dict(zip(SENT, pool.map(play, SENT, SENT.values()), strict=True))
        said = server.said
    (rollout,) = runs["right"].rollouts
    assert (rollout.ok, rollout.reward, rollout.tool_texts) == (True, 0.75, ('{"saw": {"at": "it"}}',))
    for name in ("wrong", "absent"):
        (rollout,) = runs[name].rollouts
        assert (rollout.ok, rollout.reward) == (False, None)
        assert "401" in rollout.errors[0], rollout.errors
    assert TOKEN not in said
