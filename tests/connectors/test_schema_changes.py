"""Columns that come and go in Postgres while views read them: who stops, with what reason, and how it goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg
import pytest

import headwater as hw
from headwater.testing import inspect_workspace
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.slow


@pytest.fixture
def shop(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE customers (id bigint PRIMARY KEY, phone text, country text)")
        connection.execute("CREATE TABLE orders (id bigint PRIMARY KEY, customer bigint)")
        connection.execute("INSERT INTO customers VALUES (1, '079', 'ch'), (2, '043', 'at')")
        connection.execute("INSERT INTO orders VALUES (1, 1)")
        yield connection


@pytest.fixture
def ws(
    tmp_path: Path, spark: SparkSession, postgres_url: str, shop: psycopg.Connection
) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as workspace:
        workspace.sql(
            f"""
            CREATE SOURCE shop FROM POSTGRES WITH (url = '{postgres_url}', tables = 'customers, orders');
            CREATE MATERIALIZED VIEW phones AS SELECT phone, count(*) AS n FROM customers GROUP BY phone;
            CREATE MATERIALIZED VIEW longest AS SELECT max(phone) AS phone FROM phones;
            CREATE MATERIALIZED VIEW countries AS SELECT country, count(*) AS n FROM customers GROUP BY country;
            CREATE MATERIALIZED VIEW ordered AS
              SELECT c.country, o.id FROM orders o JOIN customers c ON o.customer = c.id;
            """
        )
        workspace.run()
        yield workspace


def rows(ws: hw.Workspace, view: str, **options: Any) -> list[tuple[Any, ...]]:
    return sorted(
        (tuple(r.values()) for r in ws.query(f"SELECT * FROM {view}", **options).to_pylist()), key=str
    )


def test_views_of_a_dropped_column_stop_at_the_rows_before_and_the_others_go_on(
    ws: hw.Workspace, shop: psycopg.Connection
) -> None:
    shop.execute("INSERT INTO customers VALUES (3, '031', 'ch')")
    shop.execute("ALTER TABLE customers DROP COLUMN phone")
    shop.execute("INSERT INTO customers VALUES (4, 'de')")
    report = ws.run()
    assert set(report.stopped) == {"phones", "longest"}
    assert "column 'phone' of topic 'customers' no longer exists" in report.stopped["phones"]
    assert "public.customers.phone was dropped in source 'shop', after " in report.stopped["phones"]
    assert "ACCEPT DROP" in report.stopped["phones"]
    assert report.stopped["longest"].startswith("it reads phones, which is stopped: column 'phone'")
    assert rows(ws, "countries") == [("at", 1), ("ch", 2), ("de", 1)]
    with raises(hw.ViewUnavailableError, view="phones", status="stopped") as stopped:
        ws.query("SELECT * FROM phones")
    last = stopped.value.last_tick
    assert rows(ws, "phones", as_of=last) == [("031", 1), ("043", 1), ("079", 1)], "all before the drop is in"
    history = ws.query("SELECT id, phone FROM customers ORDER BY id").to_pylist()
    assert [row["phone"] for row in history] == ["079", "043", "031", None]
    with raises(hw.ColumnDroppedError, topic="customers", column="phone"):
        ws.sql("CREATE MATERIALIZED VIEW p AS SELECT c.phone FROM customers c")
    told = ws.sql("EXPLAIN SOURCE shop")
    assert told is not None
    facts = {row["property"]: row["value"] for row in told.to_pylist()}
    assert "was dropped in source 'shop'" in facts["dropped column customers.phone"]
    assert (facts["slot"], facts["snapshot"]) == ("headwater_shop", "initial")


def test_a_drop_that_is_accepted_or_taken_back_lets_them_go_on(
    ws: hw.Workspace, shop: psycopg.Connection
) -> None:
    shop.execute("ALTER TABLE customers RENAME COLUMN phone TO mobile")
    shop.execute("INSERT INTO customers VALUES (4, '055', 'de')")
    assert "was dropped or renamed to mobile" in ws.run().stopped["phones"]
    with raises(hw.SchemaError, column="country", reason="not-dropped"):
        ws.sql("ALTER TOPIC customers ALTER COLUMN country ACCEPT DROP")
    ws.sql("ALTER TOPIC customers ALTER COLUMN phone ACCEPT DROP")
    assert ws.run().stopped == {}
    # the table is copied again for the values of `mobile`; the copied rows have no phone, as the table has none
    assert rows(ws, "phones") == [(None, 3)]
    shop.execute("UPDATE customers SET country = 'li' WHERE id = 1")
    assert ws.run().stopped == {}, "what was accepted stays so"
    assert rows(ws, "phones") == [(None, 3)]

    shop.execute("ALTER TABLE customers RENAME COLUMN mobile TO phone")
    shop.execute("UPDATE customers SET country = 'fr' WHERE id = 1")
    assert ws.run().stopped == {}, "mobile is read by no view"
    assert [one.column for one in ws.log.topic("customers").dropped] == ["mobile"]
    assert rows(ws, "phones") == [("043", 1), ("055", 1), ("079", 1)]
    assert ws.verify().ok


def test_a_column_that_comes_back_takes_the_views_up_again_beside_an_engine(
    ws: hw.Workspace, shop: psycopg.Connection
) -> None:
    with ws.start():
        shop.execute("ALTER TABLE customers DROP COLUMN phone")
        (lsn,) = shop.execute(
            "INSERT INTO customers VALUES (3, 'de') RETURNING pg_current_wal_insert_lsn()::text"
        ).fetchone() or ("",)
        while "phones" not in stopped(ws):
            ws.log.wait_commit(ws.log.sequence(), 50)
        shop.execute("INSERT INTO customers VALUES (5, 'de')")
        (lsn,) = shop.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or ("",)
        assert rows(ws, "countries", after=lsn) == [("at", 1), ("ch", 1), ("de", 2)]
        shop.execute("ALTER TABLE customers ADD COLUMN phone text")
        shop.execute("UPDATE customers SET phone = '055' WHERE id = 3")
        while stopped(ws):
            ws.log.wait_commit(ws.log.sequence(), 50)
        (lsn,) = shop.execute("SELECT pg_current_wal_insert_lsn()::text").fetchone() or ("",)
        ws.query("SELECT * FROM countries", after=lsn)
    ws.run()
    # the added column is another one than the dropped one: old rows have NULL in it, in the table as in the topic
    assert rows(ws, "phones") == [("055", 1), (None, 3)]
    assert ws.log.topic("customers").dropped == ()
    assert ws.verify().ok


def stopped(ws: hw.Workspace) -> set[str]:
    latest = inspect_workspace(ws).manifest()
    assert latest is not None
    return {name for name, view in latest.views.items() if view.status != "live"}


def test_a_topic_whose_contract_refuses_changes_stops_its_table_alone(
    ws: hw.Workspace, shop: psycopg.Connection
) -> None:
    ws.sql("ALTER TOPIC customers SET (schema_changes = 'refuse')")
    shop.execute("INSERT INTO customers VALUES (3, '031', 'ch')")
    shop.execute("ALTER TABLE customers ADD COLUMN vip boolean")
    shop.execute("INSERT INTO customers VALUES (4, '055', 'de', true)")
    shop.execute("INSERT INTO orders VALUES (2, 2)")
    ws.run()
    assert ws.log.topic("customers").schema.names == ["id", "phone", "country"]
    assert rows(ws, "countries") == [("at", 1), ("ch", 2)], "all before the change is in"
    assert rows(ws, "ordered") == [("at", 2), ("ch", 1)], "other tables go on"
    told = ws.sql("EXPLAIN SOURCE shop")
    assert told is not None
    (reason,) = (row["value"] for row in told.to_pylist() if row["property"].startswith("stopped table"))
    assert "table public.customers of source 'shop' has stopped: " in reason
    assert "added column vip BOOLEAN" in reason
    assert "ALTER TOPIC customers SET (schema_changes = 'follow')" in reason
    (shown,) = ws.sql("SHOW SOURCES").to_pylist()  # type: ignore[union-attr]
    assert shown["state"] == "not running; stopped tables: public.customers"
    ws.sql("ALTER TOPIC customers SET (schema_changes = 'follow')")
    shop.execute("INSERT INTO customers VALUES (5, '056', 'de', true)")
    ws.run()
    assert rows(ws, "countries") == [("at", 1), ("ch", 2), ("de", 2)]
    assert ws.query("SELECT count(*) AS n FROM customers WHERE vip").to_pylist() == [{"n": 2}]
    assert ws.verify().ok


def test_tables_are_added_and_left_out_and_taken_up_again_without_a_gap(
    ws: hw.Workspace, shop: psycopg.Connection
) -> None:
    shop.execute("CREATE TABLE notes (id bigint PRIMARY KEY, note text)")
    shop.execute("INSERT INTO notes VALUES (1, 'a')")
    ws.sql("ALTER SOURCE shop SET (tables = 'customers, notes', chunk_rows = 100)")
    shop.execute("INSERT INTO orders VALUES (2, 2)")
    ws.run()
    assert ws.query("SELECT note FROM notes").to_pylist() == [{"note": "a"}]
    assert ws.query("SELECT count(*) AS n FROM orders").to_pylist() == [{"n": 1}], "left out"
    shop.execute("DELETE FROM orders WHERE id = 1")
    with raises(hw.SourceRefusedError, table="public.ordres", reason="no-table"):
        ws.sql("ALTER SOURCE shop SET (tables = 'customers, notes, ordres')")
    ws.sql("ALTER SOURCE shop SET (tables = 'customers, notes, orders')")
    shop.execute("INSERT INTO orders VALUES (3, 1)")
    ws.run()
    assert rows(ws, "ordered") == [("at", 2), ("ch", 3)]
    with raises(hw.UsageError, option="slot", reason="fixed-option"):
        ws.sql("ALTER SOURCE shop SET (slot = 'other')")
