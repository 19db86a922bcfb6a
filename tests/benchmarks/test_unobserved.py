from __future__ import annotations

from agent_env.observe.history import History
from benchmarks.unobserved import Unnoted


def test_what_a_session_notes_can_be_left_out() -> None:
    """Those that only a record needs are not asked for: without observers there is none."""
    noted = {name for name, value in vars(History).items() if callable(value) and not name.startswith("_")}
    assert noted - set(vars(Unnoted)) == {"took", "phases"}
