"""The page of the metrics names what the servers tell, and nothing else."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from stubs.gym_client import bench
from stubs.scraped import scraped

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
SOURCE = Path(__file__).parents[2] / "src" / "agent_env"
_SUFFIXES = re.compile(r"_(bucket|count|sum)$")


def named(section: str) -> set[str]:
    """The metrics that a section of the page names."""
    text = next(part for part in PAGE.read_text().split("\n## ") if part.startswith(section))
    return set(re.findall(r"`(agent_env_\w+)`", text))


@pytest.mark.anyio
async def test_what_the_resources_server_tells_is_on_the_page() -> None:
    async with bench() as b:
        await b.seeded()
        text = (await b.http.get("/metrics")).text
    told = {_SUFFIXES.sub("", name) for name, _ in scraped(text)} | set(re.findall(r"# TYPE (agent_env_\w+)", text))
    assert {name for name in told if name.startswith("agent_env_")} == named("Both") | named("Resources")


def test_what_the_openenv_server_tells_is_on_the_page() -> None:
    source = (SOURCE / "openenv" / "seen.py").read_text()
    keys = re.findall(r'^    "(\w+)": "', source.split("_CAPACITY = {")[-1], re.M)
    told = {*re.findall(r'"(agent_env_\w+)"', source), *(f"agent_env_{key}" for key in keys)}
    assert told == named("OpenEnv")
