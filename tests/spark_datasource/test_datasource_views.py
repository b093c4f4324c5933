"""Views through `format("headwater")`: their rows at a tick, and their changes, each once, whatever Spark repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable

import headwater as hw
from headwater.spark_datasource.datasource import HeadwaterDataSource
from headwater.spark_datasource.options import view_settings
from headwater.spark_datasource.view_reader import ViewBatchReader, ViewStreamReader
from tests.raising import raises

ALL = ReadAllAvailable()
PLACE = {"workspace": "shop", "view": "revenue"}


@pytest.fixture
def shop(tmp_path: Path, spark: SparkSession) -> Iterator[hw.Workspace]:
    """A table of orders and the revenue by country, three ticks long."""
    with hw.open(tmp_path / "shop", durability="os", spark=spark) as ws:
        ws.sql("""
            CREATE TOPIC orders (id BIGINT, country STRING, amount INT, PRIMARY KEY (id));
            CREATE MATERIALIZED VIEW revenue AS
              SELECT country, sum(amount) AS total, max(named_struct('id', id)).id AS last FROM orders GROUP BY country;
        """)
        order(ws, 1, "ch", 10)
        order(ws, 2, "de", 20)
        order(ws, 3, "ch", 30)
        yield ws


def order(ws: hw.Workspace, number: int, country: str, amount: int) -> int:
    """Take an order, and make a tick of it."""
    ws.topic("orders").append([{"id": number, "country": country, "amount": amount}])
    return ws.run().tick


def given(ws: hw.Workspace, **options: Any) -> dict[str, str]:
    return {"workspace": str(ws.path), "view": "revenue", **{k: str(v) for k, v in options.items()}}


def stream(ws: hw.Workspace, **options: Any) -> ViewStreamReader:
    """The source of a query that begins, or that starts again."""
    made = HeadwaterDataSource(given(ws, changes="true", **options))
    reader = made.streamReader(made.schema())
    assert isinstance(reader, ViewStreamReader)
    return reader


def batch(ws: hw.Workspace, **options: Any) -> list[dict[str, Any]]:
    """What a batch read gives, all tasks together."""
    made = HeadwaterDataSource(given(ws, **options))
    reader = made.reader(made.schema())
    assert isinstance(reader, ViewBatchReader)
    return [row for part in reader.partitions() for b in reader.read(part) for row in b.to_pylist()]


def changes(reader: ViewStreamReader, start: dict[str, Any], end: dict[str, Any]) -> list[dict[str, Any]]:
    """What the tasks of a micro-batch read."""
    return [row for part in reader.partitions(start, end) for b in reader.read(part) for row in b.to_pylist()]


def applied(found: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    """The rows that changes add up to."""
    rows: Counter[tuple[Any, ...]] = Counter()
    for row in found:
        rows[tuple(v for k, v in row.items() if k not in ("_weight", "_tick"))] += row["_weight"]
    return Counter({row: n for row, n in rows.items() if n})


def contents(ws: hw.Workspace) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row.values()) for row in ws.view("revenue").read().to_pylist())


@pytest.mark.slow
def test_rows_are_those_of_the_newest_tick_or_of_an_earlier_one(shop: hw.Workspace) -> None:
    newest = order(shop, 4, "de", 1)
    assert Counter(tuple(row.values()) for row in batch(shop)) == contents(shop)
    before = batch(shop, as_of=newest - 1, columns="total, country")
    assert sorted(map(str, before)) == ["{'total': 20, 'country': 'de'}", "{'total': 40, 'country': 'ch'}"]
    assert sorted(map(str, batch(shop, rowsPerTask=1))) == sorted(map(str, batch(shop)))
    with raises(hw.TickNotKeptError, tick=newest + 1, last_available=newest):
        batch(shop, as_of=newest + 1)
    assert len(batch(shop, as_of="2999-01-01T00:00:00Z")) == 2


@pytest.mark.slow
def test_changes_in_a_batch_add_up_to_the_view(shop: hw.Workspace) -> None:
    everything = batch(shop, changes="true")
    assert applied(everything) == contents(shop)
    newest = order(shop, 1, "de", 10)
    last = batch(shop, changes="true", starting=newest - 1)
    assert applied(last) == {
        ("ch", 40, 3): -1, ("ch", 30, 3): 1, ("de", 20, 2): -1, ("de", 30, 2): 1,
    }  # fmt: skip
    assert {row["_tick"] for row in last} == {newest}


@pytest.mark.slow
def test_a_stream_gives_every_tick_once_and_in_bounds(shop: hw.Workspace) -> None:
    reader = stream(shop, maxTicksPerTrigger=1)
    at = reader.initialOffset()
    found: list[dict[str, Any]] = []
    sizes = []
    for _ in range(20):
        end = reader.latestOffset(at, ALL)
        if end == at:
            break
        rows = changes(reader, at, end)
        assert changes(stream(shop), at, end) == rows  # repeated by another process
        found += rows
        sizes.append(len({row["_tick"] for row in rows}))
        at = end
    assert max(sizes) == 2  # the first has all rows at its tick, and the tick after it
    assert applied(found) == contents(shop)
    order(shop, 2, "ch", 5)
    found += changes(reader, at, reader.latestOffset(at, ALL))
    assert applied(found) == contents(shop)


@pytest.mark.slow
def test_a_stream_may_begin_with_what_is_new_or_after_a_tick(shop: hw.Workspace) -> None:
    reader = stream(shop, starting="latest")
    begin = reader.initialOffset()
    newest = order(shop, 9, "at", 1)
    assert reader.initialOffset() == begin
    end = reader.latestOffset(begin, ALL)
    assert [(row["country"], row["_weight"], row["_tick"]) for row in changes(reader, begin, end)] == [
        ("at", 1, newest)
    ]
    # Spark asks a process that was started later for the beginning: what the end says of it counts
    again = stream(shop, starting="latest")
    assert changes(again, again.initialOffset(), end) == changes(reader, begin, end)
    after = stream(shop, starting=newest - 2)
    start = after.initialOffset()
    assert {r["_tick"] for r in changes(after, start, after.latestOffset(start, ALL))} == {newest - 1, newest}
    with raises(hw.TickNotKeptError, tick=newest + 1, last_available=newest):
        stream(shop, starting=newest + 1).initialOffset()


@pytest.mark.slow
def test_a_stream_that_fell_behind_fails_with_the_first_available_tick(shop: hw.Workspace) -> None:
    reader = stream(shop)
    begin = reader.initialOffset()
    at = reader.latestOffset(begin, ALL)
    for number in range(10, 16):
        newest = order(shop, number, "ch", 1)
    reader._settings.place.store().collect(2)
    with pytest.raises(hw.TickNotKeptError) as behind:
        reader.latestOffset(at, ALL)
    assert behind.value.first_available == newest - 1

    fresh = stream(shop)
    start = fresh.initialOffset()
    assert applied(changes(fresh, start, fresh.latestOffset(start, ALL))) == contents(shop)


@pytest.mark.slow
def test_a_view_that_was_rebuilt_stops_its_streams(shop: hw.Workspace) -> None:
    reader = stream(shop)
    at = reader.latestOffset(reader.initialOffset(), ALL)
    shop.view("revenue").rebuild()
    newest = shop.run().tick
    with raises(hw.TickNotKeptError, view="revenue", reason="rebuilt", first_available=newest):
        reader.latestOffset(at, ALL)
    with raises(hw.TickNotKeptError, view="revenue", reason="rebuilt"):
        batch(shop, changes="true", starting=newest - 1)


@pytest.mark.slow
def test_a_stream_waits_for_a_view_that_has_no_rows_yet_and_fails_with_one_that_stopped(
    shop: hw.Workspace,
) -> None:
    shop.sql("CREATE MATERIALIZED VIEW share AS SELECT id, 100 DIV amount AS share FROM orders")
    made = HeadwaterDataSource({**given(shop), "view": "share", "changes": "true"})
    reader = made.streamReader(made.schema())
    begin = reader.initialOffset()
    assert reader.latestOffset(begin, ALL) == begin
    shop.run()
    end = reader.latestOffset(begin, ALL)
    rows = [row for part in reader.partitions(begin, end) for b in reader.read(part) for row in b.to_pylist()]
    assert sorted(row["share"] for row in rows) == [3, 5, 10]
    order(shop, 4, "ch", 0)
    with raises(hw.ViewUnavailableError, status="stopped"):
        reader.latestOffset(end, ALL)


@pytest.mark.slow
def test_spark_reads_a_view_and_follows_it_from_its_checkpoint(
    shop: hw.Workspace, spark: SparkSession, tmp_path: Path
) -> None:
    rows = spark.read.format("headwater").options(**given(shop)).load()
    assert sorted(map(tuple, rows.collect())) == [("ch", 40, 3), ("de", 20, 2)]
    seen: dict[int, list[dict[str, Any]]] = {}

    def keep(batch: DataFrame, number: int) -> None:
        seen[number] = [row.asDict() for row in batch.collect()]

    def run() -> None:
        options = given(shop, changes=True, maxTicksPerTrigger=2)
        writer = spark.readStream.format("headwater").options(**options).load().writeStream.foreachBatch(keep)
        query = writer.option("checkpointLocation", str(tmp_path / "c")).trigger(availableNow=True).start()
        assert query.awaitTermination(120)

    run()
    assert applied([row for rows in seen.values() for row in rows]) == contents(shop)
    order(shop, 3, "de", 7)
    before = set(seen)
    run()
    assert len(set(seen) - before) == 1
    assert applied([row for rows in seen.values() for row in rows]) == contents(shop)


@pytest.mark.parametrize(
    ("options", "facts"),
    [
        ({"workspace": "shop"}, {"option": "view", "reason": "missing-option"}),
        ({"view": "revenue"}, {"option": "workspace", "reason": "missing-option"}),
        ({**PLACE, "as_of": "now"}, {"option": "as_of", "value": "now"}),
        ({**PLACE, "starting": "yesterday"}, {"option": "starting", "value": "yesterday"}),
        ({**PLACE, "maxTicksPerTrigger": "0"}, {"option": "maxTicksPerTrigger", "value": "0"}),
        ({**PLACE, "onGap": "skip"}, {"option": "ongap", "reason": "unknown-option"}),
        ({**PLACE, "changes": "yes"}, {"option": "changes", "value": "yes"}),
    ],
)
def test_a_wrong_option_to_read_a_view_with_is_refused(
    options: dict[str, str], facts: dict[str, str]
) -> None:
    with raises(hw.UsageError, **facts):
        view_settings(options)


@pytest.mark.slow
def test_options_for_the_other_kind_of_read_are_refused(shop: hw.Workspace) -> None:
    wrong: list[tuple[dict[str, Any], str, dict[str, str]]] = [
        ({"maxTicksPerTrigger": 1}, "reader", {"option": "maxTicksPerTrigger", "reason": "stream-only"}),
        ({"starting": 1}, "reader", {"option": "starting", "reason": "changes-only"}),
        ({"as_of": 1, "changes": "true"}, "streamReader", {"option": "as_of", "reason": "batch-only"}),
        ({}, "streamReader", {"option": "changes", "reason": "missing-option"}),
        ({"topic": "orders"}, "reader", {"reason": "view-and-topic"}),
        ({"columns": "nothing"}, "reader", {"view": "revenue", "column": "nothing"}),
    ]
    for options, read, facts in wrong:
        made = HeadwaterDataSource({**given(shop), **{k: str(v) for k, v in options.items()}})
        with raises(hw.UsageError, **facts):
            getattr(made, read)(made.schema())
    with raises(hw.ViewNotFoundError, view="revenu") as refused:
        HeadwaterDataSource({**given(shop), "view": "revenu"}).schema()
    assert "'revenue'" in refused.value.hint
    with raises(hw.UsageError, option="view", reason="read-only"):
        HeadwaterDataSource(given(shop)).writer(HeadwaterDataSource(given(shop)).schema(), False)
