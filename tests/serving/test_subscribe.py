"""`ws.subscribe(query)`: at every tick it gives what a view of the same SELECT changes in it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater import Workspace
from headwater.core.errors import (
    EvaluationError,
    StatementError,
    SubscriptionTooLargeError,
    UsageError,
    ViewUnavailableError,
)
from headwater.engine.tick import tick_engine
from headwater.serving import query_sources
from headwater.serving.subscribe import Subscription
from headwater.testing import inspect_workspace
from tests.equation.play import SETTINGS
from tests.raising import raises
from tests.serving.follower_books import TOPICS, VIEWS, Books, History, counted, weighed

QUERIES = {
    "few": "SELECT customer, amount FROM revenue WHERE n > 1",
    "all": "SELECT sum(amount) AS amount, count(*) AS n FROM revenue",
    "best": "SELECT customer, amount FROM revenue ORDER BY amount DESC, customer LIMIT 2",
    "table": "SELECT id, country FROM customers WHERE id > 0",
    "records": "SELECT DISTINCT customer, amount FROM orders",
    "joined": """
        SELECT c.country, sum(r.amount) AS amount, max(o.amount) AS largest
        FROM customers c LEFT JOIN revenue r ON r.customer = c.id LEFT JOIN orders o ON o.customer = c.id
        GROUP BY c.country""",
    "both": "SELECT id FROM large UNION ALL SELECT id FROM named WHERE country IS NULL",
    "twice": "SELECT a.id FROM large a JOIN large b ON a.amount = b.amount AND a.id < b.id",
}
"""What is subscribed to: over views, a keyed topic and a plain one, without state and with."""


@pytest.fixture
def ws(tmp_path: Path, spark: Any) -> Any:
    with hw.open(tmp_path / "ws", settings=SETTINGS, spark=spark) as workspace:
        workspace.sql(TOPICS)
        for name, query in VIEWS.items():
            workspace.sql(f"CREATE MATERIALIZED VIEW {name} AS {query}")
        yield workspace


def order(ws: Workspace, customer: int, amount: int) -> None:
    ws.topic("orders").append([{"id": 1, "customer": customer, "amount": amount}])


def drain(subscription: Subscription, books: Books) -> None:
    """Enter all that there is."""
    for change in subscription:
        books.take(change.rows, change.tick, snapshot=change.snapshot)


@pytest.mark.parametrize("seed", [3, pytest.param(4, marks=pytest.mark.long)])
def test_it_tells_what_a_view_of_the_query_changes_wherever_it_is_left_off(ws: Workspace, seed: int) -> None:
    for name, query in QUERIES.items():
        ws.sql(f"CREATE MATERIALIZED VIEW v_{name} AS {query}")
    history = History(ws, seed)
    history.go_on()
    steady = {name: ws.subscribe(query, timeout=0) for name, query in QUERIES.items()}
    books, resumed = {name: Books() for name in QUERIES}, {name: Books() for name in QUERIES}
    tokens: dict[str, int | None] = dict.fromkeys(QUERIES)
    for turn in range(6):
        for name, query in QUERIES.items():
            drain(steady[name], books[name])
            if turn % 2 == 0:
                with ws.subscribe(query, since=tokens[name], timeout=0) as again:
                    drain(again, resumed[name])
                    tokens[name] = again.tick
        history.go_on()
    for name, query in QUERIES.items():
        drain(steady[name], books[name])
        drain(ws.subscribe(query, since=tokens[name], timeout=0), resumed[name])
        contents = {
            tick: counted(ws.view(f"v_{name}").read(as_of=tick)) for tick in inspect_workspace(ws).ticks()
        }
        books[name].check(contents, name)
        resumed[name].check(contents, f"{name}, left off and resumed")
        assert len(books[name].snapshots) == len(resumed[name].snapshots) == 1
    assert ws.verify().ok


def test_it_begins_with_the_rows_that_are_there_and_waits_for_more(ws: Workspace) -> None:
    order(ws, 1, 10)
    tick = ws.run().tick
    with ws.start(), ws.subscribe("SELECT sum(amount) AS amount FROM revenue", timeout=30) as subscription:
        first = next(subscription)
        assert (first.tick, first.snapshot) == (tick, True)
        assert weighed(first.rows, tick) == {"(10,)": 1}
        assert first.rows.schema == subscription.schema.append(pa.field("_weight", pa.int64())).append(
            pa.field("_tick", pa.int64())
        )
        order(ws, 2, 5)
        second = next(subscription)
        assert not second.snapshot
        assert weighed(second.rows, second.tick) == {"(10,)": -1, "(15,)": 1}
        assert subscription.tick == second.tick


def test_a_query_whose_result_stays_the_same_is_silent(ws: Workspace) -> None:
    order(ws, 1, 10)
    ws.run()
    subscription = ws.subscribe("SELECT customer FROM revenue WHERE amount > 5", timeout=0)
    assert len(list(subscription)) == 1
    order(ws, 1, 10)
    tick = ws.run().tick
    assert list(subscription) == []
    assert subscription.tick == tick


def test_it_begins_in_pieces_with_the_same_rows(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    history = History(ws, 7)
    for _ in range(4):
        history.go_on()
    whole = {name: next(ws.subscribe(query, timeout=0)) for name, query in QUERIES.items()}
    monkeypatch.setattr(query_sources, "CHUNK_ROWS", 2)
    for name, query in QUERIES.items():
        pieces = next(ws.subscribe(query, timeout=0))
        assert weighed(pieces.rows, pieces.tick) == weighed(whole[name].rows, whole[name].tick), name


def test_what_it_holds_is_bounded(ws: Workspace) -> None:
    ws.topic("orders").append([{"id": n, "customer": n, "amount": n} for n in range(100)])
    ws.run()
    linear = ws.subscribe("SELECT customer FROM revenue WHERE amount > 5", timeout=0, rows_max=1)
    assert next(linear).rows.num_rows == 94, "it holds nothing"
    joins = "SELECT count(*) AS n FROM revenue r JOIN orders o ON o.customer = r.customer"
    with raises(SubscriptionTooLargeError, rows_max=150) as caught:
        next(ws.subscribe(joins, timeout=0, rows_max=150))
    assert "CREATE MATERIALIZED VIEW" in caught.value.hint
    subscription = ws.subscribe(joins, timeout=0, rows_max=250)
    next(subscription)
    ws.topic("orders").append([{"id": n, "customer": n, "amount": n} for n in range(100, 200)])
    ws.run()
    rows = []
    for _ in range(2):
        with pytest.raises(SubscriptionTooLargeError) as caught:
            next(subscription)
        rows.append(caught.value.rows)
    assert rows[0] == rows[1], "what failed leaves nothing behind"


def test_when_a_view_below_is_rebuilt_it_begins_again(ws: Workspace) -> None:
    order(ws, 1, 10)
    ws.run()
    subscription = ws.subscribe("SELECT * FROM large", timeout=0)
    assert next(subscription).rows.num_rows == 1
    token = subscription.tick
    ws.sql("CREATE OR REPLACE MATERIALIZED VIEW large AS SELECT id, amount * 2 AS double FROM orders")
    tick = ws.run().tick
    for again in (subscription, ws.subscribe("SELECT * FROM large", since=token, timeout=0)):
        change = next(again)
        assert change.snapshot
        assert change.rows.to_pylist() == [{"id": 1, "double": 20, "_weight": 1, "_tick": tick}]


def test_one_that_falls_behind_begins_again(ws: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tick_engine, "TICKS_KEPT", 3)
    monkeypatch.setattr(tick_engine, "TICKS_KEPT_MAX", 3)
    monkeypatch.setattr(tick_engine, "COLLECT_EVERY_TICKS", 1)
    order(ws, 1, 1)
    ws.run()
    query = "SELECT sum(amount) AS amount FROM orders"
    subscription = ws.subscribe(query, timeout=0)
    next(subscription)
    token = subscription.tick
    for _ in range(5):
        order(ws, 1, 1)
        tick = ws.run().tick
    for again in (subscription, ws.subscribe(query, since=token, timeout=0)):
        change = next(again)
        assert (change.tick, change.snapshot) == (tick, True)
        assert weighed(change.rows, tick) == {"(6,)": 1}
    order(ws, 1, 1)
    ws.run()
    assert weighed(next(subscription).rows, tick + 1) == {"(6,)": -1, "(7,)": 1}


def test_one_over_records_that_were_removed_does_not_go_on_from_a_token(tmp_path: Path, spark: Any) -> None:
    with hw.open(tmp_path / "ws", settings=SETTINGS, spark=spark) as ws:
        ws.sql("CREATE TOPIC t (a BIGINT) WITH (retention_bytes = '1')")
        ws.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM t")
        ws.topic("t").append([{"a": 1}, {"a": 2}])
        ws.run()
        sums, rows = "SELECT sum(a) AS a FROM t", "SELECT a FROM t WHERE a > 0"
        tokens = {}
        for query in (sums, rows):
            subscription = ws.subscribe(query, timeout=0)
            assert next(subscription).snapshot
            tokens[query] = subscription.tick
        ws.maintain()
        ws.topic("t").append([{"a": 3}])
        ws.maintain()
        assert ws.log.partitions("t")[0].first > 0, "nothing was removed"
        ws.run()
        assert next(ws.subscribe(sums, since=tokens[sums], timeout=0)).snapshot
        going_on = next(ws.subscribe(rows, since=tokens[rows], timeout=0))
        assert not going_on.snapshot, "it has no state that could lack something"
        assert going_on.rows.column("a").to_pylist() == [3]


def test_a_column_that_is_added_to_a_topic_changes_nothing(ws: Workspace) -> None:
    order(ws, 1, 1)
    ws.run()
    subscription = ws.subscribe("SELECT * FROM orders", timeout=0)
    next(subscription)
    ws.sql("ALTER TOPIC orders ADD COLUMN note STRING")
    ws.topic("orders").append([{"id": 2, "customer": 1, "amount": 1, "note": "new"}])
    tick = ws.run().tick
    change = next(subscription)
    assert not change.snapshot
    assert weighed(change.rows, tick) == {"(2, 1, 1)": 1}


def test_what_cannot_be_kept_is_refused_as_in_a_view(ws: Workspace) -> None:
    ws.run()
    with raises(StatementError, reason="limit-without-order"):
        ws.subscribe("SELECT * FROM revenue LIMIT 3")
    with pytest.raises(StatementError):
        ws.subscribe("SELECT * FROM nothing_there")
    for text in ("SHOW VIEWS", "SELECT 1 AS a; SELECT 2 AS a", ""):
        with pytest.raises(UsageError):
            ws.subscribe(text)
    with raises(UsageError, argument="rows_max", value=0):
        ws.subscribe("SELECT * FROM revenue", rows_max=0)
    with raises(UsageError, argument="since", value=-1):
        ws.subscribe("SELECT * FROM revenue", since=-1)


def test_a_topic_that_no_view_reads_is_refused_with_what_works(tmp_path: Path, spark: Any) -> None:
    with hw.open(tmp_path / "ws", settings=SETTINGS, spark=spark) as ws:
        ws.sql(
            "CREATE TOPIC a (n BIGINT); CREATE TOPIC b (id BIGINT, PRIMARY KEY (id)); CREATE TOPIC c (n BIGINT)"
        )
        ws.sql("CREATE MATERIALIZED VIEW reads_c AS SELECT n FROM c")
        ws.run()
        for name in ("a", "b"):
            with raises(UsageError, reason="not-read-by-a-view", topic=name) as caught:
                next(ws.subscribe(f"SELECT * FROM {name}", timeout=0))
            assert "CREATE MATERIALIZED VIEW" in caught.value.hint
        ws.sql("CREATE MATERIALIZED VIEW reads_a AS SELECT n FROM a")
        subscription = ws.subscribe("SELECT n FROM a", timeout=0)
        assert list(subscription) == [], "it waits until the view has come"
        ws.run()
        assert next(subscription).snapshot


def test_one_over_a_view_that_is_stopped_or_dropped_fails(ws: Workspace) -> None:
    ws.sql("CREATE MATERIALIZED VIEW share AS SELECT id, 10 DIV amount AS share FROM orders")
    order(ws, 1, 5)
    ws.run()
    share = ws.subscribe("SELECT * FROM share", timeout=0)
    large = ws.subscribe("SELECT * FROM large", timeout=0)
    next(share)
    next(large)
    order(ws, 1, 0)
    ws.sql("DROP VIEW large")
    ws.run()
    with raises(ViewUnavailableError, view="share", status="stopped"):
        next(share)
    with raises(ViewUnavailableError, view="large", status="missing"):
        next(large)


def test_an_expression_that_fails_is_an_error_of_the_subscriber_alone(ws: Workspace) -> None:
    order(ws, 1, 5)
    ws.run()
    subscription = ws.subscribe("SELECT 10 DIV amount AS share FROM orders", timeout=0)
    next(subscription)
    token = subscription.tick
    order(ws, 1, 0)
    assert not ws.run().stopped
    for _ in range(2):
        with raises(EvaluationError):
            next(subscription)
    assert subscription.tick == token


def test_constants_and_empty_aggregates_are_there_from_the_beginning(ws: Workspace) -> None:
    ws.run()
    assert counted(next(ws.subscribe("SELECT 1 AS one", timeout=0)).rows.select(["one"])) == {"(1,)": 1}
    first = next(ws.subscribe("SELECT count(*) AS n FROM orders", timeout=0))
    assert weighed(first.rows, first.tick) == Counter({"(0,)": 1})


def test_hidden_columns_of_topics_can_be_followed(tmp_path: Path, spark: Any) -> None:
    with hw.open(tmp_path / "ws", settings=SETTINGS, spark=spark) as ws:
        ws.sql("CREATE TOPIC t (a BIGINT); CREATE TOPIC c (id BIGINT, name STRING, PRIMARY KEY (id))")
        ws.sql("CREATE MATERIALIZED VIEW v AS SELECT t.a, c.name FROM t JOIN c ON t.a = c.id")
        ws.run()
        with raises(UsageError, reason="not-read-by-a-view", topic="c"):
            next(ws.subscribe("SELECT id, _offset AS at FROM c", timeout=0))
        ws.sql("CREATE MATERIALIZED VIEW w AS SELECT id, _offset AS at FROM c")
        ws.run()
        records = ws.subscribe("SELECT a, _offset AS at FROM t", timeout=0)
        table = ws.subscribe("SELECT id, _offset AS at FROM c", timeout=0)
        assert next(records).rows.num_rows == next(table).rows.num_rows == 0
        for _ in range(2):
            ws.append({"t": [{"a": 1}], "c": [{"id": 1, "name": "same"}]})
        tick = ws.run().tick
        assert weighed(next(records).rows, tick) == {"(1, 0)": 1, "(1, 1)": 1}
        assert weighed(next(table).rows, tick) == {"(1, 1)": 1}
        ws.topic("c").append([{"id": 1, "name": "same"}])
        ws.run()
        assert weighed(next(table).rows, tick + 1) == {"(1, 1)": -1, "(1, 2)": 1}
