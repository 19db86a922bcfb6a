"""What becomes of an episode whose grader misbehaves, in this process and through an OpenEnv server."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from stubs.openenv_client import connected
from stubs.serving import serving
from stubs.stage import AGENT, ASK, ENV, GRADE, played, staged
from stubs.stub_bundle import write_stub_bundle

from agent_env.bundle import load_bundle
from agent_env.episode import Deadlines, EpisodeFailure
from agent_env.openenv import build_app

pytestmark = [pytest.mark.anyio, pytest.mark.integration]

VERIFY_TIMEOUT = 4.0

GRADERS = {
    "raises": "async def verify(url):\n    raise RuntimeError('the grader is broken')\n",
    "does-not-import": "import no_such_module\n\n\nasync def verify(url):\n    return []\n",
    "has-no-verify": "async def check(url):\n    return []\n",
    "is-no-python": "def verify(\n",
    "blocks": "import time\n\n\nasync def verify(url):\n    time.sleep(600)\n",
    "awaits-for-ever": "import asyncio\n\n\nasync def verify(url):\n    await asyncio.sleep(600)\n",
    "blocks-signals": (
        "import signal\n\n\nasync def verify(url):\n    for number in (1, 2, 15):\n"
        "        signal.signal(number, signal.SIG_IGN)\n    while True:\n        pass\n"
    ),
    "returns-nan": "async def verify(url):\n    return [{'id': 'x', 'result': True, 'score': float('nan')}]\n",
    "returns-infinity": "async def verify(url):\n    return [{'id': 'x', 'result': True, 'score': 1e400}]\n",
    "returns-a-text": "async def verify(url):\n    return [{'id': 'x', 'result': True, 'score': 'high'}]\n",
    "returns-none": "async def verify(url):\n    return None\n",
    "returns-no-rows": "async def verify(url):\n    return []\n",
    "prints-100-mb": (
        "async def verify(url):\n    for _ in range(1000):\n        print('x' * 100_000)\n"
        "    return [{'id': 'x', 'result': True, 'score': 1.0}]\n"
    ),
    "returns-100-mb": "async def verify(url):\n    return [{'id': 'x' * 100_000_000, 'result': True}]\n",
    "exits": "import os\n\n\nasync def verify(url):\n    os._exit(7)\n",
    "kills-itself": "import os\n\n\nasync def verify(url):\n    os.kill(os.getpid(), 9)\n",
    "kills-its-group": "import os\n\n\nasync def verify(url):\n    os.killpg(os.getpgid(0), 9)\n",
    "raises-system-exit": "import sys\n\n\nasync def verify(url):\n    sys.exit(0)\n",
    "closes-everything": "import os\n\n\nasync def verify(url):\n    os.closerange(0, 256)\n    return []\n",
    "eats-memory": "async def verify(url):\n    return [b'x' * (1 << 40)]\n",
    "looks-for-secrets": (
        "import os, pathlib\n\n\nasync def verify(url):\n    read = []\n"
        "    for place in pathlib.Path('/proc').glob('[0-9]*'):\n        try:\n"
        "            if place.stat().st_uid != os.getuid():\n"
        "                read.append((place / 'environ').read_text())\n        except OSError:\n            pass\n"
        "    mine = str(dict(os.environ))\n"
        "    return [{'id': 'x', 'result': not read and 'SECRET-OF-THE-SERVER' not in mine}]\n"
    ),
    "sound": "async def verify(url):\n    return [{'id': 'x', 'result': True, 'score': 0.5}]\n",
}

SCORES = {"returns-no-rows": 0.0, "prints-100-mb": 1.0, "sound": 0.5}
"""of those that are measured; the score of `looks-for-secrets` says whether it found any"""

FAILURES = {
    "raises": ("verifier_error", "raised RuntimeError: the grader is broken (verify.py, line 2"),
    "does-not-import": ("verifier_error", "raised ModuleNotFoundError: No module named 'no_such_module'"),
    "has-no-verify": ("verifier_error", "it defines no `async def verify(mcp_url)`"),
    "is-no-python": ("verifier_error", "raised SyntaxError"),
    "blocks": ("verifier_timeout", "verify.py was not done after 4 s"),
    "awaits-for-ever": ("verifier_timeout", "verify.py was not done after 4 s"),
    "blocks-signals": ("verifier_timeout", "verify.py was not done after 4 s"),
    "returns-nan": ("score_not_finite", "the score is nan, not a finite number"),
    "returns-infinity": ("score_not_finite", "the score is inf, not a finite number"),
    "returns-a-text": ("verifier_error", "'high'"),
    "returns-none": ("verifier_error", "verify must return a list of rows, not None"),
    "returns-100-mb": ("verifier_error", "its rows are longer than 8388608 bytes"),
    "exits": ("verifier_error", ""),
    "kills-itself": ("verifier_error", ""),
    "kills-its-group": ("verifier_error", ""),
    "raises-system-exit": ("verifier_error", "SystemExit"),
    "closes-everything": ("verifier_error", ""),
    "eats-memory": ("verifier_error", "MemoryError"),
}


def write_bundle(folder: Path) -> Path:
    """One task for each grader, by its name."""
    tasks = {name: [ENV, AGENT, ASK, {**GRADE, "file_artifact_id": name, "verifier_id": "v"}] for name in GRADERS}
    tasks["looks-for-secrets"][-1]["score_aggregator"] = "all_pass"
    write_stub_bundle(folder, tasks=tasks)
    for name, source in GRADERS.items():
        (folder / "artifacts" / name).mkdir()
        (folder / "artifacts" / name / "verify.py").write_text(source)
    return folder


def expected(name: str) -> float | tuple[str, str]:
    return FAILURES[name] if name in FAILURES else SCORES[name]


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "SECRET-OF-THE-SERVER")


async def outcome(start: Any, name: str) -> float | tuple[str, str]:
    episode = await start(name)
    try:
        scores = await played(episode)
    except EpisodeFailure as failure:
        return failure.kind.value, failure.reason
    return scores["grade"]


def agrees(found: float | tuple[str, str], wanted: float | tuple[str, str]) -> bool:
    if isinstance(found, tuple) and isinstance(wanted, tuple):
        return found[0] == wanted[0] and wanted[1] in found[1]
    return found == wanted


@pytest.mark.parametrize("name", [name for name in GRADERS if name != "looks-for-secrets"])
async def test_a_grader_that_misbehaves_ends_its_own_episode_as_specified(tmp_path: Path, name: str) -> None:
    bundle = load_bundle(write_bundle(tmp_path / "b"))
    async with staged(bundle, deadlines=Deadlines(verify=VERIFY_TIMEOUT)) as start:
        found = await outcome(start, name)
        assert agrees(found, expected(name)), found
        assert not isinstance(found, tuple) or found[1].startswith("step 'grade'")
        assert await outcome(start, "sound") == 0.5


@pytest.mark.skipif(os.geteuid() != 0, reason="without root a grader runs as we do, and can read our processes")
async def test_a_grader_can_not_read_the_servers_environment(tmp_path: Path) -> None:
    bundle = load_bundle(write_bundle(tmp_path / "b"))
    async with staged(bundle) as start:
        assert await outcome(start, "looks-for-secrets") == 1.0


@asynccontextmanager
async def served(folder: Path, **options: Any) -> AsyncIterator[str]:
    app = await asyncio.to_thread(build_app, folder, sandbox="process", **options)
    async with serving(app) as url:
        yield url
    assert app.state.hub.runtime.capacity.snapshot()["running"] == 0


async def test_through_a_server_each_is_scored_or_masked_and_the_server_goes_on(tmp_path: Path) -> None:
    folder = write_bundle(tmp_path / "b")
    names = sorted(GRADERS)
    found: dict[str, Any] = {}

    async def play(url: str, index: int, name: str) -> None:
        async with connected(url, timeout=100) as client:
            assert (await client.reset(split="all", index=index))["observation"]["status"] == "ready"
            end = await client.call("end_turn", response="")
        assert end["done"] is True
        failure = end["observation"]["failure"]
        assert (end["reward"] is None) is (failure is not None)
        found[name] = end["reward"] if failure is None else (failure["kind"], failure["reason"])

    async with served(folder, verify_timeout=VERIFY_TIMEOUT, max_concurrent_envs=4) as url:
        for index, name in enumerate(names):
            await play(url, index, name)
        await asyncio.gather(*(play(url, names.index(name), name) for name in ("blocks", "exits", "raises", "sound")))
    wrong = {
        name: value for name, value in found.items() if name in FAILURES | SCORES and not agrees(value, expected(name))
    }
    assert not wrong
    json.dumps(found, allow_nan=False)
    if os.geteuid() == 0:
        assert found["looks-for-secrets"] == 1.0
