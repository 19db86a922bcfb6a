from __future__ import annotations

import logging

import pytest

from agent_env.errors import FailureKind
from agent_env.observe.health import Finding, State, judge
from agent_env.observe.troubles import Failure, Troubles


def troubles(failed: int, measured: int) -> Troubles:
    made = Troubles(logging.getLogger("test.health"), lambda: 0.0)
    for number in range(failed):
        made.failed(Failure(0.0, f"task-{number}", FailureKind.TOOL_TIMEOUT, "slow", None, None))
    for _ in range(measured):
        made.succeeded("another")
    return made


@pytest.mark.parametrize(
    ("failed", "measured", "state"),
    [
        (0, 0, State.HEALTHY),
        (0, 100, State.HEALTHY),
        (2, 0, State.HEALTHY),
        (10, 90, State.HEALTHY),
        (11, 89, State.DEGRADED),
        (50, 50, State.DEGRADED),
        (51, 49, State.FAILING),
        (3, 0, State.FAILING),
    ],
)
def test_the_share_of_failed_rollouts_decides(failed: int, measured: int, state: State) -> None:
    health = judge(troubles(failed, measured), 0.0)
    assert health.state is state
    assert len(health.why) == 1


def test_a_reason_says_what_to_do() -> None:
    assert judge(troubles(20, 80), 0.0).why == (
        "the environment failed 20 of the last 100 rollouts, most often tool_timeout (20): "
        "raise --tool-timeout, or make the tool quicker",
    )
    assert judge(troubles(4, 96), 0.0).why == ("96 of the last 100 rollouts were measured, 4 masked",)
    assert judge(troubles(0, 0), 0.0).why == ("no rollout has ended yet",)


def test_the_worst_reason_comes_first_and_gives_the_word() -> None:
    health = judge(troubles(20, 80), 0.9, [Finding(State.FAILING, "nobody is there")])
    assert (health.state.word, health.why[0], len(health.why)) == ("failing", "nobody is there", 3)


def test_one_task_that_fails_again_and_again_degrades_a_run_that_is_well_otherwise() -> None:
    made = troubles(0, 95)
    for _ in range(5):
        made.failed(Failure(0.0, "bad", FailureKind.LOAD_FAILED, "no file", None, None))
    assert judge(made, 0.0).why == ("1 task fails again and again (bad)",)
