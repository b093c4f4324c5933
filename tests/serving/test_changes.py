"""What `changes` tells adds up: to the contents at every tick, and to the difference of any two that follow each other.

And a subscription fails when it cannot go on: when the view was rebuilt, or is not the one that it followed.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater import Workspace
from headwater.core.errors import TickNotKeptError
from headwater.engine.tick import backfill_parts
from headwater.engine.tick.listener import Listener
from headwater.testing import inspect_workspace
from tests.equation.generator import FEATURES, CreateView, Size, generate
from tests.equation.oracle import Oracle
from tests.equation.play import SETTINGS, Player
from tests.raising import raises

SIZE = Size(topics=2, views=3, steps=10, rows=6, depth=1)


def counted(rows: pa.Table) -> Counter[str]:
    """A table as a multiset. Rows of one view are of one make, so that their text tells them apart."""
    return Counter(repr(tuple(row.values())) for row in rows.to_pylist())


def changes_of(ws: Workspace, view: str, since: int = 0) -> dict[int, Counter[str]]:
    """The changes by tick; AssertionError if they are not netted."""
    found: dict[int, Counter[str]] = defaultdict(Counter)
    for row in ws.view(view).changes(since).to_pylist():
        weight, tick = row.pop("_weight"), row.pop("_tick")
        text = repr(tuple(row.values()))
        assert weight != 0
        assert text not in found[tick], f"{text} is twice in the changes of tick {tick}"
        found[tick][text] = weight
    return found


def plus(a: Counter[str], b: Counter[str]) -> Counter[str]:
    """The sum, weights below zero kept."""
    total = Counter(a)
    for row, weight in b.items():
        total[row] += weight
    return Counter({row: weight for row, weight in total.items() if weight})


def check_changes(ws: Workspace, *, chunks: set[str] | None = None) -> int:
    """Hold the changes of every view against its contents at every tick; how many ticks were compared."""
    store = inspect_workspace(ws).store
    latest = store.latest()
    assert latest is not None
    compared = 0
    for name, state in latest.views.items():
        if state.record.table or state.status != "live":
            continue
        changes = changes_of(ws, name)
        held: Counter[str] = Counter()
        was_live = False
        for tick in store.ticks():
            then = store.manifest(tick).views.get(name)
            if then is None or then.history != state.history:
                assert not changes.get(tick)
                continue
            if then.status != "live":
                assert not changes.get(tick), "a view that is no part of a tick changed in it"
                if chunks is not None and then.positions:
                    chunks.add(name)
                continue
            held = plus(held, changes.get(tick, Counter()))
            contents = counted(ws.view(name).read(as_of=tick))
            assert held == contents, f"{name}: changes up to tick {tick} are not its contents"
            if was_live and tick > 1:
                before = counted(ws.view(name).read(as_of=tick - 1))
                assert plus(before, changes.get(tick, Counter())) == contents, f"{name} at tick {tick}"
            was_live = True
            compared += 1
        middle = latest.tick // 2
        later = {t: c for t, c in changes.items() if t > middle}
        assert changes_of(ws, name, middle) == later, f"{name}: changes since {middle}"
    return compared


class Follower(Player):
    """Plays a case and follows every view, in place of comparing it with the oracle."""

    chunks: set[str]

    def _check_all(self) -> None:
        self.checked += check_changes(self.ws, chunks=self.chunks)

    def _check_between(self, first: int, last: int) -> None:
        pass


@pytest.mark.parametrize(
    "seed", [3, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 2, 4, 5, 8))]
)
def test_changes_add_up_to_the_contents_at_every_tick(
    seed: int, tmp_path: Path, spark: Any, oracle: Oracle
) -> None:
    case = generate(seed, SIZE, FEATURES)
    follower = Follower(case, tmp_path, oracle, spark)
    follower.chunks = set()
    follower.play()
    assert follower.checked


@pytest.mark.slow
@pytest.mark.parametrize("seed", [3, 6])
def test_changes_of_views_that_join_in_chunks_add_up(
    seed: int, tmp_path: Path, spark: Any, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_parts, "BACKFILL_ROWS", 3)
    size = Size(topics=2, views=4, steps=14, rows=6, depth=0)
    case = generate(seed, size, FEATURES - {"retention", "drop_view", "compaction"})
    assert any(isinstance(step, CreateView) for step in case.steps)
    follower = Follower(case, tmp_path, oracle, spark)
    follower.chunks = set()
    follower.play()
    assert follower.checked


@pytest.fixture
def ws(tmp_path: Path, spark: Any) -> Any:
    with hw.open(tmp_path / "ws", settings=SETTINGS, spark=spark) as workspace:
        workspace.sql("CREATE TOPIC t (a BIGINT, b BIGINT) WITH (partitions = 2)")
        workspace.sql("CREATE MATERIALIZED VIEW plain AS SELECT a, b FROM t")
        workspace.sql("CREATE MATERIALIZED VIEW sums AS SELECT a, sum(b) AS b FROM t GROUP BY a")
        for i in range(4):
            workspace.topic("t").append([{"a": j % 3, "b": i * j} for j in range(4)])
        workspace.run()
        yield workspace


class OneTick(Listener):
    """Ends a run after each tick."""

    enough = True


LATER = """
CREATE MATERIALIZED VIEW late AS SELECT a, count(*) AS n, max(b) AS b FROM t GROUP BY a;
CREATE MATERIALIZED VIEW later AS SELECT count(*) AS n, sum(b) AS b FROM late;
CREATE MATERIALIZED VIEW latest AS SELECT l.n AS n, t.b AS b FROM later l JOIN t ON t.a = l.n - 2;
"""


def test_a_view_that_is_created_midway_begins_with_all_that_it_holds(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backfill_parts, "BACKFILL_ROWS", 3)
    ws.sql(LATER)
    inspect_workspace(ws).on_progress(OneTick())
    for i in range(12):
        ws.topic("t").append([{"a": i, "b": i}])
        ws.run()
    inspect_workspace(ws).on_progress(Listener())
    ws.run()
    chunks: set[str] = set()
    check_changes(ws, chunks=chunks)
    assert "late" in chunks, "it was there at once"
    first = min(changes_of(ws, "late"))
    assert changes_of(ws, "late")[first] == counted(ws.view("late").read(as_of=first))
    assert ws.verify().ok


def test_views_above_one_that_is_replaced_follow_it_through_the_switch(
    ws: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ws.sql(LATER)
    ws.run()
    monkeypatch.setattr(backfill_parts, "BACKFILL_ROWS", 3)
    ws.sql(
        "CREATE OR REPLACE MATERIALIZED VIEW late AS SELECT a, count(*) AS n, min(b) AS b FROM t GROUP BY a"
    )
    last = inspect_workspace(ws).manifest()
    assert last is not None
    inspect_workspace(ws).on_progress(OneTick())
    ws.run()
    held = {view: counted(ws.view(view).read(as_of=last.tick)) for view in ("late", "later", "latest")}
    for view, before in held.items():
        assert counted(ws.view(view).read()) == before, "it is served as it was"
    inspect_workspace(ws).on_progress(Listener())
    report = ws.run()
    assert not report.stopped
    assert ws.verify().ok
    with raises(TickNotKeptError, rebuilt_at=report.tick):
        ws.view("late").changes(last.tick)
    for view in ("later", "latest"):
        now = plus(Counter(), held[view])
        for change in changes_of(ws, view, last.tick).values():
            now = plus(now, change)
        assert now == counted(ws.view(view).read())


def test_a_view_over_one_that_changes_at_once_follows_it(ws: Workspace) -> None:
    """The lower one is rebuilt within a tick: the upper one takes in the difference and goes on."""
    ws.sql("CREATE MATERIALIZED VIEW low AS SELECT a, b FROM t WHERE b > 2")
    ws.sql("CREATE MATERIALIZED VIEW high AS SELECT count(*) AS n, sum(b) AS b FROM low")
    ws.run()
    ws.sql("CREATE OR REPLACE MATERIALIZED VIEW low AS SELECT a, b FROM t WHERE b > 4")
    replaced = ws.run()
    assert ws.verify().ok
    held: Counter[str] = Counter()
    for change in changes_of(ws, "high").values():
        held = plus(held, change)
    assert held == counted(ws.view("high").read())
    with raises(TickNotKeptError, rebuilt_at=replaced.tick):
        ws.view("low").changes(2)


def test_changes_of_a_view_that_was_dropped_and_created_again_cannot_be_followed(ws: Workspace) -> None:
    ws.sql("DROP VIEW sums")
    gone = ws.run()
    ws.sql("CREATE MATERIALIZED VIEW sums AS SELECT a, sum(b) + 1 AS b FROM t GROUP BY a")
    ws.run()
    with raises(TickNotKeptError, rebuilt_at=gone.tick + 1):
        ws.view("sums").changes(1)
    assert changes_of(ws, "sums", gone.tick).keys() == {gone.tick + 1}, "after it was gone there was nothing"
