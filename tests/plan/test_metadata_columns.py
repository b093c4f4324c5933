"""`_partition`, `_offset`, `_appended_at` and `_op` in views and queries: found by name, no part of `*`, incremental."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import headwater as hw
from headwater.core.clock import ManualClock
from headwater.testing import inspect_workspace
from tests.equation.grammar.model import View as Select
from tests.equation.oracle import Oracle, compare
from tests.raising import raises

pytestmark = pytest.mark.slow

TOPICS = """
    CREATE TOPIC clicks (user BIGINT, url STRING) WITH (partitions = 2);
    CREATE TOPIC orders (id BIGINT, amount BIGINT, PRIMARY KEY (id)) WITH (partitions = 2);
"""
VIEWS = {
    "placed": "SELECT user, url, _partition, _offset AS at FROM clicks",
    "newest": "SELECT max(_appended_at) AS newest, count(*) AS n FROM clicks",
    "minutes": "SELECT window(_appended_at, '1 minute').start AS w, count(*) AS n FROM clicks "
    "GROUP BY window(_appended_at, '1 minute')",
    "hops": "SELECT window(_appended_at, '2 minutes', '1 minute').start AS w, count(*) AS n, max(_offset) AS o FROM clicks "
    "GROUP BY window(_appended_at, '2 minutes', '1 minute')",
    "first_of_each": "SELECT user, url FROM clicks "
    "QUALIFY row_number() OVER (PARTITION BY user ORDER BY _partition, _offset) = 1",
    "later": "SELECT a.user, a._offset AS a, b._offset AS b FROM clicks a JOIN clicks b "
    "ON a.user = b.user AND a._partition = b._partition AND a._offset < b._offset",
    "changed": "SELECT id, amount, _partition, _offset, _appended_at, _op FROM orders",
    "by_op": "SELECT _op AS op, count(*) AS n, max(_offset) AS last FROM orders GROUP BY _op",
    "plain": "SELECT id, amount FROM orders WHERE amount > 3",
    "star": "SELECT *, o._offset AS at FROM orders o",
    "seen": "SELECT user FROM clicks WHERE _offset IN (SELECT max(_offset) FROM clicks)",
    "with_it": "WITH x AS (SELECT user, _offset AS o FROM clicks) SELECT user, max(o) AS o FROM x GROUP BY user",
    "over": "SELECT _partition, count(*) AS n FROM placed GROUP BY _partition",
}
AS_PLAIN_COLUMNS = VIEWS | {"star": "SELECT id, amount, _offset AS at FROM orders"}
"""The same over tables in which the hidden columns are columns like any other."""


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def ws(tmp_path: Path, spark: Any, clock: ManualClock) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "w", spark=spark, clock=clock) as made:
        made.sql(TOPICS)
        yield made


def create(ws: hw.Workspace, *names: str) -> None:
    for name in names:
        ws.sql(f"CREATE MATERIALIZED VIEW {name} AS {VIEWS[name]}")


def records(ws: hw.Workspace, topic: str) -> pa.Table:
    """What a topic holds, as a program reads it: all columns, hidden ones too; of a keyed one the current rows."""
    definition = ws.topic(topic).definition
    hidden = ["_partition", "_offset", "_appended_at", *(["_op"] if definition.key else [])]
    batches = list(ws.topic(topic).read("earliest", columns=[*definition.schema.names, *hidden]))
    table = pa.Table.from_batches(batches)
    if not definition.key:
        return table
    current = {row["id"]: row for row in sorted(table.to_pylist(), key=lambda row: row["_offset"])}
    return pa.Table.from_pylist(
        [row for row in current.values() if row["_op"] != "delete"], schema=table.schema
    )


def expected(oracle: Oracle, ws: hw.Workspace) -> dict[str, pa.Table]:
    selects = [
        Select(name, select, tuple(t for t in ("clicks", "orders", "placed") if t in select), ())
        for name, select in AS_PLAIN_COLUMNS.items()
    ]
    return oracle.run({topic: records(ws, topic) for topic in ("clicks", "orders")}, selects)


def hold(ws: hw.Workspace, oracle: Oracle) -> None:
    for name, table in expected(oracle, ws).items():
        told = compare(ws.view(name).read(), table)
        assert told is None, f"{name}: {told}"


@pytest.mark.long
def test_hidden_columns_in_views_are_those_of_the_records_after_every_tick_and_restart(
    tmp_path: Path, spark: Any, clock: ManualClock
) -> None:
    chance, oracle, steps = random.Random(7), Oracle(spark), 3
    for step in range(steps):
        with hw.open(tmp_path / "w", spark=spark, clock=clock) as ws:
            if step == 0:
                ws.sql(TOPICS)
                create(ws, *VIEWS)
            for _ in range(3):
                clock.advance(f"{chance.randrange(60_000)} ms")
                ws.topic("clicks").append(
                    [{"user": chance.randrange(4), "url": chance.choice("ab")} for _ in range(5)]
                )
                ws.topic("orders").append(
                    [{"id": chance.randrange(6), "amount": chance.randrange(8)} for _ in range(4)]
                )
                ws.topic("orders").delete([{"id": chance.randrange(6)}])
            ws.run(tick_rows=7 if step % 2 else None)
            hold(ws, oracle)
            if step == steps - 1:
                ws.view("changed").rebuild(verify=False)
                ws.run()
                hold(ws, oracle)
                assert ws.verify().differences == ()


def test_only_views_that_name_hidden_columns_have_them_read(ws: hw.Workspace) -> None:
    create(ws, "plain")
    ws.topic("orders").append([{"id": 1, "amount": 5}])
    ws.run()
    manifest = inspect_workspace(ws).manifest()
    assert manifest is not None
    assert set(manifest.views) == {"orders", "plain"}
    built = manifest.views["plain"].built

    create(ws, "changed")
    ws.run()
    manifest = inspect_workspace(ws).manifest()
    assert manifest is not None
    assert set(manifest.views) == {"orders", "orders._records", "plain", "changed"}
    assert manifest.views["plain"].built == built  # a view beside it is left alone


def test_a_record_that_repeats_its_row_moves_its_offset(ws: hw.Workspace) -> None:
    create(ws, "changed", "plain")
    for _ in range(2):
        ws.topic("orders").append([{"id": 1, "amount": 5}])
        tick = ws.run().tick
    assert ws.query("SELECT _offset FROM changed").to_pylist() == [{"_offset": 1}]
    assert ws.view("plain").changes(since=tick - 1).num_rows == 0


@pytest.mark.parametrize(
    ("query", "rows"),
    [
        ("SELECT user, _offset FROM visits WHERE _offset = 1", [{"user": 2, "_offset": 1}]),
        ("SELECT max(_appended_at) > TIMESTAMP '2020-01-01' AS late FROM visits", [{"late": True}]),
        ("SELECT id, _op FROM orders", [{"id": 1, "_op": "upsert"}]),
        ("SELECT * FROM orders", [{"id": 1, "amount": 6}]),
        ("SELECT o._offset AS a, amount FROM orders o", [{"a": 1, "amount": 6}]),
        ("SELECT count(*) AS n FROM visits", [{"n": 2}]),
        # what only Spark answers
        ("SELECT *, stack(1, _offset) AS s FROM orders", [{"id": 1, "amount": 6, "s": 1}]),
    ],
)
def test_queries_name_hidden_columns_of_topics(ws: hw.Workspace, query: str, rows: list[Any]) -> None:
    ws.sql("CREATE TOPIC visits (user BIGINT)")
    ws.topic("orders").append([{"id": 1, "amount": 5}])
    ws.topic("orders").append([{"id": 1, "amount": 6}])
    ws.topic("visits").append([{"user": 1}, {"user": 2}])
    assert ws.query(query).to_pylist() == rows
    create(ws, "changed")  # now a tick has the table, and so has the query
    ws.run()
    assert ws.query(query).to_pylist() == rows


def test_a_query_of_an_old_tick_has_the_columns_of_then(ws: hw.Workspace) -> None:
    create(ws, "changed")
    ws.topic("orders").append([{"id": 1, "amount": 5}])
    first = ws.run().tick
    ws.topic("orders").append([{"id": 1, "amount": 6}])
    ws.run()
    query = "SELECT id, _offset FROM orders"
    assert ws.query(query, as_of=first).to_pylist() == [{"id": 1, "_offset": 0}]
    assert ws.query(query).to_pylist() == [{"id": 1, "_offset": 1}]


@pytest.mark.parametrize(
    ("select", "hint"),
    [
        (
            "SELECT _offset FROM plain",
            "_offset is a metadata column of topics; a view has it if its SELECT names it",
        ),
        ("SELECT _op FROM clicks", "_op is a metadata column of topics with a primary key"),
        ("SELECT user, a._offset FROM clicks a JOIN clicks b USING (user)", "join with ON"),
    ],
)
def test_a_hidden_column_that_is_not_there_is_refused_with_a_hint(
    ws: hw.Workspace, select: str, hint: str
) -> None:
    create(ws, "plain")
    with pytest.raises(hw.StatementError) as refused:
        ws.sql(f"CREATE MATERIALIZED VIEW v AS {select}")
    assert refused.value.facts["condition"].startswith("UNRESOLVED_COLUMN.")
    assert refused.value.hint is not None
    assert hint in refused.value.hint
    assert "^" in str(refused.value)


def test_the_name_alone_is_ambiguous_in_a_join(ws: hw.Workspace) -> None:
    with raises(hw.StatementError, condition="AMBIGUOUS_REFERENCE"):
        ws.sql("CREATE MATERIALIZED VIEW v AS SELECT _offset FROM clicks a JOIN clicks b ON a.user = b.user")


def test_no_topic_can_have_a_column_of_such_a_name(ws: hw.Workspace) -> None:
    with raises(hw.StatementError, topic="t", reason="reserved-column"):
        ws.sql("CREATE TOPIC t (_offset BIGINT)")


def test_a_topic_that_grows_a_column_keeps_the_hidden_ones_apart(ws: hw.Workspace) -> None:
    create(ws, "placed", "changed")
    ws.sql("ALTER TOPIC clicks ADD COLUMN extra STRING; ALTER TOPIC orders ADD COLUMN extra STRING")
    ws.topic("clicks").append([{"user": 1, "url": "a", "extra": "x"}])
    ws.topic("orders").append([{"id": 1, "amount": 2, "extra": "x"}])
    ws.run()
    assert ws.query("SELECT url, at FROM placed").to_pylist() == [{"url": "a", "at": 0}]
    assert ws.query("SELECT amount, _offset FROM changed").to_pylist() == [{"amount": 2, "_offset": 0}]
    assert ws.verify().differences == ()
