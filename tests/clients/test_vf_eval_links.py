"""What the real vf-eval makes of a failing OpenEnv server, of full places, and of its own end in mid-rollout."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from clients.chain import Server
from clients.scripted_model import Call, Conversation, Reply, ScriptedModel, script
from clients.stub_chain import stub_chain, stub_rows
from clients.verifiers_venv import VerifiersClient
from clients.vf_eval import play, published_config
from stubs.stub_openenv import Knobs, StubOpenEnv

pytestmark = [pytest.mark.verifiers, pytest.mark.integration, pytest.mark.timeout(400)]

looks = script(Reply(calls=(Call.of("look", {"at": "it"}),)))

AT_SEED: Mapping[str, Knobs] = {
    "is-refused-before-it-starts": Knobs(fail={"reset": ("image_missing", "there is no such image")}),
    "drops-the-reset": Knobs(drop=frozenset({"reset"})),
}
LATER: Mapping[str, tuple[Knobs, str]] = {
    "drops-the-start": (Knobs(drop=frozenset({"start"})), "provider_unavailable"),
    "drops-a-call": (Knobs(drop=frozenset({"tool"})), "provider_unavailable"),
    "drops-the-grading": (Knobs(drop=frozenset({"verify"})), "provider_unavailable"),
    "fails-the-start": (Knobs(fail={"start": ("deploy_failed", "it did not build")}), "deploy_failed"),
    "fails-a-call": (Knobs(fail={"tool": ("provider_oom_killed", "it took too much")}), "provider_oom_killed"),
    "fails-the-grading": (Knobs(fail={"verify": ("judge_failed", "the judge was silent")}), "judge_failed"),
    "rewards-nan": (Knobs(reward=float("nan")), "env_protocol_error"),
    "rewards-infinity": (Knobs(reward=float("inf")), "env_protocol_error"),
    "rewards-a-text": (Knobs(reward="high"), "score_not_finite"),
    "rewards-nothing": (Knobs(reward=None), "no_score"),
}


def test_faults_of_the_openenv_server_fail_the_rollout(
    verifiers_client: VerifiersClient, tmp_path: Path, say: Callable[[str], None]
) -> None:
    knobs = {**AT_SEED, **{name: knob for name, (knob, _) in LATER.items()}, "is-well": Knobs()}
    stub = StubOpenEnv(by_index=dict(enumerate(knobs.values())))
    with stub_chain(stub, tmp_path, "--masked-as-error") as server:
        run = play(verifiers_client, server.url, tmp_path / "eval", stub_rows(list(knobs)), dict.fromkeys(knobs, looks))
        say(f"vf-eval in {run.seconds:.1f} s: {run.headline}")
        masked = dict(re.findall(r"verify of train-(\d+) answered with an error: (\w+):", server.log.read_text()))
        rollouts = {rollout.prompt: rollout for rollout in run.rollouts}
        assert {name: masked.get(f"{list(knobs).index(name):04}") for name in LATER} == {
            name: kind for name, (_, kind) in LATER.items()
        }
        for name, rollout in rollouts.items():
            assert (rollout.ok, rollout.reward) == ((True, 0.75) if name == "is-well" else (False, None)), name
            where = "task setup" if name in AT_SEED else "scoring"
            assert name == "is-well" or re.search(rf"{where}: HTTPStatusError: .*'503", rollout.errors[0]), rollout
        assert run.mean == 0.75
        assert status(server)["open"] == 0


def test_without_the_flag_a_masked_rollout_is_marked_and_verifiers_counts_it_as_zero(
    verifiers_client: VerifiersClient, tmp_path: Path
) -> None:
    judge, disk = Knobs(fail={"verify": ("judge_failed", "silent")}), Knobs(fail={"reset": ("disk_full", "full")})
    stub = StubOpenEnv(by_index={0: judge, 1: disk})
    with stub_chain(stub, tmp_path) as server:
        run = play(verifiers_client, server.url, tmp_path / "eval", stub_rows(["a", "b"]), {"a": looks, "b": looks})
    assert [(rollout.ok, rollout.reward) for rollout in run.rollouts] == [(True, 0.0)] * 2
    assert [rollout.metrics["mask_sample"] for rollout in run.rollouts] == [1.0] * 2
    assert [rollout.info["episode"]["kind"] for rollout in run.rollouts] == ["judge_failed", "disk_full"]
    assert [rollout.info["failure_kind"] for rollout in run.rollouts] == ["judge_failed", "provider_quota_exhausted"]


def test_seeds_that_find_no_place_in_time_are_refused_and_take_none(
    verifiers_client: VerifiersClient, tmp_path: Path
) -> None:
    def slow(conversation: Conversation) -> Reply:
        time.sleep(6)
        return Reply("Done.")

    stub = StubOpenEnv(places=1)
    with stub_chain(stub, tmp_path, "--masked-as-error", "--seed-wait=3") as server:
        rows = stub_rows(["a", "b", "c"])
        run = play(verifiers_client, server.url, tmp_path / "eval", rows, dict.fromkeys("abc", slow))
        seen = status(server)
    failed = [rollout for rollout in run.rollouts if not rollout.ok]
    assert len(failed) == 2
    for rollout in failed:
        assert re.search(r"task setup: HTTPStatusError: .*'503", rollout.errors[0])
    assert run.mean == 0.75
    assert (seen["seeded"], seen["verified"], seen["refused"], seen["open"]) == (1, 1, 2, 0)
    assert stub.ended == 1, "a refused seed took a place later on"


def test_an_interrupt_in_the_middle_of_a_call_leaves_no_session(
    verifiers_client: VerifiersClient, tmp_path: Path
) -> None:
    stub = StubOpenEnv(Knobs(tool_s=4))
    with stub_chain(stub, tmp_path, "--masked-as-error", "--idle-timeout=3", "--first-call-timeout=120") as server:
        with ScriptedModel({"a": looks}).serving() as model:
            data = tmp_path / "rows.jsonl"
            data.write_text(json.dumps(stub_rows(["a"])[0]))
            config = published_config(tmp_path, model.url, server.url, data)
            process = subprocess.Popen(
                [verifiers_client.vf_eval, "@", config.name, "-n", "1", "-r", "1", "--no-push"],
                cwd=tmp_path,
                env=verifiers_client.environment | {"VLLM_API_KEY": "unused"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                until(lambda: bool(stub.calls), 90)
                process.send_signal(signal.SIGINT)
                assert process.wait(60) == 130
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
        until(lambda: status(server)["open"] == 0, 20)
        assert (status(server)["seeded"], status(server)["reclaimed"]) == (1, 1)
        assert stub.running == 0


def test_a_client_that_fails_after_its_seed_leaves_no_session(
    verifiers_client: VerifiersClient, tmp_path: Path
) -> None:
    broken = tmp_path / "bin" / "uv"
    broken.parent.mkdir()
    broken.write_text('#!/bin/sh\ncase "$*" in *--help*) echo --script;; *) exit 9;; esac\n')
    broken.chmod(0o755)
    environment = verifiers_client.environment | {
        "PATH": f"{broken.parent}{os.pathsep}{verifiers_client.environment['PATH']}"
    }
    stub = StubOpenEnv()
    with stub_chain(stub, tmp_path, "--masked-as-error", "--idle-timeout=2") as server:
        client = replace(verifiers_client, environment=environment)
        run = play(client, server.url, tmp_path / "eval", stub_rows(["a"]), {"a": looks})
        (rollout,) = run.rollouts
        assert not rollout.ok
        assert rollout.errors[0].startswith("HarnessError: ")
        until(lambda: status(server)["open"] == 0, 20)
        assert (status(server)["seeded"], status(server)["reclaimed"]) == (1, 1)
        assert stub.running == 0


def status(server: Server) -> Any:
    with urllib.request.urlopen(f"{server.url}/status", timeout=10) as answer:
        return json.load(answer)


def until(true: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not come true in time"
        time.sleep(0.1)
