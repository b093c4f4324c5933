"""Dead letters of views: edited, dropped, replayed once, and gone when the view takes them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import headwater as hw
from headwater.connectors.dead_letters.dead_views import ViewLetterStore
from headwater.core.clock import ManualClock
from headwater.core.settings import LogSettings
from headwater.log.protocol import Append
from headwater.views.dead_letter_actions import TOPIC
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DIVERT = "WITH (on_error = 'divert')"
TOPICS = """
    CREATE TOPIC orders (id BIGINT, customer BIGINT, amount STRING, note STRING);
    CREATE TOPIC rates (id BIGINT, rate BIGINT, PRIMARY KEY (id)) WITH (partitions = 2);
"""
REVENUE = (
    "SELECT customer, sum(CAST(amount AS BIGINT)) AS revenue, count(*) AS n FROM orders GROUP BY customer"
)
SHARES = "SELECT id, 100 DIV rate AS share FROM rates"


@pytest.fixture
def ws(tmp_path: Path, spark: SparkSession) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "w", durability="os", spark=spark) as made:
        made.sql(TOPICS)
        yield made


def bad_orders(ws: hw.Workspace) -> None:
    """A view with two letters among three orders."""
    ws.sql(f"CREATE MATERIALIZED VIEW revenue {DIVERT} AS {REVENUE}")
    amounts = ("10", "n/a", "1O")
    ws.topic("orders").append(
        [{"id": i, "customer": 7, "amount": a, "note": "x"} for i, a in enumerate(amounts)]
    )
    ws.run()


def bad_rate(ws: hw.Workspace) -> str:
    """A view over a table with one letter."""
    ws.sql(f"CREATE MATERIALIZED VIEW shares {DIVERT} AS {SHARES}")
    ws.topic("rates").append([{"id": 1, "rate": 0}, {"id": 2, "rate": 4}])
    ws.run()
    (name,) = names(ws)
    return name


def names(ws: hw.Workspace, state: str = "open") -> list[str]:
    found: list[str] = ws.dead().list(state=state).column("letter").to_pylist()
    return sorted(found)


def rows(ws: hw.Workspace, query: str) -> list[tuple[Any, ...]]:
    return sorted(tuple(row.values()) for row in ws.query(query).to_pylist())


def revenue(ws: hw.Workspace) -> list[tuple[Any, ...]]:
    return rows(ws, "SELECT customer, revenue, n FROM revenue")


def test_a_row_that_was_edited_is_taken_once(ws: hw.Workspace) -> None:
    bad_orders(ws)
    dead = ws.dead()
    assert names(ws) == ["revenue/orders-0-1", "revenue/orders-0-2"]
    one = dead.show("revenue/orders-0-2")
    assert "'1O'" in one.letter.error
    assert '"amount":"1O"' in one.row
    one = dead.edit(one.id, {"amount": "10"}, by="anna", reason="the letter O")
    assert one.state == "edited"
    assert '"note":"x"' in one.row  # whole records are edited, whatever the view reads of them
    ws.run()
    assert revenue(ws) == [(7, 10, 1)]
    done = dead.replay(of="revenue", by="ben")
    assert done.taken == (one.id,)
    assert "edit it, or replace the view" in done.left["revenue/orders-0-1"]
    for _ in range(2):
        ws.run()
        assert revenue(ws) == [(7, 20, 2)]
        assert dead.replay(one.id).before == (one.id,)
    assert names(ws) == ["revenue/orders-0-1"]
    assert [(d.action, d.who) for d in dead.show(one.id).actions] == [("edit", "anna"), ("replay", "ben")]
    assert ws.verify().ok


def test_it_is_taken_once_wherever_the_replay_breaks_off(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad_orders(ws)
    name = "revenue/orders-0-2"
    ws.dead().edit(name, {"amount": "10"})
    append = ws.log.append
    for when in ("before", "after"):

        def breaking(given: Append, *, when: str = when) -> Any:
            if when == "after":
                append(given)
            raise KeyboardInterrupt

        monkeypatch.setattr(ws.log, "append", breaking)
        with pytest.raises(KeyboardInterrupt):
            ws.dead().replay(name)
        monkeypatch.setattr(ws.log, "append", append)
        assert names(ws, "replayed") == ([name] if when == "after" else [])
    assert ws.dead().replay(name).before == (name,)
    assert ws.topic("orders").partitions()[0].end == 4
    ws.run()
    assert revenue(ws) == [(7, 20, 2)]


def test_of_two_who_have_seen_the_same_one_appends(ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    bad_orders(ws)
    name = "revenue/orders-0-2"
    ws.dead().edit(name, {"amount": "10"})
    replay = ViewLetterStore.replay

    def second(*given: Any, **options: Any) -> Any:
        monkeypatch.setattr(ViewLetterStore, "replay", replay)
        assert ws.dead().replay(name, by="anna").taken == (name,)  # between the look and the append
        return replay(*given, **options)

    monkeypatch.setattr(ViewLetterStore, "replay", second)
    done = ws.dead().replay(name, by="ben")
    assert (done.taken, done.before) == ((), (name,))
    assert ws.topic("orders").partitions()[0].end == 4
    assert [d.who for d in ws.dead().show(name).actions if d.settled] == ["anna"]


def test_of_many_who_replay_at_once_one_appends(ws: hw.Workspace) -> None:
    bad_orders(ws)
    name = "revenue/orders-0-2"
    ws.dead().edit(name, {"amount": "10"})
    ready, outcome = threading.Barrier(4), list[Any]()

    def act() -> None:
        ready.wait()
        outcome.append(ws.dead().replay(name))

    threads = [threading.Thread(target=act) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [done.ok for done in outcome] == [True] * 4
    assert sum(len(done.taken) for done in outcome) == 1
    assert ws.topic("orders").partitions()[0].end == 4


def test_a_view_that_takes_the_row_has_no_letter_any_more(ws: hw.Workspace) -> None:
    bad_orders(ws)
    ws.dead().drop("revenue/orders-0-1", by="anna")
    ws.view("revenue").rebuild()
    ws.run()
    assert names(ws) == ["revenue/orders-0-2"]  # what was done outlasts a rebuild
    ws.sql(f"CREATE OR REPLACE MATERIALIZED VIEW revenue {DIVERT} AS {REVENUE.replace('CAST', 'try_cast')}")
    ws.run()
    assert names(ws, "all") == ["revenue/orders-0-1"]
    assert ws.dead().show("revenue/orders-0-1").state == "resolved"
    assert revenue(ws) == [(7, 10, 3)]


def test_a_row_that_was_dropped_counts_as_dropped(ws: hw.Workspace) -> None:
    bad_orders(ws)
    ws.dead().drop("revenue/orders-0-1", by="anna", reason="a test")
    account = ws.view("revenue").ledger()
    assert account == {"read": 3, "used": 1, "diverted": 0, "dropped": 1, "failed": 1}
    assert ws.view("revenue").ledger(by_input=True)["orders"] == account
    shown = ws.sql("SHOW VIEWS")
    assert shown is not None
    assert [(row["failed"], row["dropped"]) for row in shown.to_pylist()] == [(1, 1)]
    ws.dead().edit("revenue/orders-0-1", {"amount": "1"})  # taken up again
    assert ws.view("revenue").ledger()["failed"] == 2
    ws.dead().drop(of="revenue")
    assert ws.view("revenue").ledger() == {"read": 3, "used": 1, "diverted": 0, "dropped": 2, "failed": 0}
    assert ws.verify().ok


def test_a_correction_that_another_view_would_see_beside_the_original_is_refused(ws: hw.Workspace) -> None:
    bad_orders(ws)
    ws.sql("CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n FROM orders")
    ws.run()
    name = "revenue/orders-0-2"
    ws.dead().edit(name, {"amount": "10"})
    left = ws.dead().replay(name).left
    assert "counted reads the original record" in left[name]
    assert ws.topic("orders").partitions()[0].end == 3
    assert ws.dead().replay(name, force=True).ok
    ws.run()
    assert rows(ws, "SELECT n FROM counted") == [(4,)]
    assert revenue(ws) == [(7, 20, 2)]


def test_views_that_refused_the_same_record_take_one_correction(ws: hw.Workspace) -> None:
    bad_orders(ws)
    ws.sql(f"CREATE MATERIALIZED VIEW amounts {DIVERT} AS SELECT id, CAST(amount AS BIGINT) AS a FROM orders")
    ws.run()
    assert len(names(ws)) == 4
    ws.dead().edit("amounts/orders-0-2", {"amount": "10"})
    assert ws.dead().replay("amounts/orders-0-2").ok
    assert names(ws) == ["amounts/orders-0-1", "revenue/orders-0-1"]
    assert ws.dead().replay("revenue/orders-0-2").before == ("revenue/orders-0-2",)
    ws.run()
    assert revenue(ws) == [(7, 20, 2)]
    assert rows(ws, "SELECT id, a FROM amounts") == [(0, 10), (2, 10)]
    ws.sql(
        f"CREATE MATERIALIZED VIEW doubled {DIVERT} AS SELECT id, 2 * CAST(amount AS INT) AS a FROM orders"
    )
    ws.run()  # a view that comes later refuses the original, and has the correction already
    late = ws.dead().show("doubled/orders-0-2")
    assert (late.state, [d.owner for d in late.actions]) == ("replayed", ["amounts"])
    with raises(hw.UsageError, letter=late.id, state="replayed"):
        ws.dead().edit(late.id, {"amount": "10"})
    assert rows(ws, "SELECT id, a FROM doubled") == [(0, 20), (2, 20)]


def test_of_two_letters_of_one_record_one_is_replayed(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad_orders(ws)
    ws.sql(f"CREATE MATERIALIZED VIEW amounts {DIVERT} AS SELECT id, CAST(amount AS BIGINT) AS a FROM orders")
    ws.run()
    mine, other = "amounts/orders-0-2", "revenue/orders-0-2"
    for name in (mine, other):
        ws.dead().edit(name, {"amount": "10"})
    replay = ViewLetterStore.replay

    def second(*given: Any, **options: Any) -> Any:
        monkeypatch.setattr(ViewLetterStore, "replay", replay)
        assert ws.dead().replay(other).taken == (other,)  # between the look and the append
        return replay(*given, **options)

    monkeypatch.setattr(ViewLetterStore, "replay", second)
    assert ws.dead().replay(mine).before == (mine,)
    assert ws.topic("orders").partitions()[0].end == 4


def test_in_a_table_the_correction_takes_the_place_of_the_row(ws: hw.Workspace) -> None:
    name = bad_rate(ws)
    ws.sql("CREATE MATERIALIZED VIEW counted AS SELECT count(*) AS n FROM rates")
    with raises(hw.UsageError, topic="rates", column="id"):
        ws.dead().edit(name, {"id": 5})
    ws.dead().edit(name, {"rate": 5})
    assert ws.dead().replay(name).ok
    ws.run()
    assert rows(ws, "SELECT id, share FROM shares") == [(1, 20), (2, 25)]
    assert rows(ws, "SELECT n FROM counted") == [(2,)]
    assert names(ws) == []
    assert ws.dead().show(name).state == "replayed"
    assert ws.verify().ok


def test_a_row_of_a_table_that_was_changed_since_is_left_as_it_is(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = bad_rate(ws)
    ws.dead().edit(name, {"rate": 5})
    append = ws.log.append

    def first_another(given: Append) -> Any:
        monkeypatch.setattr(ws.log, "append", append)
        ws.topic("rates").append([{"id": 1, "rate": 50}])  # between the look and the append
        return append(given)

    monkeypatch.setattr(ws.log, "append", first_another)
    assert ws.dead().replay(name).left == {
        name: "a newer record of its key exists: force replaces that record"
    }
    ws.run()
    assert rows(ws, "SELECT id, share FROM shares") == [(1, 2), (2, 25)]
    assert ws.dead().show(name).state == "resolved"


def test_later_records_are_looked_at_once_and_those_that_were_removed_are_told(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = bad_rate(ws)
    ws.dead().edit(name, {"rate": 5})
    append, read, spans = ws.log.append, ws.log.read, list[range]()

    def after_others(given: Append) -> Any:
        if TOPIC in given.batches and len(spans) < 4:
            ws.topic("rates").append([{"id": i, "rate": 50} for i in range(10, 20)])
        return append(given)

    def noted(topic: str, partition: int, start: int, end: int, columns: Any = None) -> Any:
        if topic == "rates":
            spans.append(range(start, end))
        return read(topic, partition, start, end, columns)

    def removed(topic: str, *where: Any) -> Any:
        if topic == "rates":
            raise hw.GapError("records were removed")
        return read(topic, *where)

    with monkeypatch.context() as patched:
        patched.setattr(ws.log, "read", removed)
        (why,) = ws.dead().replay(name).left.values()
        assert why.startswith(
            "later records of topic rates were removed, and may have included one of its key"
        )
    with monkeypatch.context() as patched:
        patched.setattr(ws.log, "append", after_others)
        patched.setattr(ws.log, "read", noted)
        assert ws.dead().replay(name).ok
    assert len(spans) == 4
    assert all(one.stop == following.start for one, following in pairwise(spans))


def test_rows_of_topics_that_are_filled_by_others_are_corrected_there(
    ws: hw.Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = bad_rate(ws)
    rates = ws.log.topic("rates")
    topics = type(ws.log).topic

    def captured(log: Any, given: str) -> Any:
        found = topics(log, given)
        return replace(found, captured_by="shop") if found == rates else found

    with monkeypatch.context() as patched:
        patched.setattr(type(ws.log), "topic", captured)
        with raises(hw.UsageError, topic="rates", source="shop"):
            ws.dead().edit(name, {"rate": 5})
        assert ws.dead().drop(name) == (name,)
    ws.sql("""
        CREATE MATERIALIZED VIEW plain AS SELECT id, customer FROM orders;
        CREATE SINK copied FROM plain INTO TOPIC WITH (topic = 'copies', mode = 'append');
    """)
    ws.topic("orders").append([{"id": 1, "customer": 0, "amount": "1", "note": ""}])
    ws.run()
    ws.sql(f"CREATE MATERIALIZED VIEW tenth {DIVERT} AS SELECT 10 DIV customer AS t FROM copies")
    ws.run()
    with raises(hw.UsageError, topic="copies", sink="copied"):
        ws.dead().edit("tenth/copies-0-0", {"customer": 1})


def test_a_record_that_was_removed_is_not_edited_and_one_that_was_edited_before_is_replayed(
    tmp_path: Path, spark: SparkSession
) -> None:
    clock, settings = ManualClock(), LogSettings(durability="os", maintenance_every_ms=0)
    with hw.open(tmp_path / "w", spark=spark, clock=clock, settings=settings) as ws:
        ws.sql("CREATE TOPIC orders (id BIGINT, amount STRING) WITH (retention = '1 hour')")
        ws.sql(
            f"CREATE MATERIALIZED VIEW amounts {DIVERT} AS SELECT id, CAST(amount AS INT) AS a FROM orders"
        )
        ws.topic("orders").append([{"id": 1, "amount": "x"}, {"id": 2, "amount": "y"}])
        ws.run()
        ws.dead().edit("amounts/orders-0-0", {"amount": "5"})
        clock.advance("3 hours")
        ws.maintain()
        assert ws.topic("orders").partitions()[0].first == 2
        with raises(hw.UsageError, letter="amounts/orders-0-1", topic="orders"):
            ws.dead().edit("amounts/orders-0-1", {"amount": "5"})
        assert ws.dead().replay("amounts/orders-0-0").ok
        ws.run()
        assert rows(ws, "SELECT id, a FROM amounts") == [(1, 5)]
        assert names(ws) == ["amounts/orders-0-1"]


def test_before_the_first_run_there_are_none(ws: hw.Workspace) -> None:
    ws.sql(f"CREATE MATERIALIZED VIEW revenue {DIVERT} AS {REVENUE}")
    assert names(ws, "all") == []
    assert ws.dead().unreadable == {}
    assert TOPIC not in ws.log.topics()
