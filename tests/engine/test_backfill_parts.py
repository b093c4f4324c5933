"""A view over rows that are there takes them in parts: what an expression makes of some of them stops nothing, what it makes of all does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from headwater.engine.tick import advancing, backfill_parts
from headwater.verify import recompute_units

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
LONG = 2**63 - 1
VIEWS = {
    "share": "SELECT 100 / count(*) AS v FROM t WHERE x > 15",
    "ratio": "SELECT count(*) / count(DISTINCT x) AS v FROM t WHERE x > 15",
    "element": "SELECT array_agg(x ORDER BY x)[2] AS v FROM t",
    "guarded": "SELECT 100 / count(*) AS v FROM t WHERE x > 15 HAVING count(*) > 0",
    "grouped": "SELECT k, 100 / sum(x - 10) AS v FROM t GROUP BY k",
    "numbered": "SELECT x, 10 / sum(x - 10) OVER (ORDER BY k) AS v FROM t",
    "of_all": "SELECT x, x / (SELECT count(*) FROM t WHERE x > 15) AS v FROM t",
    "beside": "SELECT t.k, 100 / (SELECT sum(v) FROM share) AS v FROM t",
    "above": "SELECT 1000 / v AS v FROM share",
}
ROWS = [
    {"k": 1, "x": 10, "huge": LONG},
    {"k": 1, "x": 12, "huge": 1},
    {"k": 2, "x": 8, "huge": -5},
    {"k": 2, "x": 20, "huge": 7},
    {"k": 3, "x": 30, "huge": 0},
]
WANTED: dict[str, list[tuple[Any, ...]]] = {
    "share": [(50.0,)],
    "ratio": [(1.0,)],
    "element": [(12,)],
    "guarded": [(50.0,)],
    "grouped": [(1, 50.0), (2, 12.5), (3, 5.0)],
    "numbered": [(8, 1.0), (10, 5.0), (12, 5.0), (20, 1.0), (30, 10 / 30)],
    "of_all": [(8, 4.0), (10, 5.0), (12, 6.0), (20, 10.0), (30, 15.0)],
    "beside": [(1, 2.0), (1, 2.0), (2, 2.0), (2, 2.0), (3, 2.0)],
    "above": [(20.0,)],
}


@pytest.fixture
def ws(tmp_path: Path, spark: SparkSession) -> Any:
    with hw.open(tmp_path / "w", settings=SETTINGS, spark=spark) as opened:
        opened.sql("CREATE TOPIC t (k BIGINT, x BIGINT, huge BIGINT); CREATE TOPIC other (n BIGINT)")
        yield opened


def _filled(ws: hw.Workspace) -> None:
    for row in ROWS:  # of a commit each, so that a part may end after any
        ws.topic("t").append([row])


def _rows(ws: hw.Workspace, view: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in ws.view(view).read().to_pylist())


def _created(ws: hw.Workspace) -> None:
    for name, query in VIEWS.items():
        ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    ws.sql(f"CREATE MATERIALIZED VIEW diverting WITH (on_error = 'divert') AS {VIEWS['share']}")


@pytest.mark.parametrize("behind", [False, True])
def test_rows_that_were_there_are_met_together(ws: hw.Workspace, behind: bool) -> None:
    _filled(ws)
    if behind:  # another view stands at the end of the log, and these catch up with it
        ws.sql("CREATE MATERIALIZED VIEW all_rows AS SELECT * FROM t")
        ws.run()
    _created(ws)
    report = ws.run(tick_rows=1)
    assert report.stopped == {}
    assert {name: _rows(ws, name) for name in WANTED} == WANTED
    assert _rows(ws, "diverting") == WANTED["share"]
    report = ws.verify()
    assert report.ok, report.differences


def test_a_sum_that_fits_in_the_end_may_overflow_on_the_way(ws: hw.Workspace) -> None:
    ws.sql("CREATE MATERIALIZED VIEW lasting AS SELECT n FROM other")
    ws.run()
    _filled(ws)
    ws.topic("t").append([{"k": 4, "x": 1, "huge": -LONG}])
    ws.sql("CREATE MATERIALIZED VIEW total AS SELECT sum(huge) AS v FROM t")
    ws.sql("CREATE MATERIALIZED VIEW half AS SELECT v / 2 AS v FROM total")
    assert ws.run(tick_rows=1).stopped == {}
    assert (_rows(ws, "total"), _rows(ws, "half")) == ([(3,)], [(1.5,)])


def test_an_error_over_all_rows_stops_a_view_with_those_above_it(ws: hw.Workspace) -> None:
    _filled(ws)
    ws.sql("CREATE MATERIALIZED VIEW share AS SELECT 100 / count(*) AS v FROM t WHERE x > 99")
    ws.sql("CREATE MATERIALIZED VIEW above AS SELECT v FROM share")
    ws.sql("CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS v FROM t")
    assert set(ws.run(tick_rows=1).stopped) == {"share", "above"}
    assert _rows(ws, "counted") == [(5,)]


def test_an_error_of_a_tick_that_is_committed_stops_a_view(ws: hw.Workspace) -> None:
    ws.topic("t").append([{"k": 1, "x": 20, "huge": 0}])
    ws.sql("CREATE MATERIALIZED VIEW inverse AS SELECT 100 / (sum(x) - 30) AS v FROM t")
    assert ws.run().stopped == {}
    for x in (10, 7):
        ws.topic("t").append([{"k": 1, "x": x, "huge": 0}])
    assert "inverse" in ws.run(tick_rows=1).stopped


def test_a_row_that_fails_by_itself_is_not_read_with_all_others(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    _filled(ws)
    ws.sql("CREATE MATERIALIZED VIEW all_rows AS SELECT * FROM t")
    ws.run()
    taken: list[int] = []
    monkeypatch.setattr(
        advancing, "more_rows", lambda *given: taken.append(1) or backfill_parts.more_rows(*given)
    )
    ws.sql("CREATE MATERIALIZED VIEW inverse AS SELECT sum(1 / (x - 10)) AS v FROM t")
    assert "inverse" in ws.run(tick_rows=1).stopped
    assert taken == []


def test_a_view_that_is_computed_again_from_its_base_meets_the_rows_of_a_tick_together(
    tmp_path: Path, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = ManualClock()
    with hw.open(tmp_path / "w", settings=SETTINGS, spark=spark, clock=clock) as ws:
        ws.sql("CREATE TOPIC t (k BIGINT, x BIGINT) WITH (retention = '1 hour')")
        ws.sql("CREATE MATERIALIZED VIEW inverse AS SELECT 100 / (sum(x) - 30) AS v FROM t")
        ws.topic("t").append([{"k": 1, "x": 10}])
        ws.run()
        clock.advance("2 hours")
        ws.run()
        assert ws.maintain().rows_removed == 1
        for x in (20, 5):
            ws.topic("t").append([{"k": 1, "x": x}])
        ws.run()
        monkeypatch.setattr(recompute_units, "BACKFILL_ROWS", 1)
        assert _rows(ws, "inverse") == [(20.0,)]
        report = ws.verify()
        assert report.ok, report.differences
