"""Errors that end an engine, or that threads beside it meet, are faults of the workspace until the work succeeds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headwater as hw
from headwater.core.clock import ManualClock, SystemClock
from headwater.engine.merging.background_merge import Merging
from headwater.engine.tick.listener import Listener
from headwater.engine.tick.tick_engine import Engine
from headwater.testing import inspect_workspace

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NUMBERS = """
    CREATE TOPIC numbers (n BIGINT);
    CREATE MATERIALIZED VIEW total AS SELECT sum(n) AS n FROM numbers;
"""


@pytest.fixture
def ws(tmp_path: Path, spark: SparkSession) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as made:
        made.sql(NUMBERS)
        made.topic("numbers").append([{"n": 1}])
        yield made


def faults(ws: hw.Workspace) -> list[tuple[str, str]]:
    return [(fault.kind, fault.name) for fault in ws.log.faults.current()]


def until(reached: Callable[[], bool]) -> None:
    deadline = SystemClock().steady_ms() + 30_000
    while not reached():
        assert SystemClock().steady_ms() < deadline


def broken(*_: Any, **__: Any) -> Any:
    raise ValueError("a defect")


def test_an_error_that_ends_an_engine_stays_until_an_engine_makes_a_tick(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(Engine, "tick", broken)
        runner = ws.start()
        until(lambda: faults(ws) == [("engine", "engine")])
        until(lambda: not runner.running)
        assert ws.log.faults.current()[0].reason == "ValueError: a defect"
        with pytest.raises(ValueError):
            runner.stop()
        with pytest.raises(ValueError):
            ws.run()
    assert faults(ws) == [("engine", "engine")]
    ws.run()
    assert faults(ws) == []


def test_an_engine_that_finds_nothing_to_do_clears_the_fault_of_an_earlier_one(ws: hw.Workspace) -> None:
    ws.run()
    ws.log.faults.report("engine", "engine", "it ended")
    with ws.start():
        until(lambda: faults(ws) == [])


def test_a_listener_that_raises_is_reported_and_does_not_end_the_engine(ws: hw.Workspace) -> None:
    class Bad(Listener):
        fails = True

        def ticked(self, report: Any, manifest: Any) -> None:
            if self.fails:
                broken()

    inspect_workspace(ws).on_progress(listener := Bad())
    with ws.start() as runner:
        until(lambda: faults(ws) == [("background", "listener of ticks")])
        listener.fails = False
        ws.topic("numbers").append([{"n": 2}])
        until(lambda: faults(ws) == [])
        assert runner.running
    assert ws.query("SELECT n FROM total").to_pylist() == [{"n": 3}]


def test_a_merge_that_fails_is_reported_tried_again_after_a_rest_and_cleared(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    class Failing(Merging):
        def _merge(self, task: Any) -> None:
            asked.append(task.name)
            if len(asked) < 3:
                broken()
            task.merged = None

    ws.run()
    manifest = inspect_workspace(ws).manifest()
    assert manifest is not None
    clock = ManualClock()
    merging = Failing(inspect_workspace(ws).store, manifest.epoch, ws.log.faults, clock)
    ask: Callable[[], None] = lambda: merging.ask("total", None, (), bottom=False, tick=1)  # type: ignore[arg-type] # noqa: E731
    for tries in (1, 2):
        ask()
        until(lambda: not merging._tasks)
        assert faults(ws) == [("background", "merge of total")]
        ask()  # it rests
        assert len(asked) == tries
        clock.advance("3 seconds")
    ask()
    until(lambda: faults(ws) == [])
    merging.close()
    ws.log.faults.report("background", "merge of total", "an earlier engine's")
    ws.run()
    assert faults(ws) == []
