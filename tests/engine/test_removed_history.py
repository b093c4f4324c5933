"""Removing history never changes a view: its base takes the place of what is gone, and is told apart from the log."""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import headwater as hw
from headwater import Workspace
from headwater.core.clock import ManualClock, from_us
from headwater.core.settings import LogSettings
from headwater.engine.tick import tick_engine
from headwater.engine.tick.listener import Listener
from headwater.state.base_ticks import Bases
from headwater.testing import inspect_workspace
from tests.raising import raises
from tests.serving.test_changes import OneTick

pytestmark = pytest.mark.slow

SETTINGS = LogSettings(durability="os", maintenance_every_ms=0)
SCHEMA = """
CREATE TOPIC orders (customer BIGINT, amount BIGINT) WITH (retention = '1 hour', partitions = 2);
CREATE TOPIC customers (id BIGINT, country STRING, PRIMARY KEY (id)) WITH (cleanup = 'compact');
CREATE TOPIC prices (item BIGINT, price BIGINT, PRIMARY KEY (item)) WITH (retention = '1 hour');
CREATE MATERIALIZED VIEW spent AS SELECT customer, sum(amount) AS s, max(amount) AS m FROM orders GROUP BY customer;
CREATE MATERIALIZED VIEW by_country AS
  SELECT c.country, sum(o.amount) AS s FROM orders o JOIN customers c ON o.customer = c.id GROUP BY c.country;
CREATE MATERIALIZED VIEW best AS SELECT customer, s FROM spent ORDER BY s DESC, customer LIMIT 2;
CREATE MATERIALIZED VIEW listed AS SELECT count(*) AS n, sum(price) AS p FROM prices;
"""
VIEWS = ("spent", "by_country", "best", "listed")

Open = Callable[[], Workspace]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def open_ws(tmp_path: Path, spark: Any, clock: ManualClock) -> Iterator[Open]:
    opened: list[Workspace] = []

    def again() -> Workspace:
        for ws in opened:
            ws.close()
        opened.append(hw.open(tmp_path / "ws", spark=spark, settings=SETTINGS, clock=clock))
        return opened[-1]

    yield again
    opened[-1].close()


def fill(ws: Workspace, since: int) -> None:
    ws.topic("orders").append([{"customer": i % 3, "amount": since + i} for i in range(9)])
    ws.topic("customers").append([{"id": since % 3, "country": "ABC"[since % 3]}, {"id": 1, "country": "X"}])
    ws.topic("prices").append([{"item": since % 5, "price": since}])


def contents(ws: Workspace) -> dict[str, list[str]]:
    return {name: sorted(map(str, ws.view(name).read().to_pylist())) for name in VIEWS}


def with_history_removed(open_ws: Open, clock: ManualClock) -> Workspace:
    ws = open_ws()
    ws.sql(SCHEMA)
    for since in range(4):
        fill(ws, since)
        ws.run()
        clock.advance("10 minutes")
    clock.advance("2 hours")
    assert ws.maintain().rows_removed > 0
    fill(ws, 4)
    ws.run()
    return ws


def test_views_hold_what_they_held_when_their_records_are_gone(open_ws: Open, clock: ManualClock) -> None:
    ws = with_history_removed(open_ws, clock)
    assert ws.log.partitions("orders")[0].first > 0
    assert ws.query("SELECT sum(m) FROM spent").to_pylist() != []
    assert ws.verify().ok
    total = ws.query("SELECT sum(s) AS s FROM spent").to_pylist()[0]["s"]
    assert total == sum(since * 9 + sum(range(9)) for since in range(5))


def test_all_state_can_be_deleted_but_the_base(open_ws: Open, clock: ManualClock) -> None:
    ws = with_history_removed(open_ws, clock)
    fill(ws, 5)
    report = ws.run()
    before = contents(ws)
    assert ws.path is not None
    shutil.rmtree(ws.path / "state")
    ws = open_ws()
    again = ws.run()
    assert contents(ws) == before
    assert again.tick > report.tick
    assert ws.verify().ok
    fill(ws, 6)
    ws.run()
    assert ws.verify().ok


def test_with_nothing_new_the_views_come_back_from_the_base_alone(open_ws: Open, clock: ManualClock) -> None:
    ws = with_history_removed(open_ws, clock)
    before = contents(ws)
    assert ws.path is not None
    shutil.rmtree(ws.path / "state")
    ws = open_ws()
    ws.run()
    assert contents(ws) == before


@pytest.mark.parametrize("view", VIEWS)
def test_a_view_is_rebuilt_from_its_base_and_the_log(view: str, open_ws: Open, clock: ManualClock) -> None:
    ws = with_history_removed(open_ws, clock)
    fill(ws, 5)
    ws.run()
    before = contents(ws)
    fill(ws, 6)
    ws.view(view).rebuild()
    ws.run()
    assert ws.verify().ok
    assert contents(ws) != before


def test_verify_says_which_views_the_log_alone_cannot_prove(open_ws: Open, clock: ManualClock) -> None:
    proved_on_base: set[str] = set()

    class Heard(Listener):
        def verified(self, view: str, difference: str | None, *, on_base: bool = False) -> None:
            if on_base:
                proved_on_base.add(view)

    ws = with_history_removed(open_ws, clock)
    inspect_workspace(ws).on_progress(Heard())
    assert ws.verify().ok
    assert proved_on_base == {"spent", "by_country"}


def test_a_difference_from_the_base_is_found(open_ws: Open, clock: ManualClock, monkeypatch: Any) -> None:
    from headwater.verify import verification

    ws = with_history_removed(open_ws, clock)
    honest = verification.view_contents
    monkeypatch.setattr(verification, "view_contents", lambda *a: honest(*a).slice(1))
    found = {finding.file for finding in ws.verify().differences}
    assert {"view spent", "view by_country"} <= found


def test_a_view_made_later_begins_at_the_oldest_records_kept(open_ws: Open, clock: ManualClock) -> None:
    ws = with_history_removed(open_ws, clock)
    first = {p: info.first for p, info in ws.log.partitions("orders").items()}
    ws.sql("CREATE MATERIALIZED VIEW late AS SELECT count(*) AS n FROM orders")
    ws.run()
    kept = sum(info.rows for info in ws.log.partitions("orders").values())
    assert ws.query("SELECT n FROM late").to_pylist() == [{"n": kept}]
    assert ws.verify().ok
    told = {r["property"]: r["value"] for r in (ws.sql("EXPLAIN late") or []).to_pylist()}
    assert f"partition 0 of orders at offset {first[0]}" in told["begins"]


def test_records_stay_as_long_as_a_view_has_not_read_them(open_ws: Open, clock: ManualClock) -> None:
    ws = open_ws()
    ws.sql(SCHEMA)
    fill(ws, 0)
    clock.advance("2 hours")
    assert ws.maintain().rows_removed == 0
    ws.run()
    assert ws.maintain().rows_removed > 0
    assert ws.verify().ok


def test_retention_that_is_declared_later_keeps_the_views_too(open_ws: Open, clock: ManualClock) -> None:
    ws = open_ws()
    ws.sql("CREATE TOPIC t (k BIGINT, v BIGINT, PRIMARY KEY (k)) WITH (cleanup = 'compact')")
    ws.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n, sum(v) AS v FROM t")
    ws.topic("t").append([{"k": i, "v": i} for i in range(5)])
    ws.run()
    clock.advance("2 hours")
    ws.sql("ALTER TOPIC t SET (cleanup = 'delete', retention = '1 hour')")
    ws.maintain()
    ws.topic("t").append([{"k": 1, "v": 10}])
    ws.run()
    assert ws.query("SELECT * FROM n").to_pylist() == [{"n": 5, "v": 19}]
    assert ws.path is not None
    shutil.rmtree(ws.path / "state")
    ws = open_ws()
    ws.run()
    assert ws.query("SELECT * FROM n").to_pylist() == [{"n": 5, "v": 19}]


# --- ticks of long ago -------------------------------------------------------------------------------------------------


def test_a_tick_that_is_kept_no_more_is_computed_from_the_log(
    open_ws: Open, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick_engine, "TICKS_KEPT", 2)
    monkeypatch.setattr(tick_engine, "TICKS_KEPT_MAX", 2)
    monkeypatch.setattr(tick_engine, "COLLECT_EVERY_TICKS", 1)
    ws = open_ws()
    ws.sql(SCHEMA.replace("retention = '1 hour', ", "").replace(" WITH (retention = '1 hour')", ""))
    served = {}
    for since in range(6):
        fill(ws, since)
        tick = ws.run().tick
        served[tick] = (contents(ws), from_us(clock.now_us()))
        clock.advance("10 minutes")
    assert inspect_workspace(ws).ticks() == sorted(served)[-2:]
    for tick, (then, at) in served.items():
        for name in VIEWS:
            assert sorted(map(str, ws.view(name).read(as_of=tick).to_pylist())) == then[name]
        assert sorted(map(str, ws.query("SELECT * FROM spent", as_of=at).to_pylist())) == then["spent"]
    n = ws.query("SELECT count(*) AS n FROM orders", as_of=min(served)).to_pylist()
    assert n == [{"n": 9}]


def test_a_tick_of_a_view_that_was_replaced_is_what_it_was(
    open_ws: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick_engine, "TICKS_KEPT", 1)
    monkeypatch.setattr(tick_engine, "TICKS_KEPT_MAX", 1)
    monkeypatch.setattr(tick_engine, "COLLECT_EVERY_TICKS", 1)
    ws = open_ws()
    ws.sql("CREATE TOPIC t (a BIGINT); CREATE MATERIALIZED VIEW v AS SELECT sum(a) AS s FROM t")
    ws.topic("t").append([{"a": 1}])
    first = ws.run().tick
    ws.sql("CREATE OR REPLACE MATERIALIZED VIEW v AS SELECT max(a) AS m, count(*) AS n FROM t")
    ws.topic("t").append([{"a": 2}])
    ws.run()
    ws.topic("t").append([{"a": 3}])
    ws.run()
    assert ws.view("v").read(as_of=first).to_pylist() == [{"s": 1}]
    assert ws.view("v").read().to_pylist() == [{"m": 3, "n": 3}]


def test_a_tick_whose_records_are_gone_is_refused_by_naming_what_is_there(
    open_ws: Open, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick_engine, "TICKS_KEPT", 1)
    monkeypatch.setattr(tick_engine, "TICKS_KEPT_MAX", 1)
    monkeypatch.setattr(tick_engine, "COLLECT_EVERY_TICKS", 1)
    ws = with_history_removed(open_ws, clock)
    base = inspect_workspace(ws).manifest()
    assert base is not None
    later = []
    for since in range(5, 8):
        fill(ws, since)
        later.append((ws.run().tick, contents(ws)))
    base = Bases(inspect_workspace(ws).store.storage).newest()
    assert base is not None
    with raises(
        hw.TickNotKeptError, reason="history-removed", view="spent", tick=1, first_available=base.tick
    ):
        ws.view("spent").read(as_of=1)
    for tick, then in later:
        assert sorted(map(str, ws.view("spent").read(as_of=tick).to_pylist())) == then["spent"]
        assert sorted(map(str, ws.view("by_country").read(as_of=tick).to_pylist())) == then["by_country"]


def test_a_tick_that_compaction_has_blurred_is_refused(
    open_ws: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tick_engine, "TICKS_KEPT", 1)
    monkeypatch.setattr(tick_engine, "TICKS_KEPT_MAX", 1)
    monkeypatch.setattr(tick_engine, "COLLECT_EVERY_TICKS", 1)
    ws = open_ws()
    ws.sql("CREATE TOPIC t (k BIGINT, v BIGINT, PRIMARY KEY (k)) WITH (cleanup = 'compact')")
    ws.sql("CREATE MATERIALIZED VIEW s AS SELECT sum(v) AS s FROM t")
    ticks = []
    for v in range(3):
        ws.topic("t").append([{"k": 1, "v": v}])
        ticks.append(ws.run().tick)
    assert ws.view("s").read(as_of=ticks[0]).to_pylist() == [{"s": 0}]
    assert ws.maintain().rows_compacted == 2
    with raises(hw.TickNotKeptError, reason="compacted", topic="t", tick=ticks[0]):
        ws.view("s").read(as_of=ticks[0])
    assert ws.view("s").read().to_pylist() == [{"s": 2}]
    assert ws.verify().ok


# --- what would lose history without a word -----------------------------------------------------------------------------


def test_a_topic_made_again_under_its_name_has_nothing_to_do_with_the_base(
    open_ws: Open, clock: ManualClock
) -> None:
    topic = "CREATE TOPIC t (v BIGINT) WITH (retention = '1 hour', partitions = {})"
    view = "CREATE MATERIALIZED VIEW s AS SELECT sum(v) AS s FROM t"
    ws = open_ws()
    ws.sql(f"{topic.format(1)}; {view}")
    ws.topic("t").append([{"v": 100}])
    ws.run()
    clock.advance("2 hours")
    assert ws.maintain().rows_removed == 1
    ws.sql("DROP TOPIC t CASCADE")
    ws.sql(topic.format(2))
    ws.topic("t").append([{"v": 1}])
    clock.advance("2 hours")
    ws.maintain()
    ws.topic("t").append([{"v": 2}, {"v": 5}])
    ws.sql(view)
    ws.run()
    assert ws.view("s").read().to_pylist() == [{"s": 7}]
    assert ws.verify().ok


def test_records_stay_while_a_view_is_built_from_all_of_them_again(open_ws: Open, clock: ManualClock) -> None:
    """The base has it already, but what is being built has not read them yet."""
    ws = open_ws()
    ws.sql("CREATE TOPIC t (k BIGINT, v BIGINT) WITH (retention = '1 hour')")
    ws.sql("CREATE MATERIALIZED VIEW s AS SELECT k, sum(v) AS s FROM t GROUP BY k")
    for _ in range(6):
        ws.topic("t").append([{"k": 1, "v": 1}] * 5)
        ws.run()
    clock.advance("2 hours")
    inspect_workspace(ws).release_records()
    assert ws.path is not None
    for file in (ws.path / "state" / "runs").iterdir():
        file.unlink()
    ws = open_ws()
    inspect_workspace(ws).on_progress(OneTick())
    ws.run(tick_rows=5)
    ws.log.maintain(force=True)
    inspect_workspace(ws).on_progress(Listener())
    ws.run()
    assert ws.view("s").read().to_pylist() == [{"k": 1, "s": 30}]


def test_a_view_that_has_stopped_keeps_its_base_until_it_goes_on(open_ws: Open, clock: ManualClock) -> None:
    ws = open_ws()
    ws.sql("CREATE TOPIC t (k BIGINT, v BIGINT) WITH (retention = '1 hour')")
    ws.sql("CREATE TOPIC m (k BIGINT, y STRING, PRIMARY KEY (k))")
    ws.sql("CREATE MATERIALIZED VIEW a AS SELECT k, CAST(y AS BIGINT) AS x FROM m")
    ws.sql("CREATE MATERIALIZED VIEW c AS SELECT a.x, sum(t.v) AS s FROM t JOIN a ON t.k = a.k GROUP BY a.x")
    ws.topic("m").append([{"k": 1, "y": "7"}])
    ws.topic("t").append([{"k": 1, "v": 100}])
    ws.run()
    clock.advance("2 hours")
    assert ws.maintain().rows_removed == 1
    ws.topic("m").append([{"k": 2, "y": "bad"}])
    assert set(ws.run().stopped) == {"a", "c"}
    ws.topic("t").append([{"k": 1, "v": 1}])
    ws.run()
    clock.advance("2 hours")
    ws.maintain()
    ws.sql("CREATE OR REPLACE MATERIALIZED VIEW a AS SELECT k, TRY_CAST(y AS BIGINT) AS x FROM m")
    ws.run()
    assert ws.view("c").read().to_pylist() == [{"x": 7, "s": 101}]
    assert ws.verify().ok


def test_what_would_be_made_from_less_is_refused(open_ws: Open, clock: ManualClock) -> None:
    ws = with_history_removed(open_ws, clock)
    with raises(hw.UsageError, reason="history-removed", view="spent"):
        ws.sql(
            "CREATE OR REPLACE MATERIALIZED VIEW spent AS SELECT customer, sum(amount) + 0 AS s, "
            "max(amount) AS m FROM orders GROUP BY customer"
        )
    ws.sql("CREATE TOPIC n (v INT) WITH (retention = '1 hour')")
    ws.sql("CREATE MATERIALIZED VIEW most AS SELECT max(v) AS v FROM n")
    ws.topic("n").append([{"v": 9}])
    ws.run()
    clock.advance("2 hours")
    ws.maintain()
    with raises(hw.UsageError, reason="history-removed", view="most"):
        ws.sql("ALTER TOPIC n ALTER COLUMN v TYPE BIGINT")
    assert ws.view("most").read().to_pylist() == [{"v": 9}]


# --- views that are no part of the tick ---------------------------------------------------------------------------------

STOPPABLE = """
CREATE TOPIC t (k BIGINT, v BIGINT) WITH (retention = '1 hour');
CREATE TOPIC u (k BIGINT, v BIGINT) WITH (retention = '1 hour');
CREATE TOPIC m (k BIGINT, y STRING, PRIMARY KEY (k));
CREATE MATERIALIZED VIEW s AS SELECT k, sum(v) AS s FROM t GROUP BY k;
CREATE MATERIALIZED VIEW a AS SELECT k, CAST(y AS BIGINT) AS x FROM m;
CREATE MATERIALIZED VIEW c AS SELECT m.y, sum(u.v) AS s FROM u JOIN m ON u.k = m.k WHERE CAST(m.y AS DOUBLE) > 0 GROUP BY m.y;
"""


def stoppable(ws: Workspace) -> None:
    ws.sql(STOPPABLE)
    ws.append({"t": [{"k": 1, "v": 1}], "u": [{"k": 1, "v": 100}], "m": [{"k": 1, "y": "7"}]})
    ws.run()


def ends(ws: Workspace, topic: str) -> tuple[int, int]:
    """The first record that is kept, and the end."""
    (info,) = ws.log.partitions(topic).values()
    return info.first, info.end


@pytest.mark.parametrize(
    "made", ["concat(k, '#2')", "concat(k, concat('#', '3'))", "concat('k', '#1')", "concat(k, '#1', '')"]
)
def test_a_view_that_is_made_again_has_nothing_of_one_that_prints_alike(
    open_ws: Open, clock: ManualClock, made: str
) -> None:
    ws = open_ws()
    ws.sql("CREATE TOPIC t (k STRING) WITH (retention = '1 hour')")
    ws.sql("CREATE MATERIALIZED VIEW v AS SELECT concat(k, '#1') AS x FROM t")
    ws.topic("t").append([{"k": "a"}])
    ws.run()
    clock.advance("2 hours")
    assert ws.maintain().rows_removed == 1
    ws.sql(f"DROP VIEW v; CREATE MATERIALIZED VIEW v AS SELECT {made} AS x FROM t")
    ws.topic("t").append([{"k": "b"}])
    ws.run()
    assert ws.view("v").read().num_rows == 1


def test_a_view_that_is_made_again_with_other_constants_has_nothing_of_the_one_before(
    open_ws: Open, clock: ManualClock
) -> None:
    def view(fifteenth: int) -> str:
        values = ", ".join(f"({fifteenth if i == 15 else i})" for i in range(40))
        return f"CREATE MATERIALIZED VIEW v AS SELECT t.k FROM t JOIN (VALUES {values}) AS c (y) ON t.k = c.y"

    ws = open_ws()
    ws.sql("CREATE TOPIC t (k BIGINT) WITH (retention = '1 hour')")
    ws.sql(view(15))
    ws.topic("t").append([{"k": 15}])
    ws.run()
    clock.advance("2 hours")
    assert ws.maintain().rows_removed == 1
    ws.sql(f"DROP VIEW v; {view(1000)}")
    ws.topic("t").append([{"k": 1000}, {"k": 15}])
    ws.run()
    assert ws.view("v").read().to_pylist() == [{"k": 1000}]


def test_a_view_that_has_stopped_and_lost_nothing_keeps_only_what_it_reads(
    open_ws: Open, clock: ManualClock
) -> None:
    ws = open_ws()
    stoppable(ws)
    ws.topic("m").append([{"k": 2, "y": "bad"}])
    assert set(ws.run().stopped) == {"a", "c"}
    ws.append({"t": [{"k": 1, "v": 2}], "u": [{"k": 1, "v": 1}]})
    ws.run()
    clock.advance("2 hours")
    report = ws.maintain()
    assert (ends(ws, "t"), ends(ws, "u")) == ((2, 2), (0, 2))
    assert [(w.topic, w.view, w.status) for w in report.waiting] == [("u", "c", "stopped")]
    assert "DROP VIEW c" in report.waiting[0].hint
    assert "bad" in str(report.waiting[0].reason)
    base = Bases(inspect_workspace(ws).store.storage).newest()
    assert base is not None
    assert set(base.views) == {"s", "m"}
    assert ws.path is not None
    for _ in range(2):  # with the state, then from the base and the log alone
        assert ws.view("s").read().to_pylist() == [{"k": 1, "s": 3}]
        assert set(ws.run().stopped) == {"a", "c"}
        shutil.rmtree(ws.path / "state")
        ws = open_ws()
        ws.run()
    ws.topic("m").append([{"k": 2, "y": "8"}])
    ws.view("a").rebuild()
    ws.view("c").rebuild()
    assert ws.run().stopped == {}
    assert ws.view("c").read().to_pylist() == [{"y": "7", "s": 101}]
    assert sorted(ws.view("a").read().to_pydict()["x"]) == [7, 8]
    assert ws.verify().ok
    clock.advance("2 hours")
    assert ws.maintain().waiting == ()
    assert ends(ws, "u") == (2, 2)
    assert ws.verify().ok


def test_what_waits_for_a_view_whose_base_is_needed_is_told_until_it_is_dropped(
    open_ws: Open, clock: ManualClock
) -> None:
    ws = open_ws()
    stoppable(ws)
    clock.advance("2 hours")
    assert ws.maintain().waiting == ()
    ws.topic("m").append([{"k": 2, "y": "bad"}])
    ws.append({"t": [{"k": 1, "v": 2}], "u": [{"k": 1, "v": 1}]})
    assert set(ws.run().stopped) == {"a", "c"}
    clock.advance("2 hours")
    report = ws.maintain()
    assert report.rows_removed == 0
    assert [(w.topic, w.view, w.status) for w in report.waiting] == [
        ("t", "c", "stopped"),
        ("u", "c", "stopped"),
    ]
    ws.sql("DROP VIEW c")
    report = ws.maintain()
    assert report.waiting == ()
    assert (ends(ws, "t"), ends(ws, "u")) == ((2, 2), (2, 2))
    ws.sql("DROP VIEW a")
    assert ws.view("s").read().to_pylist() == [{"k": 1, "s": 3}]
    assert ws.verify().ok


def test_what_waits_for_a_view_that_has_yet_to_run_is_told(open_ws: Open, clock: ManualClock) -> None:
    ws = open_ws()
    ws.sql(STOPPABLE)
    ws.topic("t").append([{"k": 1, "v": 1}])
    clock.advance("2 hours")
    report = ws.maintain()
    assert [(w.topic, w.view, w.status) for w in report.waiting] == [("t", "s", "backfilling")]
    assert "headwater run" in report.waiting[0].hint
    ws.run()
    report = ws.maintain()
    assert (report.rows_removed, report.waiting) == (1, ())


def test_a_view_that_is_being_built_keeps_only_what_it_reads(open_ws: Open, clock: ManualClock) -> None:
    ws = open_ws()
    ws.sql("CREATE TOPIC t (v BIGINT) WITH (retention = '1 hour')")
    ws.sql("CREATE TOPIC u (v BIGINT) WITH (retention = '1 hour')")
    ws.sql("CREATE MATERIALIZED VIEW s AS SELECT sum(v) AS s FROM t")
    for _ in range(4):
        ws.append({"t": [{"v": 1}] * 5, "u": [{"v": 1}] * 5})
    ws.run()
    ws.sql("CREATE MATERIALIZED VIEW b AS SELECT sum(v) AS s FROM u")
    clock.advance("2 hours")
    inspect_workspace(ws).on_progress(OneTick())
    ws.run(tick_rows=5)
    report = ws.maintain()
    assert [(w.topic, w.view, w.status) for w in report.waiting] == [("u", "b", "backfilling")]
    assert (ends(ws, "t"), ends(ws, "u")) == ((20, 20), (0, 20))
    assert ws.path is not None
    shutil.rmtree(ws.path / "state")
    ws = open_ws()
    ws.run()
    assert [ws.view(name).read().to_pylist() for name in "sb"] == [[{"s": 20}], [{"s": 20}]]
    assert ws.verify().ok
    clock.advance("2 hours")
    ws.maintain()
    assert ends(ws, "u") == (20, 20)
    assert ws.verify().ok


def test_retention_that_is_declared_while_a_view_has_stopped_takes_nothing_from_it(
    open_ws: Open, clock: ManualClock
) -> None:
    ws = open_ws()
    ws.sql(STOPPABLE.replace("u (k BIGINT, v BIGINT) WITH (retention = '1 hour')", "u (k BIGINT, v BIGINT)"))
    ws.append({"t": [{"k": 1, "v": 1}], "u": [{"k": 1, "v": 100}], "m": [{"k": 1, "y": "7"}]})
    ws.run()
    clock.advance("2 hours")
    assert ws.maintain().rows_removed == 1  # a base that every view is in, and u is let go of
    ws.append({"t": [{"k": 1, "v": 2}], "m": [{"k": 2, "y": "bad"}]})
    assert set(ws.run().stopped) == {"a", "c"}
    clock.advance("2 hours")
    assert ws.maintain().rows_removed == 1
    ws.sql("ALTER TOPIC u SET (retention = '1 hour')")
    clock.advance("2 hours")
    assert ws.maintain().rows_removed == 0
    ws.run()
    assert [(w.topic, w.view) for w in ws.maintain().waiting] == [("u", "c")]
    ws.topic("m").append([{"k": 2, "y": "8"}])
    ws.view("c").rebuild()
    ws.run()
    assert ws.view("c").read().to_pylist() == [{"y": "7", "s": 100}]


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.long)])
def test_whatever_stops_and_goes_on_no_view_loses_what_it_was_made_from(
    seed: int, open_ws: Open, clock: ManualClock
) -> None:
    chance = random.Random(seed)
    ws = open_ws()
    ws.sql(STOPPABLE)
    summed: dict[str, Counter[int]] = {"t": Counter(), "u": Counter()}
    texts: dict[int, str] = {}
    assert ws.path is not None

    def check() -> None:
        by_text: Counter[str] = Counter()
        for k, total in summed["u"].items():
            if k in texts:
                by_text[texts[k]] += total
        expected = {
            "s": [{"k": k, "s": total} for k, total in summed["t"].items()],
            "a": [{"k": k, "x": int(y)} for k, y in texts.items() if y.isdigit()],
            "c": [{"y": y, "s": total} for y, total in by_text.items()],
        }
        manifest = inspect_workspace(ws).manifest()
        assert manifest is not None
        for name, rows in expected.items():
            if manifest.views[name].status == "live":
                assert sorted(map(str, ws.view(name).read().to_pylist())) == sorted(map(str, rows)), name

    for _ in range(16):
        for topic in "tu":
            rows = [{"k": chance.randrange(3), "v": chance.randrange(9)} for _ in range(2)]
            ws.topic(topic).append(rows)
            for row in rows:
                summed[topic][row["k"]] += row["v"]
        k = chance.randrange(4)
        texts[k] = chance.choice(["bad", "1.5", str(k + 1), str(k + 1)])  # nobody, c alone, a and c take it
        ws.topic("m").append([{"k": k, "y": texts[k]}])
        ws.run(tick_rows=chance.choice([None, 1]))
        if chance.random() < 0.3:
            for name in "ac":
                ws.view(name).rebuild()
            ws.run()
        check()
        if chance.random() < 0.2:
            shutil.rmtree(ws.path / "state")
            ws = open_ws()
            ws.run()
            check()
        clock.advance(chance.choice(["5 minutes", "2 hours"]))
        ws.maintain()
    for k in texts:
        texts[k] = str(k + 1)
        ws.topic("m").append([{"k": k, "y": texts[k]}])
    for name in "ac":
        ws.view(name).rebuild()
    assert ws.run().stopped == {}
    assert ends(ws, "t")[0] > 0
    check()
    assert ws.verify().ok
