"""The figure `rows` of a run: the records of the log that its ticks took in, each once, however many views read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import headwater as hw
from headwater.engine.metrics.rows_taken import ReadSpan, TakenIn

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def ws(tmp_path: Path, spark: SparkSession) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as ws:
        ws.sql("CREATE TOPIC orders (id BIGINT, amount BIGINT)")
        ws.sql("CREATE TOPIC users (id BIGINT PRIMARY KEY, name STRING)")
        yield ws


def orders(ws: hw.Workspace, count: int) -> None:
    ws.topic("orders").append([{"id": n, "amount": 1} for n in range(count)])


def test_a_row_that_two_views_read_is_one_row(ws: hw.Workspace) -> None:
    ws.sql("CREATE MATERIALIZED VIEW total AS SELECT sum(amount) AS n FROM orders")
    ws.sql("CREATE MATERIALIZED VIEW large AS SELECT id FROM orders WHERE amount > 5")
    orders(ws, 30)
    assert ws.run().rows == 30
    orders(ws, 4)
    assert ws.run().rows == 4
    assert "headwater_tick_rows_total 34.0" in ws.metrics()


def test_rows_of_a_keyed_topic_are_its_records_and_atomic_appends_count_in_both_topics(
    ws: hw.Workspace,
) -> None:
    ws.sql(
        "CREATE MATERIALIZED VIEW named AS SELECT u.name, o.amount FROM orders o JOIN users u ON o.id = u.id"
    )
    ws.sql("CREATE MATERIALIZED VIEW names AS SELECT name FROM users")
    users = [{"id": 1, "name": "a"}, {"id": 1, "name": "b"}, {"id": 2, "name": "c"}]
    ws.append({"orders": [{"id": 1, "amount": 2}], "users": users})
    assert ws.run().rows == 4


def test_a_backfill_takes_in_the_rows_that_no_other_view_takes_in_in_the_same_run(ws: hw.Workspace) -> None:
    ws.sql("CREATE MATERIALIZED VIEW total AS SELECT sum(amount) AS n FROM orders")
    orders(ws, 20)
    assert ws.run().rows == 20
    ws.sql("CREATE MATERIALIZED VIEW large AS SELECT id FROM orders WHERE amount > 5")
    orders(ws, 5)
    report = ws.run()
    assert report.rows == 25
    ws.sql("CREATE MATERIALIZED VIEW small AS SELECT id FROM orders WHERE amount < 5")
    orders(ws, 5)
    report = ws.run(tick_rows=10)
    assert (report.rows, report.ticks > 1) == (30, True)


def test_spans_that_overlap_are_counted_once_also_where_offsets_have_no_record(ws: hw.Workspace) -> None:
    orders(ws, 10)
    taken = TakenIn(ws.log)
    taken.add([ReadSpan("orders", 0, 0, 4, 10, 6)])
    taken.add([ReadSpan("orders", 0, 0, 4, 10, 6), ReadSpan("orders", 0, 0, 0, 6, 6)])
    assert taken.rows == 10
    taken.add([ReadSpan("orders", 0, 1, 0, 3, 3), ReadSpan("orders", 1, 0, 0, 3, 3)])
    assert taken.rows == 16
