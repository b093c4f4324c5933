"""Expressions meet the rows that there are: not what an aggregate is over no rows, nor pairs of a row that comes with one that goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import headwater as hw
from headwater.core.settings import LogSettings

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
GROUPED = "SELECT k, sum(x) AS s FROM {} GROUP BY k"
VIEWS = {
    "share": "SELECT 100 / count(*) AS v FROM t",
    "ratio": "SELECT count(*) / count(DISTINCT x) AS v FROM t",
    "element": "SELECT array_agg(x ORDER BY x)[0] AS v FROM t",
    "guarded": "SELECT 100 / count(*) AS v FROM t HAVING count(*) > 0",
    "owned": "SELECT mean_of(x) AS v FROM t",
    "owned_kept": "SELECT mean_of(x) AS v FROM kept",
    "of_all": "SELECT k, x, x / (SELECT count(*) FROM t) AS v FROM t",
    "above": "SELECT k FROM t WHERE x > 10 / (SELECT count(DISTINCT x) FROM t)",
    "nested": "SELECT 1000 / sum(n) AS v FROM (SELECT k, count(*) AS n FROM t GROUP BY k)",
    # in the second tick the new sum of either side equals the old one of the other
    "inner_pairs": f"SELECT a.k, a.s, b.s AS r FROM ({GROUPED.format('t')}) a JOIN ({GROUPED.format('u')}) b "
    "ON a.k = b.k AND 10 / (a.s - b.s) > -1000",
    "outer_pairs": f"SELECT a.k, a.s, b.s AS r FROM ({GROUPED.format('t')}) a FULL JOIN ({GROUPED.format('u')}) b "
    "ON a.k = b.k AND 10 / (a.s - b.s) > 0",
    "near_pairs": f"SELECT a.k, a.s, b.s AS r FROM ({GROUPED.format('t')}) a LEFT JOIN ({GROUPED.format('u')}) b "
    "ON a.k = b.k AND a.s BETWEEN b.s - 100 AND b.s + 100 AND 10 / (a.s - b.s) > 0",
}


@pytest.fixture
def ws(tmp_path: Path, spark: SparkSession) -> Any:
    with hw.open(tmp_path / "w", settings=SETTINGS, spark=spark) as opened:
        opened.sql("CREATE TOPIC t (k BIGINT, x BIGINT); CREATE TOPIC u (k BIGINT, x BIGINT)")
        opened.sql("CREATE TOPIC kept (k BIGINT, x BIGINT, PRIMARY KEY (k))")
        opened.aggregate(
            "mean_of",
            zero={"s": 0, "n": 0},
            add=lambda state, xs: {"s": state["s"] + sum(xs.to_pylist()), "n": state["n"] + len(xs)},
            merge=lambda a, b: {"s": a["s"] + b["s"], "n": a["n"] + b["n"]},
            result=lambda state: state["s"] / state["n"],
            state="STRUCT<s BIGINT, n BIGINT>",
            returns="DOUBLE",
        )
        yield opened


def _run(ws: hw.Workspace) -> None:
    report = ws.run()
    assert not report.stopped, report.stopped


def _rows(ws: hw.Workspace, view: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in ws.view(view).read().to_pylist())


def test_rows_that_are_there_are_all_that_expressions_meet(ws: hw.Workspace) -> None:
    ws.topic("t").append([{"k": 1, "x": 10}, {"k": 1, "x": 10}, {"k": 2, "x": 20}])
    ws.topic("u").append([{"k": 1, "x": 19}])
    ws.topic("kept").append([{"k": 1, "x": 4}])
    for name, query in VIEWS.items():
        ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
    for name in ("share", "element", "inner_pairs"):
        ws.sql(f"CREATE MATERIALIZED VIEW {name}_diverting WITH (on_error = 'divert') AS {VIEWS[name]}")
    _run(ws)
    assert _rows(ws, "share") == [(100 / 3,)]
    assert _rows(ws, "ratio") == [(1.5,)]
    assert _rows(ws, "element") == [(10,)]
    assert (_rows(ws, "owned"), _rows(ws, "owned_kept")) == ([(40 / 3,)], [(4.0,)])
    assert _rows(ws, "inner_pairs") == [(1, 20, 19)]
    ws.topic("t").append([{"k": 1, "x": -1}])
    ws.topic("u").append([{"k": 1, "x": 1}])
    _run(ws)
    assert _rows(ws, "share") == [(25.0,)]
    assert _rows(ws, "element") == [(-1,)]
    assert _rows(ws, "inner_pairs") == [(1, 19, 20)]
    report = ws.verify()
    assert report.ok, report.differences
    why = ws.view("share").why({"v": 25.0})
    assert why.recompute().num_rows == 1


def test_views_that_begin_without_rows_follow_the_first_that_come_and_the_last_that_go(
    ws: hw.Workspace,
) -> None:
    ws.sql("CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS v FROM kept")
    ws.sql("CREATE MATERIALIZED VIEW listed AS SELECT array_agg(x ORDER BY x) AS v FROM kept")
    ws.sql("CREATE MATERIALIZED VIEW share AS SELECT 100 / count(*) AS v FROM kept WHERE x > 0")
    ws.topic("kept").append([{"k": 1, "x": 1}])
    _run(ws)
    ws.topic("kept").append([{"k": 2, "x": 2}])
    _run(ws)
    assert (_rows(ws, "counted"), _rows(ws, "listed"), _rows(ws, "share")) == ([(2,)], [([1, 2],)], [(50.0,)])
    ws.topic("kept").delete([{"k": 1}, {"k": 2}])
    report = ws.run()
    assert "share" in report.stopped, "in batch it fails, too"
    assert (_rows(ws, "counted"), _rows(ws, "listed")) == ([(0,)], [([],)])
    ws.topic("kept").append([{"k": 3, "x": 3}])
    ws.run()
    assert (_rows(ws, "counted"), _rows(ws, "listed")) == ([(1,)], [([3],)])
