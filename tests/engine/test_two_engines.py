"""One engine at a time: the second is told, waits or takes over, and one that was left behind commits nothing."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import Workspace
from headwater.core.clock import ManualClock, SystemClock
from headwater.core.errors import EngineRunningError, FencedError
from headwater.core.storage import Storage
from headwater.engine.tick import tick_engine
from headwater.engine.tick.tick_engine import Engine
from headwater.state.ownership import alive, claim, owner
from headwater.state.store import StateStore
from headwater.testing import inspect_workspace
from headwater.views import runner
from tests.engine.workers import SETTINGS, worker
from tests.equation.test_consistency import Background
from tests.raising import raises

STALE_MS = 2_500.0
"""Enough for an engine that beats once a second on a busy machine; the one that is waited for is frozen."""


@pytest.fixture
def ws(tmp_path: Path, spark: Any) -> Iterator[Workspace]:
    with hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS) as workspace:
        workspace.sql("CREATE TOPIC t (a BIGINT) WITH (partitions = 2)")
        workspace.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n, sum(a) AS a FROM t")
        workspace.topic("t").append([{"a": 1}])
        workspace.run()
        yield workspace


def counts(ws: Workspace) -> tuple[int, int]:
    (row,) = ws.query("SELECT n, a FROM n").to_pylist()
    return row["n"], row["a"]


def storage_of(ws: Workspace) -> Storage:
    assert ws.path is not None
    return Storage(ws.path)


def until(condition: Callable[[], bool]) -> None:
    """Wait for something that other processes or the clock bring about."""
    while not condition():
        threading.Event().wait(0.02)


# --- a second one is told --------------------------------------------------------------------------------------------


def test_a_second_engine_in_the_process_is_told_who_runs(ws: Workspace) -> None:
    with ws.start(), raises(EngineRunningError, pid=os.getpid()):
        ws.start()
    with ws.start():  # once it has stopped, another may start
        pass


def test_a_second_engine_in_another_process_is_told_who_runs_before_it_starts_spark(ws: Workspace) -> None:
    assert ws.path is not None
    with ws.start(), worker("start", ws.path) as second:
        assert second.line("told ") == f"EngineRunningError {os.getpid()} False"


def test_an_engine_in_another_process_is_named_by_its_process_and_its_death_noticed(ws: Workspace) -> None:
    assert ws.path is not None
    with worker("claim", ws.path) as first:
        assert int(first.line("running")) == first.pid
        with pytest.raises(EngineRunningError) as caught:
            ws.start()
        assert caught.value.pid == first.pid
        first.kill()
        ws.topic("t").append([{"a": 2}])
        ws.run()
    assert counts(ws) == (2, 3)


# --- or waits --------------------------------------------------------------------------------------------------------


def test_run_beside_a_running_engine_returns_when_that_one_has_got_there(ws: Workspace, spark: Any) -> None:
    assert ws.path is not None
    with hw.open(ws.path, spark=spark, settings=SETTINGS) as other, ws.start(tick_rows=1):
        for i in range(1, 30):
            other.topic("t").append([{"a": 1}])
            if i % 10 == 0:
                report = other.run()
                assert report.ticks == 0, "the other engine makes the ticks"
                assert counts(other) == (i + 1, i + 1)


def test_run_beside_an_engine_does_not_wait_for_records_that_no_view_reads(ws: Workspace) -> None:
    ws.sql("CREATE TOPIC unread (a BIGINT)")
    with ws.start():
        ws.topic("unread").append([{"a": 1}])
        ws.run()


def test_run_beside_an_engine_gets_past_offsets_that_hold_no_record(tmp_path: Path, spark: Any) -> None:
    with hw.open(tmp_path / "timed", spark=spark, settings=SETTINGS) as ws:
        ws.sql("CREATE TOPIC t (at TIMESTAMP, WATERMARK FOR at AS at - INTERVAL '1 minute')")
        ws.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM t")
        with ws.start():
            ws.topic("t").punctuate(datetime(2024, 1, 1, tzinfo=UTC))
            ws.run()


def test_run_does_the_work_itself_when_the_engine_that_it_waits_for_ends(ws: Workspace) -> None:
    first = claim(storage_of(ws), SystemClock())
    first.beat_by_itself()
    ws.topic("t").append([{"a": 2}])
    ticks: list[int] = []
    waiting = Background(lambda: ticks.append(ws.run().tick))
    waiting.start()
    first.release()
    waiting.finish()
    assert ticks == [2]
    assert counts(ws) == (2, 3)


def test_an_engine_without_views_is_idle(tmp_path: Path, spark: Any) -> None:
    with hw.open(tmp_path / "bare", spark=spark, settings=SETTINGS) as ws:
        ws.sql("CREATE TOPIC t (a BIGINT)")
        before = ws.log.sequence()
        with ws.start():
            for _ in range(20):
                ws.topic("t").append([{"a": 1}])
        assert ws.log.sequence() == before + 20, "the engine wrote to the log, which wakes it up again"


# --- or takes over ---------------------------------------------------------------------------------------------------


def engine_on(ws: Workspace, clock: ManualClock) -> Engine:
    storage = storage_of(ws)
    return Engine(
        ws.log,
        StateStore(storage, clock),
        claim(storage, clock),
        inspect_workspace(ws).engine_context(),
        clock,
    )


def test_an_engine_that_was_left_behind_between_ticks_commits_nothing(ws: Workspace) -> None:
    clock = ManualClock()
    first = engine_on(ws, clock)
    ws.topic("t").append([{"a": 2}])
    assert first.tick() is not None
    clock.advance("11 seconds")
    second = engine_on(ws, clock)
    ws.topic("t").append([{"a": 4}])
    with raises(FencedError, reason="newer-engine"):
        first.tick()
    report = second.tick()
    assert report is not None
    with pytest.raises(FencedError):
        first.tick()
    assert second.tick() is None
    assert counts(ws) == (3, 7)
    first._ownership.release()
    second._ownership.release()


@pytest.mark.parametrize("moment", ["begin", "commit", "collect"])
@pytest.mark.parametrize("made", [False, True])
def test_an_engine_that_is_left_behind_within_a_tick_commits_nothing(
    ws: Workspace, moment: str, made: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It froze in the middle; the other has made that tick when it thaws, or not yet."""
    clock = ManualClock()
    first = engine_on(ws, clock)
    act = getattr(first._store, moment)
    seconds: list[Engine] = []

    def freeze(*args: Any, **options: Any) -> Any:
        clock.advance("11 seconds")
        seconds.append(engine_on(ws, clock))
        if made:
            seconds[0].tick()
        return act(*args, **options)

    monkeypatch.setattr(first._store, moment, freeze)
    monkeypatch.setattr(tick_engine, "COLLECT_EVERY_TICKS", 1)
    ws.topic("t").append([{"a": 1}])
    with pytest.raises(FencedError):
        first.tick()
    committed = made or moment == "collect"  # it collects after its tick
    assert counts(ws) == ((2, 2) if committed else (1, 1))
    seconds[0].tick()
    assert counts(ws) == (2, 2)
    assert ws.verify().ok
    for each in (first, *seconds):
        each._ownership.release()


def test_a_long_tick_is_no_sign_of_death(ws: Workspace) -> None:
    """An engine beats while it is busy: within a tick, or while Spark starts."""
    storage = storage_of(ws)

    def heartbeat() -> int:
        who = owner(storage)
        assert who is not None
        return who.heartbeat

    room = inspect_workspace(ws).engine_host
    with room.claim():
        first = heartbeat()
        until(lambda: heartbeat() > first)
    assert owner(storage) is None


def impatient(ws: Workspace) -> runner.EngineHost:
    return replace(inspect_workspace(ws).engine_host, stale_after_ms=STALE_MS)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_an_engine_that_froze_is_taken_over_and_fenced_when_it_thaws(ws: Workspace) -> None:
    rng = random.Random(3)
    assert ws.path is not None
    with worker("engine", ws.path) as frozen:
        frozen.line("running")
        for _ in range(rng.randint(2, 6)):
            ws.topic("t").append([{"a": 1}])
            frozen.line("tick ")
        ws.topic("t").append([{"a": 1}] * 50)
        frozen.signal(signal.SIGSTOP)
        ws.topic("t").append([{"a": 1}] * 50)
        until(lambda: alive(storage_of(ws), SystemClock(), stale_after_ms=STALE_MS) is None)
        runner.run(impatient(ws))
        n, _ = counts(ws)
        latest = inspect_workspace(ws).manifest()
        assert latest is not None
        ws.topic("t").append([{"a": 1}])
        frozen.signal(signal.SIGCONT)
        assert frozen.line("ended ").startswith("FencedError: another engine has ")
        after = inspect_workspace(ws).manifest()
        assert after is not None
        assert after.tick == latest.tick, "it has committed something"
    assert ws.run().tick == latest.tick + 1
    assert counts(ws) == (n + 1, n + 1)
    assert ws.verify().ok


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_run_takes_over_from_an_engine_that_freezes_while_it_waits(ws: Workspace) -> None:
    assert ws.path is not None
    with worker("engine", ws.path) as frozen:
        frozen.line("running")
        frozen.signal(signal.SIGSTOP)
        ws.topic("t").append([{"a": 1}])
        report = runner.run(impatient(ws))
        assert report.ticks == 1
        frozen.signal(signal.SIGCONT)
    assert counts(ws) == (2, 2)
