"""Another definition in the place of a view: built beside it, switched in one tick, for all who read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import Workspace
from headwater.core.settings import LogSettings
from headwater.engine.tick import backfill_parts
from headwater.engine.tick.listener import Listener
from headwater.testing import inspect_workspace
from tests.raising import raises
from tests.serving.test_changes import OneTick

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)


@pytest.fixture
def ws(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """A workspace in which a view takes several ticks to catch up."""
    with hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS) as opened:
        opened.sql("CREATE TOPIC t (k BIGINT, v BIGINT)")
        opened.sql("CREATE MATERIALIZED VIEW sums AS SELECT k, sum(v) AS x FROM t GROUP BY k")
        opened.sql("CREATE MATERIALIZED VIEW total AS SELECT sum(x) AS x FROM sums")
        for i in range(10):
            opened.topic("t").append([{"k": i % 2, "v": i}, {"k": 0, "v": 1}])
        opened.run()
        monkeypatch.setattr(backfill_parts, "BACKFILL_ROWS", 4)
        yield opened


def one_tick(ws: Workspace) -> None:
    inspect_workspace(ws).on_progress(OneTick())
    ws.run()
    inspect_workspace(ws).on_progress(Listener())


def rows(ws: Workspace, view: str) -> list[dict[str, Any]]:
    return sorted(ws.view(view).read().to_pylist(), key=str)


def test_the_old_one_goes_on_until_the_new_one_has_caught_up(ws: Workspace) -> None:
    ws.sql("CREATE OR REPLACE MATERIALIZED VIEW sums AS SELECT k, max(v) AS x FROM t GROUP BY k")
    seen = []
    for i in range(14):
        ws.topic("t").append([{"k": 0, "v": 100 + i}])
        one_tick(ws)
        latest = inspect_workspace(ws).manifest()
        assert latest is not None
        total = sum(r["x"] for r in rows(ws, "sums"))
        assert rows(ws, "total") == [{"x": total}], "views above agree at every tick"
        old = 55 + sum(100 + n for n in range(i + 1))
        new = 9 + 100 + i
        assert total in (old, new)
        seen.append(total == new)
        assert ws.verify().ok
    assert not seen[0]
    assert seen[-1]
    assert seen == sorted(seen), "it switches once"
    latest = inspect_workspace(ws).manifest()
    assert latest is not None
    assert set(latest.views) == {"sums", "total"}


def test_a_view_that_needs_append_only_rows_is_rebuilt_when_some_go(ws: Workspace) -> None:
    ws.sql("CREATE MATERIALIZED VIEW some AS SELECT k, v FROM t WHERE v < 9")
    ws.sql("CREATE MATERIALIZED VIEW most AS SELECT max(v) AS v FROM some")
    ws.run()
    assert rows(ws, "most") == [{"v": 8}]
    ws.sql("CREATE OR REPLACE MATERIALIZED VIEW some AS SELECT k, v FROM t WHERE v < 5")
    ws.run()
    assert rows(ws, "most") == [{"v": 4}]
    assert ws.verify().ok


def test_its_reason_says_that_another_is_being_built(ws: Workspace) -> None:
    ws.sql("CREATE OR REPLACE MATERIALIZED VIEW sums AS SELECT k, max(v) AS x FROM t GROUP BY k")
    one_tick(ws)
    shown = {r["view"]: r for r in (ws.sql("SHOW VIEWS")).to_pylist()}  # type: ignore[union-attr]
    assert shown["sums"]["status"] == "live"
    assert shown["sums"]["reason"] == "a new definition is being built as a shadow build"


def test_other_columns_come_with_the_switch_and_not_before(ws: Workspace) -> None:
    ws.sql(
        "CREATE OR REPLACE MATERIALIZED VIEW sums AS SELECT count(*) AS n, k, sum(v) AS x FROM t GROUP BY k"
    )
    one_tick(ws)
    assert ws.query("SELECT * FROM sums").column_names == ["k", "x"]
    ws.run()
    assert ws.query("SELECT * FROM sums").column_names == ["n", "k", "x"]
    assert rows(ws, "total") == [{"x": 55}]
    assert ws.verify().ok


def test_a_replacement_that_would_break_a_reader_is_refused(ws: Workspace) -> None:
    with raises(hw.UsageError, reason="breaks-reader", view="sums", reader="total"):
        ws.sql("CREATE OR REPLACE MATERIALIZED VIEW sums AS SELECT k, sum(v) AS y FROM t GROUP BY k")
    with raises(hw.UsageError, reason="reader-types", view="sums", reader="total"):
        ws.sql("CREATE OR REPLACE MATERIALIZED VIEW sums AS SELECT k, avg(v) AS x FROM t GROUP BY k")
    ws.run()
    assert rows(ws, "total") == [{"x": 55}]


def test_a_restart_in_the_middle_goes_on_with_both(ws: Workspace, spark: Any) -> None:
    ws.sql("CREATE OR REPLACE MATERIALIZED VIEW sums AS SELECT k, max(v) AS x FROM t GROUP BY k")
    one_tick(ws)
    assert ws.path is not None
    ws.log.close()
    with hw.open(ws.path, spark=spark, settings=SETTINGS) as again:
        again.topic("t").append([{"k": 0, "v": 5}])
        one_tick(again)
        assert rows(again, "total") == [{"x": 60}]
        again.run()
        assert rows(again, "total") == [{"x": 9 + 8}]
        assert again.verify().ok


def test_a_new_definition_that_fails_leaves_the_old_one_in_place(ws: Workspace) -> None:
    ws.topic("t").append([{"k": 7, "v": 0}])
    ws.run()
    ws.sql("CREATE OR REPLACE MATERIALIZED VIEW sums AS SELECT k, sum(1000 div v) AS x FROM t GROUP BY k")
    report = ws.run()
    assert list(report.stopped) == ["sums~next"]
    assert rows(ws, "total") == [{"x": 55}]
    shown = {r["view"]: r for r in (ws.sql("SHOW VIEWS")).to_pylist()}  # type: ignore[union-attr]
    assert "the shadow build of its new definition has stopped" in shown["sums"]["reason"]
    ws.sql("CREATE OR REPLACE MATERIALIZED VIEW sums AS SELECT k, max(v) AS x FROM t GROUP BY k")
    ws.run()
    assert rows(ws, "total") == [{"x": 9 + 8 + 0}]


def test_dropping_and_creating_begins_again(ws: Workspace) -> None:
    ws.sql("DROP VIEW total; DROP VIEW sums")
    ws.sql("CREATE MATERIALIZED VIEW sums AS SELECT k, max(v) AS x FROM t GROUP BY k")
    one_tick(ws)
    with raises(hw.ViewUnavailableError, view="sums", status="backfilling"):
        ws.view("sums").read()


def test_a_view_that_cannot_be_planned_stops_alone(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    from headwater.plan.planner import Planner

    ws.sql("CREATE MATERIALIZED VIEW other AS SELECT count(*) AS n FROM t")
    ws.run()
    honest = Planner.plan

    def failing(self: Planner, query: Any, relations: Any, policy: Any = None) -> Any:
        if "sum(v)" in query.text:
            raise hw.UsageError("this cannot be planned")
        return honest(self, query, relations, policy)

    assert ws.path is not None
    with monkeypatch.context() as patched:
        patched.setattr(Planner, "plan", failing)
        with hw.open(ws.path, spark=inspect_workspace(ws).spark, settings=SETTINGS) as broken:
            broken.topic("t").append([{"k": 1, "v": 1}])
            report = broken.run()
            assert report.stopped["sums"] == "this cannot be planned"
            assert report.stopped["total"] == "it reads sums, which is stopped: this cannot be planned"
            assert rows(broken, "other") == [{"n": 21}]
            with raises(hw.ViewUnavailableError, view="sums", status="stopped"):
                broken.view("sums").read()
    with hw.open(ws.path, spark=inspect_workspace(ws).spark, settings=SETTINGS) as mended:
        mended.run()
        assert rows(mended, "total") == [{"x": 56}]
        assert mended.verify().ok


def test_two_views_may_change_places(ws: Workspace) -> None:
    ws.sql("DROP VIEW total")
    ws.sql("CREATE MATERIALIZED VIEW high AS SELECT k, x FROM sums WHERE x > 0")
    ws.run()
    ws.sql("CREATE OR REPLACE MATERIALIZED VIEW high AS SELECT k, sum(v) AS x FROM t GROUP BY k")
    ws.sql("CREATE OR REPLACE MATERIALIZED VIEW sums AS SELECT k, x FROM high WHERE x > 0")
    ws.run()
    assert ws.run().stopped == {}
    assert ws.verify().ok
    assert rows(ws, "sums") == rows(ws, "high")


def test_a_view_for_the_new_columns_waits_for_them(ws: Workspace) -> None:
    ws.sql(
        "CREATE OR REPLACE MATERIALIZED VIEW sums AS SELECT k, sum(v) AS x, count(*) AS n FROM t GROUP BY k"
    )
    ws.sql("CREATE MATERIALIZED VIEW count AS SELECT sum(n) AS n FROM sums")
    assert ws.run().stopped == {}
    assert rows(ws, "count") == [{"n": 20}]
