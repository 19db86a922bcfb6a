from __future__ import annotations

from pathlib import Path

import pytest
from stubs.stage import refusals_of

from agent_env.steps import registered
from agent_env.steps.refused import INSTEAD


def test_the_original_has_49_types_and_each_is_run_or_refused() -> None:
    assert len(registered().keys() | INSTEAD.keys()) == 49
    assert not registered().keys() & INSTEAD.keys()
    assert len(registered()) == 14


@pytest.mark.parametrize("name", sorted(INSTEAD))
def test_a_type_that_is_not_run_is_refused_by_name_file_and_step_with_what_to_use(tmp_path: Path, name: str) -> None:
    (refusal,) = refusals_of(tmp_path / "b", {"id": "it", "type": name})
    assert refusal == f"step 'it': step type {name!r} is not run here: {INSTEAD[name]}"
    assert len(INSTEAD[name]) > 15
