"""`on_gap` of a source as users meet it: shown, altered, and acted on by whoever reads the source."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest

import headwater as hw
from headwater.testing import inspect_workspace
from tests.postgres import PostgresServer
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AGAIN = ("DROP TABLE items", "CREATE TABLE items (id bigint PRIMARY KEY, name text)")


@pytest.fixture
def shop(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE items (id bigint PRIMARY KEY, name text)")
        connection.execute("CREATE TABLE notes (id bigint PRIMARY KEY, name text)")
        connection.execute("INSERT INTO items SELECT i, 'item ' || i FROM generate_series(1, 20) i")
        yield connection


@pytest.fixture
def ws(
    tmp_path: Path, spark: SparkSession, postgres_url: str, shop: psycopg.Connection
) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as workspace:
        workspace.sql(
            f"CREATE SOURCE shop FROM POSTGRES WITH (url = '{postgres_url}', tables = 'items, notes')"
        )
        yield workspace


def there(ws: hw.Workspace) -> dict[int, str]:
    return {row["id"]: row["name"] for row in ws.query("SELECT id, name FROM items").to_pylist()}


def wanted(shop: psycopg.Connection) -> dict[int, str]:
    return dict(shop.execute("SELECT id, name FROM items").fetchall())


def until(found: Callable[[], bool]) -> None:
    for _ in range(1_000):
        if found():
            return
        threading.Event().wait(0.02)
    raise AssertionError("it never came to that")


def explained(ws: hw.Workspace) -> dict[str, str]:
    told = ws.sql("EXPLAIN SOURCE shop")
    assert told is not None
    return {row["property"]: row["value"] for row in told.to_pylist()}


def test_a_gap_is_shown_with_the_statement_that_closes_it_and_on_gap_closes_it(
    ws: hw.Workspace, shop: psycopg.Connection
) -> None:
    assert explained(ws)["on gap"].startswith("stop: ")
    ws.run()
    for statement in (*AGAIN, "INSERT INTO items VALUES (1, 'another')"):
        shop.execute(statement)
    shop.execute("INSERT INTO notes VALUES (1, 'goes on')")
    ws.run()
    assert ws.query("SELECT name FROM notes").to_pylist() == [{"name": "goes on"}]
    (reason,) = inspect_workspace(ws).sources.stopped_tables("shop").values()
    assert "table public.items of source 'shop' has stopped" in reason
    assert "dropped and created again" in reason
    assert "ALTER SOURCE shop RESTART public.items takes a new snapshot" in reason
    found = inspect_workspace(ws).health().of("source", "shop")
    assert found is not None
    assert found.severity == "unhealthy"
    assert reason in str(found.reason)

    ws.sql("ALTER SOURCE shop SET (on_gap = 'snapshot')")
    assert explained(ws)["on gap"].startswith("snapshot: ")
    ws.run()
    assert inspect_workspace(ws).sources.stopped() == {}
    assert there(ws) == wanted(shop) == {1: "another"}
    with raises(hw.UsageError, option="on_gap", value="ignore"):
        ws.sql("ALTER SOURCE shop SET (on_gap = 'ignore')")


@pytest.mark.slow
def test_another_server_is_snapshotted_though_its_positions_begin_anew(
    ws: hw.Workspace, shop: psycopg.Connection, postgres_url: str
) -> None:
    ws.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM items")
    ws.run()
    shop.execute("SELECT pg_logical_emit_message(false, 'x', repeat('x', 50000000))")  # its log is long
    ws.run()
    before = inspect_workspace(ws).sources.sequence("shop")
    other = PostgresServer()
    try:
        url = other.make_database("other")
        with psycopg.connect(url, autocommit=True) as session:
            for statement in (*AGAIN[1:], AGAIN[1].replace("items", "notes")):
                session.execute(statement)  # type: ignore[call-overload]
            session.execute("INSERT INTO items VALUES (3, 'other'), (30, 'other')")
            ws.sql(f"ALTER SOURCE shop SET (url = '{url}')")
            with raises(hw.SlotError, source="shop", reason="other server"):
                ws.run()
            with ws.start():
                ws.sql("ALTER SOURCE shop SET (on_gap = 'snapshot')")
                until(lambda: there(ws) == wanted(session))
            assert inspect_workspace(ws).sources.sequence("shop") < before
            for back, now in (
                (postgres_url, shop),
                (url, session),
            ):  # a position that rises, and one that does not
                ws.sql(f"ALTER SOURCE shop SET (url = '{back}')")
                ws.run()
                assert there(ws) == wanted(now)
            assert ws.query("SELECT n FROM n").to_pylist() == [{"n": 2}]
            assert ws.verify().ok
    finally:
        ws.sql("DROP SOURCE shop")
        other.remove()
