"""What this folder's server answers while no bundle is served: run by `gym env test`, or `pytest` in the folder."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml
from app import AgentEnvConfig, AgentEnvServer
from fastapi.testclient import TestClient
from nemo_gym.base_resources_server import BaseRunRequest
from nemo_gym.server_utils import ServerClient

FOLDER = Path(__file__).resolve().parents[1]
NAME = "$name"
RESPONSE = {"id": "r", "output": [], "object": "response"}


def rows(file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (FOLDER / "data" / file).read_text().splitlines()]


@pytest.fixture
def client() -> Iterator[TestClient]:
    instance = yaml.safe_load((FOLDER / "configs" / f"{NAME}.yaml").read_text())[f"{NAME}_resources_server"]
    settings = instance["resources_servers"][NAME]
    config = AgentEnvConfig(**settings, host="127.0.0.1", port=1, name=f"{NAME}_resources_server")
    server = AgentEnvServer(config=config, server_client=MagicMock(spec=ServerClient))
    with TestClient(server.setup_webserver()) as running:
        yield running


def test_every_answer_sets_a_cookie(client: TestClient) -> None:
    for path in ("/", "/reverify_mode"):
        answer = client.get(path)
        assert answer.status_code == 200
        assert "set-cookie" in answer.headers


def test_a_call_without_a_session_is_told_so(client: TestClient) -> None:
    answer = client.post("/any_tool", json={})
    assert answer.status_code == 404
    assert "belongs to no session" in answer.text


def test_a_rollout_that_the_server_does_not_know_is_masked_and_echoed(client: TestClient) -> None:
    row = rows("example.jsonl")[0]
    answer = client.post("/verify", json=row | {"response": RESPONSE}).json()
    assert (answer["reward"], answer["mask_sample"], answer["failure_kind"]) == (0.0, True, "session_lost")
    assert answer["responses_create_params"] == row["responses_create_params"]
    assert answer["response"] == RESPONSE


def test_a_session_that_was_closed_is_not_seeded_again(client: TestClient) -> None:
    session = {"resources_session_id": "one", "episode_id": {"rollout_id": "0-0", "attempt": 0}}
    assert client.post("/close_session", json=session).json() == {"resources_session_id": "one"}
    task = {"task_id": {"taskset": NAME, "task_id": "0"}, "task_data": rows("example.jsonl")[0]}
    assert client.post("/seed_session", json=session | task).status_code == 409


def test_a_row_without_its_task_is_refused(client: TestClient) -> None:
    answer = client.post("/seed_session", json={"responses_create_params": {"input": "Play."}})
    assert answer.status_code == 422
    assert "split" in answer.json()["detail"]


def test_nemo_gym_takes_the_rows() -> None:
    examples = rows("example.jsonl")
    assert len(examples) == 5
    for row in examples:
        BaseRunRequest.model_validate(row)
        assert row["agent_ref"]["name"] == f"{NAME}_simple_agent"
