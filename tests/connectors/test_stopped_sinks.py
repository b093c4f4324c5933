"""A sink that has stopped says so in every process, until it works again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

import headwater as hw
from headwater.connectors.manage.sink_probe import probe_sinks
from headwater.core.clock import SystemClock
from headwater.testing import inspect_workspace
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DECLARED = """
    CREATE TOPIC sales (country STRING, amount BIGINT);
    CREATE MATERIALIZED VIEW revenue AS SELECT country, sum(amount) AS amount FROM sales GROUP BY country;
"""


class Broken:
    """A function that fails until it is mended."""

    def __init__(self) -> None:
        self.is_mended = False

    def __call__(self, change: pa.Table, key: str) -> None:
        if not self.is_mended:
            raise hw.RefusedRowError("it takes nothing", row=0)


@pytest.fixture
def function() -> Broken:
    return Broken()


@pytest.fixture
def opened(tmp_path: Path, spark: SparkSession, function: Broken) -> Iterator[Callable[[], hw.Workspace]]:
    made: list[hw.Workspace] = []

    def reopen() -> hw.Workspace:
        for ws in made:
            ws.close()
        made.append(hw.open(tmp_path / "w", durability="os", spark=spark))
        made[-1].sink_function("take", function)
        return made[-1]

    ws = reopen()
    ws.sql(DECLARED)
    ws.sql("CREATE SINK copies FROM revenue INTO PYTHON WITH (function = 'take', key = 'country')")
    ws.topic("sales").append([{"country": "de", "amount": 1}])
    yield reopen
    made[-1].close()


def shown(ws: hw.Workspace) -> tuple[str, str | None]:
    (row,) = ws.sql("SHOW SINKS").to_pylist()  # type: ignore[union-attr]
    told = probe_sinks(inspect_workspace(ws).sinks, ["copies"])["copies"].status
    assert (told.state, told.reason) == (row["state"], row["reason"])
    return row["state"], row["reason"]


def until(reached: Callable[[], bool]) -> None:
    deadline = SystemClock().steady_ms() + 20_000
    while not reached():
        assert SystemClock().steady_ms() < deadline


def test_a_sink_that_stopped_is_stopped_for_later_processes_until_it_works(
    opened: Callable[[], hw.Workspace], function: Broken
) -> None:
    ws = opened()
    with raises(hw.SinkError, sink="copies", reason="rejected-row"):
        ws.run()
    ws = opened()
    (fault,) = ws.log.faults.current()
    assert (fault.kind, fault.name) == ("sink", "copies")
    state, reason = shown(ws)
    assert state == "stopped"
    assert reason is not None
    assert "it takes nothing" in reason
    function.is_mended = True
    ws.run()
    assert ws.log.faults.current() == []
    assert shown(ws)[0] != "stopped"


def test_a_sink_that_stops_beside_an_engine_is_stopped_after_it_and_resumes(
    opened: Callable[[], hw.Workspace], function: Broken
) -> None:
    ws = opened()
    with ws.start():
        until(lambda: bool(ws.log.faults.current()))
    assert shown(ws)[0] == "stopped"
    with ws.start():
        until(lambda: inspect_workspace(ws).sinks.status("copies").status.state == "stopped")
        function.is_mended = True
        inspect_workspace(ws).sinks.resume("copies")
        until(lambda: not ws.log.faults.current())


def test_an_engine_without_the_function_of_a_sink_reports_it(
    opened: Callable[[], hw.Workspace], function: Broken
) -> None:
    function.is_mended = True
    ws = opened()
    inspect_workspace(ws).sinks.declared.functions.clear()
    with ws.start():
        until(lambda: [fault.name for fault in ws.log.faults.current()] == ["copies"])


def test_dropping_and_replacing_a_sink_clears_its_fault(opened: Callable[[], hw.Workspace]) -> None:
    ws = opened()
    for statement in (
        "CREATE OR REPLACE SINK copies FROM revenue INTO PYTHON WITH (function = 'take', key = 'country', mode = 'changelog')",
        "DROP SINK copies",
    ):
        with raises(hw.SinkError, sink="copies", reason="rejected-row"):
            ws.run()
        assert ws.log.faults.current()
        ws.sql(statement)
        assert ws.log.faults.current() == []
