from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import docker
import pytest

from agent_env.bundle.model import Env
from agent_env.findings import Level
from agent_env.sandbox import docker_preflight
from agent_env.sandbox.conformance import conformance_env
from agent_env.sandbox.docker import DockerProvider
from agent_env.sandbox.docker_preflight import _addresses, _limits, _network_of_ours
from agent_env.sandbox.preflight import build, preflight

pytestmark = [pytest.mark.docker, pytest.mark.anyio]


@pytest.fixture
def env(sources: Path) -> Env:
    return conformance_env(sources)


@pytest.fixture
async def bridged(options: dict[str, Any]) -> AsyncIterator[DockerProvider]:
    provider = DockerProvider(**options, reach="bridge")
    yield provider
    await provider.aclose()


def with_egress(env: Env) -> Env:
    return replace(env, settings=replace(env.settings, network="egress"))


async def test_a_daemon_with_room_has_no_finding_and_makes_no_network(provider: DockerProvider, env: Env) -> None:
    assert [f for f in await preflight(provider, [env], places=4) if f.where != "docker"] == []


async def test_more_places_than_a_bridge_has_ports_are_refused(bridged: DockerProvider, env: Env) -> None:
    found = await docker_preflight.docker_findings(bridged, [env], 1024)
    (finding,) = [finding for finding in found if finding.where == "docker networks"]
    assert (finding.level, finding.problem) == (Level.ERROR, "one bridge carries 1023 containers, and 1024 are asked")


async def test_egress_that_can_not_be_guarded_is_a_warning(
    provider: DockerProvider, env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not [f for f in await preflight(provider, [with_egress(env)], places=1) if f.where.startswith("envs/")]
    monkeypatch.setattr(docker_preflight, "can_set_rules", lambda: False)
    (finding,) = [f for f in await preflight(provider, [with_egress(env)], places=1) if f.where.startswith("envs/")]
    assert finding.level is Level.WARNING
    assert "it can reach services of the daemon's machine" in finding.problem


async def test_a_missing_image_is_a_finding_of_its_env(provider: DockerProvider, env: Env) -> None:
    absent = replace(env, image_ref="agent-env-test-absent.invalid/nothing:1", digest="absent")
    prepared, (finding,) = await build(provider, [absent])
    assert prepared == {}
    assert finding.where == f"envs/{env.name}"
    assert "image agent-env-test-absent.invalid/nothing:1 is not here" in finding.problem
    assert finding.remedy.startswith("build or pull the image")


def test_addresses_are_counted_in_the_ipv4_subnet() -> None:
    def network(*subnets: str) -> dict[str, Any]:
        return {"IPAM": {"Config": [{"Subnet": subnet} for subnet in subnets]}}

    assert _addresses(network("fd00::/64", "172.20.0.0/16")) == 65_533
    assert _addresses(network("10.0.0.0/28")) == 13
    assert _addresses(network("fd00::/64")) is None
    assert _addresses({"IPAM": {"Config": None}}) is None


def test_what_the_daemon_can_not_limit_is_named() -> None:
    told = {"MemoryLimit": False, "PidsLimit": True, "CpuCfsQuota": True}
    (finding,) = _limits(told)
    assert finding.problem == "the daemon can't limit memory"


@pytest.mark.parametrize(("mode", "told"), [("bridge", "bridge"), ("host", None)])
def test_a_server_in_a_container_is_told_when_its_network_is_not_the_hosts(
    api: docker.APIClient,
    base_image: str,
    mark: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    told: str,
) -> None:
    config = api.create_host_config(network_mode=mode)
    ours = api.create_container(base_image, labels={"agent-env.test": mark}, host_config=config)["Id"]
    monkeypatch.setattr("socket.gethostname", lambda: ours[:12])
    try:
        assert _network_of_ours(api, tmp_path) == told
        assert _network_of_ours(api, tmp_path / "absent") is None
    finally:
        api.remove_container(ours)
