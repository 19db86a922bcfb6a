from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from clients.chain import Chain, chain
from clients.gym_servers import Place
from clients.nemo_gym_venv import ClientMissing as NemoGymMissing
from clients.nemo_gym_venv import NemoGym, ensure_nemo_gym
from clients.verifiers_venv import ClientMissing, VerifiersClient, ensure_client
from requirements import absent

from agent_env.examples.gridsim.bundle import write_bundle


@pytest.fixture(scope="session")
def verifiers_client() -> VerifiersClient:
    try:
        return ensure_client()
    except ClientMissing as error:
        absent("verifiers", str(error))


@pytest.fixture(scope="session")
def nemo_gym() -> NemoGym:
    try:
        return ensure_nemo_gym()
    except NemoGymMissing as error:
        absent("nemo-gym", str(error))


@pytest.fixture
def place(nemo_gym: NemoGym, tmp_path: Path) -> Iterator[Place]:
    """Where NeMo Gym's processes of this test run."""
    with Place.made(nemo_gym, tmp_path / "nemo-gym") as place:
        yield place


@pytest.fixture(scope="session")
def gridsim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundles") / "gridsim-v1"
    write_bundle(folder)
    return folder


@pytest.fixture(scope="module")
def gridsim_chain(gridsim: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chain]:
    with chain(gridsim, tmp_path_factory.mktemp("chain"), serve_flags=["--masked-as-error"]) as served:
        yield served


@pytest.fixture
def say(capsys: pytest.CaptureFixture[str]) -> Callable[[str], None]:
    """Prints a line that is shown when the test passes, too."""

    def show(line: str) -> None:
        with capsys.disabled():
            print(f"\n{line}")

    return show
