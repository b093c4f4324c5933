"""A view built anew: beside what is served, compared with its SELECT, switched in one tick; the old one stays until told."""

from __future__ import annotations

import threading
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
from headwater.verify import shadow_comparison
from tests.serving.test_changes import OneTick

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)


@pytest.fixture
def ws(tmp_path: Path, spark: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[Workspace]:
    """A workspace in which a view takes several ticks to catch up."""
    with hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS, keep_ticks=3) as opened:
        opened.sql("CREATE TOPIC t (k BIGINT, v BIGINT)")
        opened.sql("CREATE MATERIALIZED VIEW sums AS SELECT k, sum(v) AS x FROM t GROUP BY k")
        opened.sql("CREATE MATERIALIZED VIEW total AS SELECT sum(x) AS x FROM sums")
        for i in range(10):
            opened.topic("t").append([{"k": i % 2, "v": i}, {"k": 0, "v": 1}])
        opened.run()
        monkeypatch.setattr(backfill_parts, "BACKFILL_ROWS", 8)
        yield opened


def one_tick(ws: Workspace) -> None:
    inspect_workspace(ws).on_progress(OneTick())
    ws.run()
    inspect_workspace(ws).on_progress(Listener())


def rows(ws: Workspace, view: str, as_of: int | None = None) -> list[dict[str, Any]]:
    return sorted(ws.view(view).read(as_of=as_of).to_pylist(), key=str)


def incarnation(ws: Workspace, view: str) -> int:
    latest = inspect_workspace(ws).manifest()
    assert latest is not None
    return latest.views[view].incarnation


def test_it_is_served_all_the_while_and_the_old_one_can_be_read_until_it_is_dropped(ws: Workspace) -> None:
    before = incarnation(ws, "sums"), incarnation(ws, "total")
    assert ws.view("sums").rebuild() == ["sums", "total"]
    all_of_it = 55
    for i in range(6):
        ws.topic("t").append([{"k": 0, "v": i}])
        all_of_it += i
        one_tick(ws)
        assert rows(ws, "total") == [{"x": all_of_it}]
        assert sum(r["x"] for r in rows(ws, "sums")) == all_of_it
    shown = {r["view"]: r for r in ws.sql("SHOW VIEWS").to_pylist()}  # type: ignore[union-attr]
    assert shown["sums"]["reason"] == "a shadow build of it is running"
    report = ws.run()
    assert report.stopped == {}
    now = incarnation(ws, "sums"), incarnation(ws, "total")
    assert now[0] > before[0]
    assert now[1] > before[1]
    latest = inspect_workspace(ws).manifest()
    assert latest is not None
    assert set(latest.views) == {"sums", "total"}
    assert ws.verify().ok
    old = ws.view("sums").old
    assert old is not None
    served = rows(ws, "sums", as_of=old)
    for i in range(18):  # many more ticks than are kept, and one that collects
        ws.topic("t").append([{"k": 1, "v": i}])
        ws.run()
    assert old in inspect_workspace(ws).ticks()
    assert rows(ws, "sums", as_of=old) == served
    assert ws.view("sums").drop_old() == old
    assert ws.view("sums").old is None
    ws.view("total").drop_old()
    for _ in range(17):
        ws.topic("t").append([{"k": 1, "v": 1}])
        ws.run()
    assert old not in inspect_workspace(ws).ticks()
    assert ws.verify().ok


def test_one_that_is_not_its_select_is_not_put_in_place(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = incarnation(ws, "sums")
    ws.view("sums").rebuild()
    with monkeypatch.context() as patched:
        patched.setattr(shadow_comparison, "held_against", lambda *_: "1 row differs")
        report = ws.run()
    assert "the shadow build differs from its SELECT" in report.stopped["sums~next"]
    assert incarnation(ws, "sums") == before
    assert rows(ws, "total") == [{"x": 55}]
    ws.topic("t").append([{"k": 0, "v": 1}])
    ws.run()
    assert rows(ws, "total") == [{"x": 56}]
    ws.sql("CREATE OR REPLACE MATERIALIZED VIEW sums AS SELECT k, max(v) AS x FROM t GROUP BY k")
    assert ws.run().stopped == {}, "what was found of the one before is not held against another definition"
    ws.sql("CREATE OR REPLACE MATERIALIZED VIEW sums AS SELECT k, sum(v) AS x FROM t GROUP BY k")
    assert ws.run().stopped == {}
    ws.view("sums").rebuild()  # begins anew
    assert ws.run().stopped == {}
    assert incarnation(ws, "sums") > before
    assert rows(ws, "total") == [{"x": 56}]


def test_it_is_not_compared_if_that_is_not_wanted(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow_comparison, "held_against", lambda *_: "never called")
    before = incarnation(ws, "sums")
    ws.view("sums").rebuild(verify=False)
    assert ws.run().stopped == {}
    assert incarnation(ws, "sums") > before


def test_a_crash_at_any_step_leaves_one_version_in_place(ws: Workspace, spark: Any) -> None:
    """Before it has caught up, before it is compared, and before it is switched to: what comes next goes on from there."""
    ws.view("sums").rebuild()
    path = ws.path
    assert path is not None
    ws.log.close()
    for step in range(12):
        with hw.open(path, spark=spark, settings=SETTINGS) as again:
            ticks = inspect_workspace(again).ticks()
            one_tick(again)
            assert rows(again, "total") == [{"x": 55}], step
            latest = inspect_workspace(again).manifest()
            if ticks == inspect_workspace(again).ticks() or not latest or len(latest.views) == 2:
                again.run()
            again.log.close()
    with hw.open(path, spark=spark, settings=SETTINGS) as again:
        again.run()
        latest = inspect_workspace(again).manifest()
        assert latest is not None
        assert set(latest.views) == {"sums", "total"}
        assert again.view("sums").old is not None
        assert again.verify().ok


def test_an_engine_that_keeps_going_compares_it_and_switches(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = incarnation(ws, "sums")
    runner = ws.start(every="20 ms")
    try:
        ws.view("sums").rebuild()
        for i in range(10):
            ws.topic("t").append([{"k": 0, "v": i}])
        inspect_workspace(ws).views.reach(ws.topic("t").append([{"k": 0, "v": 0}]), 60_000)
        ws.run()  # beside a running engine: until it has got there
        assert incarnation(ws, "sums") > before
        assert rows(ws, "total") == [{"x": 100}]
        now = incarnation(ws, "sums")
        with monkeypatch.context() as patched:
            patched.setattr(shadow_comparison, "held_against", lambda *_: "1 row differs")
            ws.view("sums").rebuild()
            ws.run()  # it is not waited for what is not going to be
        assert incarnation(ws, "sums") == now
    finally:
        runner.stop()
    assert ws.verify().ok


@pytest.mark.parametrize("where", ["held_against", "view_contents"])
def test_a_comparison_that_fails_is_tried_some_times_and_then_said(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    before, tried = incarnation(ws, "sums"), list[int]()

    def fail(*_: object) -> str:
        tried.append(1)
        raise MemoryError("no more memory")

    monkeypatch.setattr(shadow_comparison, "REST_S", 0.01)
    monkeypatch.setattr(shadow_comparison, where, fail)
    ws.view("total").rebuild()
    if where == "held_against":
        report = ws.run()
        assert "after 3 tries: MemoryError: no more memory" in report.stopped["total~next"]
    else:
        with ws.start(every="20 ms"):
            ws.run()  # ends: it is not waited for what is not going to be
    assert len(tried) == 3
    assert incarnation(ws, "sums") == before
    shown = {r["view"]: r for r in ws.sql("SHOW VIEWS").to_pylist()}  # type: ignore[union-attr]
    assert "stays active: the shadow build could not be compared" in shown["total"]["reason"]
    assert rows(ws, "total") == [{"x": 55}]
    monkeypatch.undo()
    ws.view("total").rebuild()
    assert ws.run().stopped == {}


def test_an_engine_that_stops_does_not_wait_for_a_comparison(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, ended = threading.Event(), threading.Event()

    def take_long(*_: object) -> None:
        begun.set()
        ended.wait(60)

    monkeypatch.setattr(shadow_comparison, "held_against", take_long)
    monkeypatch.setattr(shadow_comparison, "CLOSE_S", 0.01)
    runner = ws.start(every="20 ms")
    ws.view("total").rebuild()
    assert begun.wait(60)
    runner.stop()
    assert not ended.is_set()
    ended.set()
    for thread in [t for t in threading.enumerate() if t.name == "headwater-trials"]:
        thread.join(60)


def test_a_view_that_is_stopped_is_built_in_its_place(ws: Workspace) -> None:
    ws.sql("CREATE MATERIALIZED VIEW bad AS SELECT k, sum(1000 div v) AS x FROM t GROUP BY k")
    assert "bad" in ws.run().stopped
    ws.view("bad").rebuild()
    assert "bad" in ws.run().stopped
    assert ws.view("bad").old is None
