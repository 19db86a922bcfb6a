from __future__ import annotations

import logging
import time

import orjson
import pytest
from prometheus_client import REGISTRY
from stubs.scraped import Samples, scraped

from agent_env.errors import FailureKind
from agent_env.observe.exposition import Exposition, by, single
from agent_env.observe.health import judge
from agent_env.observe.lag import LoopLag
from agent_env.observe.record import Fate, Of, Record
from agent_env.observe.report import shared
from agent_env.observe.times import BOUNDS, Times
from agent_env.observe.watcher import Watcher

pytestmark = pytest.mark.anyio


async def samples(watcher: Watcher) -> Samples:
    lag = LoopLag()
    try:
        text = await Exposition(watcher, lag).text([single("more_total", "M.", 3), by("some", "S.", "a", {'x"\n': 1})])
    finally:
        lag.stop()
    return scraped(text.decode())


def a_watcher() -> Watcher:
    return Watcher(Times("wait"), logging.getLogger("test.exposition"))


async def test_what_is_counted_is_told_in_the_text_that_prometheus_reads() -> None:
    watcher = a_watcher()
    watcher.called("look", 0.02, None)
    told = await samples(watcher)
    assert (told["more_total", ""], told["some", 'x"\n']) == (3, 1)
    assert told["agent_env_call_seconds_count", "look"] == 1
    assert told["agent_env_call_seconds_sum", "look"] == 0.02
    buckets = [value for (name, _), value in told.items() if name == "agent_env_call_seconds_bucket"]
    assert len(buckets) == len(BOUNDS) + 1
    assert told["agent_env_phase_seconds_count", "wait"] == 0
    assert told["process_resident_memory_bytes", ""] > 1e6


async def test_only_the_first_hundred_tasks_have_a_series_of_their_own() -> None:
    watcher = a_watcher()
    for number in range(250):
        watcher.counted(Record(Of.SESSION, 1, Fate.MASKED, time.time(), task=f"t{number}", kind=FailureKind.NO_SCORE))
    told = await samples(watcher)
    tasks = {label: value for (name, label), value in told.items() if name == "agent_env_masked_by_task_total"}
    assert len(tasks) == 101
    assert tasks["other"] == 150
    assert sum(tasks.values()) == told["agent_env_masked_total", "no_score"] == 250


async def test_two_servers_of_one_process_share_no_registry() -> None:
    first, second = a_watcher(), a_watcher()
    first.called("look", 0.1, None)
    assert ("agent_env_call_seconds_count", "look") in await samples(first)
    assert ("agent_env_call_seconds_count", "look") not in await samples(second)
    assert not any("agent_env" in family.name for family in REGISTRY.collect())


async def test_names_that_are_no_unicode_spoil_neither_the_metrics_nor_the_report() -> None:
    watcher, evil = a_watcher(), '<b>"\ud800\n'
    for number in range(7):
        watcher.counted(
            Record(Of.EPISODE, number, Fate.FAILED, 0.0, task=evil, failed_tool=evil, kind=FailureKind.ENV_CRASHED)
        )
    watcher.called(evil, 0.1, None)
    told = await samples(watcher)
    assert told["agent_env_masked_by_task_total", '<b>"\\ud800\n'] == 7
    lag = LoopLag()
    lag.stop()
    assert orjson.dumps(shared(watcher, lag, judge(watcher.troubles, 0.0))).count(b"ud800") == 7 * 2 + 3
