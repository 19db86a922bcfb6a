from __future__ import annotations

import pytest

from agent_env.errors import ConfigError
from agent_env.sandbox.demand import AUTO_CEILING, REMEMBERED, Demand, Warm


def test_nobody_came_so_nothing_is_worth_keeping() -> None:
    assert Demand().spares(1000.0) == 0


def test_as_many_are_kept_as_were_taken_while_one_is_replaced() -> None:
    demand = Demand()
    for now in (10.0, 10.1, 10.2, 30.0):
        demand.took(now)
    assert demand.spares(31.0) == 3


def test_slow_starts_need_more_spares_for_the_same_demand() -> None:
    quick, slow = Demand(), Demand()
    for _ in range(20):
        slow.started(10.0)
    for now in range(20):
        quick.took(now)
        slow.took(now)
    assert quick.spares(20.0) < slow.spares(20.0)


def test_a_burst_is_forgotten() -> None:
    demand = Demand()
    for _ in range(5):
        demand.took(1.0)
    assert demand.spares(REMEMBERED) == 5
    assert demand.spares(REMEMBERED + 2.0) == 0


def test_auto_keeps_one_and_never_more_than_the_places() -> None:
    assert Warm.parse("auto", 96) == Warm(1, AUTO_CEILING, AUTO_CEILING)
    assert Warm.parse("auto", 2) == Warm(1, 2, 2)


def test_a_number_is_kept_of_each_env() -> None:
    warm = Warm.parse("3", 96)
    assert (warm.floor, warm.most, warm.in_all(2)) == (3, 3, 6)
    assert Warm.parse(0, 8).in_all(5) == 0


@pytest.mark.parametrize("text", ["-1", "many", "1.5"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="must be auto, or a number"):
        Warm.parse(text, 8)
