"""Sources as SQL declares them: made, told what to do, begun anew, dropped, and refused with the way out."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg
import pytest
from click.testing import CliRunner

import headwater as hw
from headwater.cli.program import cli
from headwater.testing import inspect_workspace
from tests.postgres import PostgresServer
from tests.raising import raises

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture
def shop(postgres_url: str) -> Iterator[psycopg.Connection]:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("CREATE TABLE items (id bigint PRIMARY KEY, name text)")
        connection.execute("INSERT INTO items SELECT i, 'item ' || i FROM generate_series(1, 20) i")
        yield connection


@pytest.fixture
def ws(tmp_path: Path, spark: SparkSession) -> Iterator[hw.Workspace]:
    with hw.open(tmp_path / "ws", durability="os", spark=spark) as workspace:
        yield workspace


def create(ws: hw.Workspace, url: str, more: str = "") -> None:
    ws.sql(f"CREATE SOURCE shop FROM POSTGRES WITH (url = '{url}', tables = 'items'{more})")


def there(ws: hw.Workspace) -> dict[int, str]:
    return {row["id"]: row["name"] for row in ws.query("SELECT id, name FROM items").to_pylist()}


def wanted(shop: psycopg.Connection) -> dict[int, str]:
    return dict(shop.execute("SELECT id, name FROM items").fetchall())


def test_a_table_is_snapshotted_again_when_that_is_ordered(
    ws: hw.Workspace, shop: psycopg.Connection, postgres_url: str
) -> None:
    create(ws, postgres_url)
    ws.run()
    ws.sql("ALTER SOURCE shop SNAPSHOT items WHERE 'id <= 5'")
    shop.execute("UPDATE items SET name = 'new' WHERE id = 7")
    ws.run()
    assert there(ws) == wanted(shop)
    count = "SELECT count(*) AS n FROM items WHERE _op = 'snapshot'"
    assert ws.query(count).to_pylist() == [{"n": 19}]
    assert ws.topic("items").partitions()[0].rows == 20 + 5 + 1
    assert not ws.log.entries("order")
    with raises(hw.UsageError, source="shop", table="public.others"):
        ws.sql("ALTER SOURCE shop SNAPSHOT others")


def test_after_the_slot_is_lost_it_is_begun_anew_and_equal(
    ws: hw.Workspace, shop: psycopg.Connection, postgres_url: str
) -> None:
    create(ws, postgres_url)
    ws.sql("CREATE MATERIALIZED VIEW n AS SELECT count(*) AS n FROM items")
    ws.run()
    shop.execute("SELECT pg_drop_replication_slot('headwater_shop')")
    shop.execute("DELETE FROM items WHERE id < 5")
    shop.execute("INSERT INTO items VALUES (100, 'hundred')")
    with pytest.raises(hw.HeadwaterError) as lost:
        ws.run()
    assert "ALTER SOURCE shop RESTART" in str(lost.value.hint)
    ws.sql("ALTER SOURCE shop RESTART")
    ws.run()
    assert there(ws) == wanted(shop)
    assert ws.query("SELECT n FROM n").to_pylist() == [{"n": 17}]
    shop.execute("DELETE FROM items WHERE id = 100")
    ws.run()
    assert there(ws) == wanted(shop)
    assert ws.verify().ok


def test_what_was_made_on_the_server_goes_with_the_source(
    ws: hw.Workspace, shop: psycopg.Connection, postgres_url: str
) -> None:
    create(ws, postgres_url)
    ws.run()
    made = "SELECT (SELECT count(*) FROM pg_replication_slots WHERE database = current_database()), (SELECT count(*) FROM pg_publication)"
    slots, publications = shop.execute(made).fetchone() or (0, 0)
    assert slots == 1
    assert publications >= 1
    ws.sql("DROP SOURCE shop")
    assert shop.execute(made).fetchone() == (0, 0)
    assert len(there(ws)) == 20, "its topics stay"
    with raises(hw.UsageError, topic="items", source="shop"):
        ws.topic("items").append([{"id": 1, "name": "x"}])


def test_a_wrong_password_is_told_without_it(ws: hw.Workspace, postgres_server: PostgresServer) -> None:
    url = postgres_server.tcp_url(password="not-the-one")
    with pytest.raises(hw.HeadwaterError) as refused:
        create(ws, url)
    assert "not-the-one" not in str(refused.value)
    assert ws.sql("SHOW SOURCES").num_rows == 0
    assert not ws.topics()


def test_a_table_that_is_not_there_is_named(
    ws: hw.Workspace, shop: psycopg.Connection, postgres_url: str
) -> None:
    with raises(hw.SourceRefusedError, table="public.itmes", reason="no-table"):
        ws.sql(f"CREATE SOURCE shop FROM POSTGRES WITH (url = '{postgres_url}', tables = 'itmes')")


def test_a_topic_of_somebody_else_is_not_filled(
    ws: hw.Workspace, shop: psycopg.Connection, postgres_url: str
) -> None:
    ws.sql("CREATE TOPIC items (id BIGINT, name STRING, PRIMARY KEY (id))")
    with raises(hw.UsageError, source="shop", topic="items"):
        create(ws, postgres_url)
    ws.sql(f"CREATE SOURCE shop FROM POSTGRES WITH (url = '{postgres_url}', tables = 'items AS shop_items')")
    ws.run()
    assert ws.query("SELECT count(*) AS n FROM shop_items").to_pylist() == [{"n": 20}]


def test_one_that_is_dropped_and_made_again_begins_anew(
    ws: hw.Workspace, shop: psycopg.Connection, postgres_url: str
) -> None:
    create(ws, postgres_url)
    ws.run()
    ws.sql("DROP SOURCE shop")
    shop.execute("DELETE FROM items WHERE id < 8")
    create(ws, postgres_url)
    ws.run()
    assert there(ws) == wanted(shop)
    ws.sql(
        f"CREATE OR REPLACE SOURCE shop FROM POSTGRES WITH (url = '{postgres_url}', tables = 'items', chunk_rows = 7)"
    )
    shop.execute("DELETE FROM items WHERE id < 12")
    ws.run()
    assert there(ws) == wanted(shop)
    assert ws.topic("items").partitions()[0].rows == 20 + 20 + 13 + 4


def test_a_run_of_the_command_line_captures_also_without_views(
    tmp_path: Path, shop: psycopg.Connection, postgres_url: str, spark: SparkSession
) -> None:
    folder = str(tmp_path / "ws")
    statement = f"CREATE SOURCE shop FROM POSTGRES WITH (url = '{postgres_url}', tables = 'items')"
    for arguments in (["init", folder], ["-w", folder, "sql", statement], ["-w", folder, "run", "--once"]):
        result = CliRunner().invoke(cli, arguments, catch_exceptions=False)
        assert result.exit_code == 0, result.output
    with hw.open(folder, spark=spark) as ws:
        assert there(ws) == wanted(shop)


def test_beside_an_engine_what_has_stopped_rests_and_what_is_dropped_ends(
    ws: hw.Workspace, shop: psycopg.Connection, postgres_url: str, spark: SparkSession
) -> None:
    create(ws, postgres_url)
    ws.run()
    shop.execute("SELECT pg_drop_replication_slot('headwater_shop')")
    ws.sql("CREATE TOPIC other (n BIGINT)")
    with ws.start():
        sources = inspect_workspace(ws).sources
        while "stopped" not in ws.source("shop").status.state:
            ws.log.wait_commit(ws.log.sequence(), 20)
        (_, stopped) = sources.runners._running["shop"]
        for number in range(3):
            ws.topic("other").append([{"n": number}])
            ws.log.wait_commit(ws.log.sequence(), 250)
        assert sources.runners._running["shop"][1] is stopped
        assert "slot" in ws.source("shop").status.state
        assert ws.path is not None
        with hw.open(ws.path, spark=spark) as other:
            other.sql("DROP SOURCE shop")
        while sources.runners._running:
            ws.log.wait_commit(ws.log.sequence(), 20)
